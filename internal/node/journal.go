package node

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// journal turns what happens into log lines: JSON, a constant message, fields for data, never tensor bytes. Field "event"
// names the kind for programs that read along (the demo does).
type journal struct {
	z       zerolog.Logger
	retries limiter    // of what this daemon tries again and again
	library limiter    // of what raft does
	commits bool       // each is a line at info, not at debug
	mu      sync.Mutex // guards lags
	// lags are the newest commit lags seen here, from the seal of a local replicated part to the news of its commit.
	lags []time.Duration
}

const keptLags = 1024

func newJournal(w io.Writer, c config.Log, node replica.NodeName) (*journal, error) {
	lv, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		return nil, fmt.Errorf("log level %q: %w", c.Level, err)
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	return &journal{commits: c.Commits, z: zerolog.New(w).Level(lv).With().Timestamp().Str("node_name", string(node)).Logger()}, nil
}

func (j *journal) event(name string) *zerolog.Event { return j.z.Info().Str("event", name) }

// each is an event of every commit.
func (j *journal) each(name string) *zerolog.Event {
	if j.commits {
		return j.event(name)
	}
	return j.z.Debug().Str("event", name)
}

func (j *journal) ready(n replica.Node) {
	j.event("daemon_ready").Str("node", string(n.Name)).Uint64("incarnation", uint64(n.Incarnation)).Uint64("session", uint64(n.Session)).Str("addr", n.Addr).Msg("daemon ready")
}

func (j *journal) leader(term uint64) {
	j.event("leader").Uint64("term", term).Msg("this node leads")
}

func (j *journal) handedOver(term uint64, err error) {
	if err != nil {
		j.failed("hand over", fmt.Sprintf("leadership of term %d", term), err.Error()+": the other voters elect a leader once they miss this one")
		return
	}
	j.event("handed_over").Uint64("term", term).Msg("leadership handed over: this daemon ends")
}

// renewed says that another certificate was read.
func (j *journal) renewed(notAfter time.Time) {
	j.event("certificate_renewed").Time("not_after", notAfter).Msg("the node's certificate was renewed: it is presented from now on")
}

// revoked says that certificates are refused from now on.
func (j *journal) revoked(r replica.Revocation, by string) {
	j.z.Warn().Str("event", "revoked").Str("role", r.Role.String()).Str("name", r.Name).Uint64("epoch", uint64(r.Epoch)).Str("by", by).Msg("certificates were revoked: they are refused from now on, and their connections end")
}

// gossipKeys says that other gossip keys were read; without are living nodes that do not hear what is said with the primary one.
func (j *journal) gossipKeys(keys string, without []replica.NodeName) {
	e := j.event("gossip_keys").Str("keys", keys)
	if len(without) > 0 {
		e = j.z.Warn().Str("event", "gossip_keys").Str("keys", keys).Interface("without", without).Str("remedy", "copy the file with both keys to them now: they do not hear this node's gossip")
	}
	e.Msg("gossip keys were read: the first is spoken with, all are heard")
}

func (j *journal) expires(text string, notAfter time.Time) {
	j.z.Warn().Str("event", "certificate_expires").Time("not_after", notAfter).Msg(text)
}

// moving says why another node is to lead.
func (j *journal) moving(term uint64, to replica.NodeName, strays []replica.NodeName) {
	j.event("leadership_moves").Uint64("term", term).Str("node", string(to)).Interface("strays", strays).Msg("these nodes have no link to this leader and do not answer it, and that voter hears them: it is to lead")
}

func (j *journal) linked(leader replica.NodeName, term uint64) {
	j.event("linked").Str("leader", string(leader)).Uint64("term", term).Msg("linked to the leader")
}

func (j *journal) unlinked(err error) {
	j.event("unlinked").AnErr("cause", err).Msg("link to the leader lost")
}

// superseded says that two lives of a node had a link at once: that of the former counts as over, and so does its memory.
func (j *journal) superseded(was, is replica.Node) {
	j.z.Warn().Str("event", "superseded").Str("node", string(is.Name)).Uint64("former", uint64(was.Incarnation)).Uint64("incarnation", uint64(is.Incarnation)).
		Str("former_addr", was.Addr).Str("addr", is.Addr).Str("remedy", "unless its host or keeper was started anew, two daemons run as this node: stop one of them").
		Msg("a node has registered another memory while its former daemon was linked; what that one holds counts as lost")
}

func jobEvent(e *zerolog.Event, job *replica.Job) *zerolog.Event {
	if job == nil {
		return e
	}
	return e.Str("job", job.Name).Uint64("epoch", uint64(job.Epoch))
}

// JobChanged logs, on the leader, what the difference of two applied states means.
func (j *journal) jobChanged(was, is *replica.Job, pinnedAt time.Time) {
	if was == nil {
		j.event("job_created").Str("job", is.Name).Str("id", is.ID.String()).Uint32("world", is.Layout.World).Str("phase", is.Phase.String()).Msg("job known")
		return
	}
	for _, f := range is.Faults {
		if !slices.Contains(was.Faults, f) {
			e := jobEvent(j.event("fault"), is).Uint64("fault_epoch", uint64(f.Epoch)).Str("kind", f.Kind.String()).Str("detail", f.Detail)
			if f.OfNode() {
				e = e.Str("node", string(f.Node))
			} else {
				e = e.Uint32("rank", uint32(f.Rank)).Uint64("incarnation", uint64(f.Incarnation))
				if int(f.Rank) < len(is.Ranks) {
					e = e.Str("node", string(is.Ranks[f.Rank].Node))
				}
			}
			e.Msg("fault recorded; epoch closed")
		}
	}
	for _, d := range is.Disputed[min(len(was.Disputed), len(is.Disputed)):] {
		j.disputed(is, d)
	}
	for _, n := range is.Quarantined {
		if !slices.Contains(was.Quarantined, n) {
			jobEvent(j.z.Warn().Str("event", "quarantined"), is).Str("node", string(n)).Msg("node quarantined for the job")
		}
	}
	for r, c := range is.Ranks {
		if r < len(was.Ranks) && was.Ranks[r] != c {
			jobEvent(j.event("rank_claimed"), is).Int("rank", r).Uint64("incarnation", uint64(c.Incarnation)).Str("node", string(c.Node)).Msg("rank claimed")
		}
	}
	if is.Plan != nil && (was.Plan == nil || was.Plan.Epoch != is.Plan.Epoch) {
		p := is.Plan
		jobEvent(j.event("planned"), is).Uint64("step", uint64(p.Generation.Step)).Str("generation", p.Generation.String()).Str("tier", p.Tier().String()).
			Str("reason", p.Reason).Uint64("steps_lost", uint64(p.StepsLost)).Bool("unvouched", p.Unvouched).Bool("initial", p.Initial).Msg("plan applied")
		if p.Unvouched {
			jobEvent(j.z.Warn().Str("event", "unvouched"), is).Str("generation", p.Generation.String()).
				Msg("the job goes on from a state that no second rank vouches for, as none that two do is near enough (--lone-ahead, --require-votes): " + p.Reason)
		}
	}
	if is.Phase == replica.Open && (was.Phase != replica.Open || was.Epoch != is.Epoch) {
		jobEvent(j.event("resumed"), is).Uint64("step", uint64(is.Position.Step)).Bool("degraded", is.Degraded).Msg("epoch opened")
	} else if is.Position != was.Position {
		e := jobEvent(j.each("committed"), is).Uint64("step", uint64(is.Position.Step))
		if !pinnedAt.IsZero() {
			e = e.Int64("since_pin_us", time.Since(pinnedAt).Microseconds())
		}
		e.Msg("step committed")
	}
	if is.Durable != was.Durable {
		jobEvent(j.event("durable"), is).Uint64("step", uint64(is.Durable.Step)).Msg("durable generation complete")
	}
	if is.Copies != was.Copies {
		jobEvent(j.event("copies"), is).Int("copies", is.Copies).Bool("degraded", is.Degraded).Msg("copies changed")
	}
	if is.Phase == replica.Ended && was.Phase != replica.Ended {
		jobEvent(j.event("ended"), is).Str("reason", is.EndReason).Msg("job ended")
	}
}

// disputed logs different roots of one generation: who reported which, in the same order, and who is suspect.
func (j *journal) disputed(job *replica.Job, d replica.Dispute) {
	var ranks []replica.Rank
	var nodes, roots []string
	for _, v := range d.Votes {
		ranks, nodes, roots = append(ranks, v.Rank), append(nodes, string(v.Node)), append(roots, v.Root.String())
	}
	jobEvent(j.z.Warn().Str("event", "dispute"), job).Uint32("group", uint32(d.Group)).Uint64("step", uint64(d.Generation.Step)).Str("generation", d.Generation.String()).
		Interface("ranks", ranks).Strs("nodes", nodes).Strs("roots", roots).Interface("suspects", d.Suspects).Bool("majority", d.Majority()).Msg("ranks of a group report different roots; epoch closed")
}

func (j *journal) fenced(job *replica.Job) {
	jobEvent(j.event("fenced"), job).Uint64("closed", uint64(job.ClosedEpoch)).Msg("every survivor fenced and settled")
}

func (j *journal) offered(job *replica.Job, r replica.Rank, n replica.NodeName) {
	jobEvent(j.event("offered"), job).Uint32("rank", uint32(r)).Str("node", string(n)).Msg("rank offered")
}

// excluded logs what was taken out of a job's history for good, and on whose word.
func (j *journal) excluded(job *replica.Job, c replica.Command) {
	switch c := c.(type) {
	case replica.Condemn:
		jobEvent(j.z.Warn().Str("event", "condemned"), job).Str("generation", c.Generation.String()).Str("reason", c.Reason).Msg("generation condemned: its bytes are bad")
	case replica.ProveLost:
		jobEvent(j.z.Warn().Str("event", "proved_lost"), job).Str("node", string(c.Holder.Node)).Str("reason", c.Why).Msg("memory of the node recorded as lost")
	}
}

func (j *journal) note(job *replica.Job, n recovery.Note) {
	e := jobEvent(j.event("note"), job).Str("code", n.Code).Str("text", n.Text)
	for k, v := range n.Fields {
		e = e.Str("note_"+k, v)
	}
	e.Msg("recovery note")
}

func (j *journal) note2(job *replica.Job, code, text string) {
	jobEvent(j.event("note"), job).Str("code", code).Str("text", text).Msg("note")
}

// raft passes on what the library warns of: elections and lost peers among them, which are no failures. It says so again with
// each try; of one kind of line about one peer the log has one in a while, and the rest at debug.
func (j *journal) raft(bad bool, msg string, args ...any) {
	level := zerolog.InfoLevel
	if bad {
		level = zerolog.WarnLevel
	}
	e := j.again(&j.library, raftKind(msg, args), level).Str("event", "raft").Str("text", msg)
	for i := 0; i+1 < len(args); i += 2 {
		value := fmt.Sprint(args[i+1])
		e = e.Str(fmt.Sprint("raft_", args[i]), value)
		if strings.Contains(value, unix.ENOSPC.Error()) {
			e = e.Str("remedy", "free space in state_dir: until then no step is committed here, while training goes on")
		}
	}
	e.Msg("raft")
}

// raftKind tells lines apart by what they say of whom; a full disk is none of the retries.
func raftKind(msg string, args []any) string {
	for i := 0; i+1 < len(args); i += 2 {
		switch value := fmt.Sprint(args[i+1]); fmt.Sprint(args[i]) {
		case "peer", "target", "server-id", "candidate", "from":
			msg += " " + value
		case "error":
			if strings.Contains(value, unix.ENOSPC.Error()) {
				msg += " " + unix.ENOSPC.Error()
			}
		}
	}
	return msg
}

// noLeader says what it means that no leader is heard, and who is needed to have one.
func (j *journal) noLeader(since time.Duration, voters []config.Voter) {
	names := make([]string, len(voters))
	for i, v := range voters {
		names[i] = string(v.Name)
	}
	j.z.Warn().Str("event", "no_leader").Dur("since_ms", since).Strs("voters", names).
		Str("remedy", fmt.Sprintf("%d of the %d voters must run and reach each other, and this node must reach them", len(voters)/2+1, len(voters))).Msg("no leader: nothing is committed, and no lost rank is replaced; training goes on")
}

func (j *journal) leaderAgain(leader replica.NodeName, after time.Duration) {
	j.event("leader_again").Str("leader", string(leader)).Dur("after_ms", after).Msg("there is a leader again: commits go on")
}

// stalled is the stall alarm: training goes on and no step is committed.
func (j *journal) stalled(job *replica.Job, since time.Duration, waiting []string) {
	jobEvent(j.z.Warn().Str("event", "stalled"), job).Uint64("step", uint64(job.Position.Step)).Dur("since_ms", since).Strs("waiting", waiting).Msg("no commit for longer than stall_alarm")
}

func (j *journal) nodeState(n replica.NodeName, state string) {
	j.event("node_state").Str("node", string(n)).Str("state", state).Msg("node state")
}

func (j *journal) skipped(job *replica.Job, path, reason string) {
	jobEvent(j.event("durable_skipped"), job).Str("path", path).Str("reason", reason).Msg("durable generation skipped")
}

// commitWaits logs a commit that some nodes have answered and others hold up.
func (j *journal) commitWaits(job *replica.Job, nodes []string, steps replica.Step, since time.Duration, waiting []string) {
	jobEvent(j.z.Warn().Str("event", "commit_waits"), job).Strs("nodes", nodes).Uint64("step", uint64(job.Position.Step)).Uint64("uncommitted", uint64(steps)).Dur("since_ms", since).Strs("waiting", short(waiting)).Msg("the next commit waits for these nodes")
}

// atRisk logs that one more fault may cost many steps.
func (j *journal) atRisk(job *replica.Job, steps replica.Step, waiting []string) {
	jobEvent(j.z.Warn().Str("event", "at_risk"), job).Uint64("step", uint64(job.Position.Step)).Uint64("uncommitted", uint64(steps)).Strs("waiting", short(waiting)).Msg("one more fault may cost the steps since the last commit")
}

// short is the first of many reasons: with a thousand ranks a line must stay a line.
func short(reasons []string) []string {
	const most = 8
	if n := len(reasons); n > most {
		return append(slices.Clone(reasons[:most]), fmt.Sprintf("and %d more", n-most))
	}
	return reasons
}

// slowStep says what held the leader up.
func (j *journal) slowStep(s slowStep) {
	j.again(&j.retries, "step "+s.what+" "+s.job, zerolog.WarnLevel).Str("event", "slow_step").Str("what", s.what).Str("job", s.job).Int64("took_ms", s.took.Milliseconds()).Int64("budget_ms", stepBudget.Milliseconds()).
		Msg("a step of the leader took longer than its budget; all jobs waited for it")
}

func (j *journal) refused(c replica.Command, err error) {
	j.z.Debug().Str("event", "refused").Str("command", fmt.Sprintf("%T", c)).Err(err).Msg("proposal refused")
}

func (j *journal) failed(what, subject, why string) {
	j.z.Warn().Str("event", "failed").Str("what", what).Str("subject", subject).Str("why", why).Msg("failed")
}

// retried is failed for what is tried again several times a second for as long as it fails.
func (j *journal) retried(what, subject, why string) {
	j.again(&j.retries, what+" "+subject+" "+why[:min(len(why), 60)], zerolog.WarnLevel).Str("event", "failed").Str("what", what).Str("subject", subject).Str("why", why).Msg("failed")
}

// again is a line of a kind that repeats: one in a while at its level, the rest at debug.
func (j *journal) again(of *limiter, kind string, level zerolog.Level) *zerolog.Event {
	ok, held := of.due(kind, time.Now())
	if !ok {
		return j.z.Debug()
	}
	e := j.z.WithLevel(level)
	if held > 0 {
		e = e.Int("like_it_since_the_last", held)
	}
	return e
}

func (j *journal) warn(err error) {
	j.z.Warn().Str("event", "config").Str("why", err.Error()).Msg("the configuration is valid, and unwise")
}

func (j *journal) keeperLost(socket string) {
	j.z.Error().Str("event", "keeper").Str("subject", socket).Str("remedy", "restart the daemon when convenient: until then ranks' memory does not survive it").
		Msg("the keeper has gone, or serves another daemon; training goes on")
}

func (j *journal) claimed(job *replica.Job, lr *localRank, n replica.NodeName) {
	jobEvent(j.event("claimed"), job).Uint32("rank", uint32(lr.rank)).Uint64("incarnation", uint64(lr.incarnation)).Str("node", string(n)).Int("pid", lr.pid).Msg("rank attached")
}

func (j *journal) reattached(job *replica.Job, lr *localRank) {
	jobEvent(j.event("reattached"), job).Uint32("rank", uint32(lr.rank)).Int("pid", lr.pid).Msg("rank attached again")
}

func (j *journal) adopted(job *replica.Job, lr *localRank, alive bool) {
	jobEvent(j.event("adopted"), job).Uint32("rank", uint32(lr.rank)).Int("pid", lr.pid).Bool("alive", alive).Msg("arena adopted")
}

func (j *journal) rankDied(job *replica.Job, lr *localRank, w replica.Word) {
	jobEvent(j.event("rank_died"), job).Uint32("rank", uint32(lr.rank)).Int("pid", lr.pid).Uint64("step", uint64(w.Step())).Str("phase", w.Phase().String()).Bool("left", lr.left).Msg("rank's process exited")
}

func (j *journal) rankNote(job *replica.Job, r replica.Rank, code, text string) {
	jobEvent(j.event("note"), job).Uint32("rank", uint32(r)).Str("code", code).Str("text", text).Msg("note")
}

func (j *journal) refusedRank(job string, r replica.Rank, pid int, why string) {
	j.event("rank_refused").Str("job", job).Uint32("rank", uint32(r)).Int("pid", pid).Str("why", why).Msg("rank refused")
}

func (j *journal) exited(job string, r replica.Rank, pid uint64, status int32) {
	j.event("process_exited").Str("job", job).Uint32("rank", uint32(r)).Uint64("pid", pid).Int32("status", status).Msg("launcher's process exited")
}

func (j *journal) startFailed(job *replica.Job, r replica.Rank, status int32, tries, of int) {
	j.event("start_failed").Str("job", job.Name).Uint32("rank", uint32(r)).Int32("status", status).Int("in_a_row", tries).Int("of", of).Msg("process ended before it attached")
}

func (j *journal) moved(job *replica.Job, r replica.Rank, part replica.Part, epoch replica.Epoch, rep transfer.Report, tier replica.Tier, took time.Duration) {
	by := zerolog.Dict()
	for n, b := range rep.By {
		by = by.Uint64(string(n), b)
	}
	e := j.event("moved").Str("job", job.Name).Uint64("epoch", uint64(epoch)).Uint32("rank", uint32(r)).Str("part", part.String()).Str("tier", tier.String()).
		Uint64("bytes", rep.Bytes).Uint64("reused", rep.Reused).Dict("by", by).Int64("took_us", took.Microseconds())
	for n, why := range rep.Failed {
		e = e.Str("set_aside_"+string(n), why)
	}
	e.Msg("part moved")
}

func (j *journal) verified(job *replica.Job, r replica.Rank, part replica.Part, epoch replica.Epoch) {
	j.event("verified").Str("job", job.Name).Uint64("epoch", uint64(epoch)).Uint32("rank", uint32(r)).Str("part", part.String()).Msg("part verified against the plan's root")
}

func (j *journal) pushFailed(k transfer.Key, to replica.NodeName, err error) {
	j.again(&j.retries, "push "+k.Part.String()+" "+string(to), zerolog.WarnLevel).Str("event", "mirror_failed").Str("part", k.Part.String()).Str("generation", k.Generation.String()).Str("node", string(to)).Err(err).Msg("private part not mirrored")
}

// commitLag keeps a figure for status and logs it.
func (j *journal) commitLag(job *replica.Job, lag time.Duration) {
	j.mu.Lock()
	if len(j.lags) == keptLags {
		j.lags = append(j.lags[:0], j.lags[1:]...)
	}
	j.lags = append(j.lags, lag)
	j.mu.Unlock()
	jobEvent(j.each("commit_seen"), job).Uint64("step", uint64(job.Position.Step)).Int64("lag_us", lag.Microseconds()).Msg("commit seen")
}

// commitSpell is what the log's one line on the commits of some seconds says.
type commitSpell struct {
	said  time.Time // when the line before was written
	step  replica.Step
	count int
	worst time.Duration // lag
}

const commitsEach = 10 * time.Second // between two lines on a job's commits

// commitsSeen adds a commit to the spell, and writes the line when the spell is over; the first commit of a job is one at once.
func (j *journal) commitsSeen(job *replica.Job, s *commitSpell, lag time.Duration, now time.Time) {
	if s.step != job.Position.Step { // each local rank tells of it
		s.count++
	}
	s.step, s.worst = job.Position.Step, max(s.worst, lag)
	if !s.said.IsZero() && now.Sub(s.said) < commitsEach {
		return
	}
	jobEvent(j.event("commits"), job).Int("count", s.count).Uint64("step", uint64(s.step)).Int64("worst_lag_us", s.worst.Microseconds()).Msg("steps committed")
	*s = commitSpell{said: now, step: s.step}
}

// lag returns the p50 and p99 of the newest commit lags.
func (j *journal) lag() (p50, p99 time.Duration) {
	j.mu.Lock()
	s := slices.Clone(j.lags)
	j.mu.Unlock()
	if len(s) == 0 {
		return 0, 0
	}
	slices.Sort(s)
	return s[len(s)/2], s[len(s)*99/100]
}
