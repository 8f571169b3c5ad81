package journal

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Journal turns what happens into log lines: JSON, a constant message, fields for data, never tensor bytes. Field "event"
// names the kind for programs that read along (the demo does).
type Journal struct {
	z        atomic.Pointer[zerolog.Logger]
	all      atomic.Pointer[zerolog.Logger] // of what the configuration asks for line by line: beside the budget
	retries  limiter                        // of what this daemon tries again and again
	library  limiter                        // of what raft does
	sink     *sink                          // where lines go; nil: nobody looks
	node     replica.NodeName
	budgeted *budgeted  // nil: every line passes
	commits  bool       // each is a line at info, not at debug
	mu       sync.Mutex // guards lags
	// lags are the newest commit lags seen here, from the seal of a local replicated part to the news of its commit.
	lags []time.Duration
}

const keptLags = 1024

// stamped guards the format of the lines' time, which the library has for all of a process.
var stamped sync.Once

// printed is where lines go. A log is read in terminals too.
type printed struct{ w io.Writer }

// Printed writes lines of JSON so that no text of theirs can move a terminal's cursor or turn the order of its letters: names, reasons and labels
// come from ranks, launchers, other nodes and stores.
func Printed(w io.Writer) io.Writer { return printed{w} }

func (p printed) Write(line []byte) (int, error) {
	if _, err := p.w.Write(replica.PrintedJSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// New writes a journal of a node to w, at the level that the configuration names.
func New(w io.Writer, c config.Log, node replica.NodeName) (*Journal, error) {
	lv, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		return nil, fmt.Errorf("log level %q: %w", c.Level, err)
	}
	j := &Journal{sink: &sink{w: Printed(w)}, commits: c.Commits, node: node}
	if most := int(min(c.PerMinute, config.MaxLogPerMinute) / 2); most > 0 { // a minute may be the end of one spell and the begin of the next
		j.budgeted = &budgeted{w: j.sink, says: j.all.Load, budget: budget{most: most}}
	}
	stamped.Do(func() { zerolog.TimeFieldFormat = time.RFC3339Nano })
	j.write(lv)
	return j, nil
}

// write has lines from a level on written: within the budget, but at debug.
func (j *Journal) write(lv zerolog.Level) {
	to := func(w io.Writer) *zerolog.Logger {
		z := zerolog.New(w).Level(lv).With().Timestamp().Str("node_name", string(j.node)).Logger()
		return &z
	}
	all := to(j.sink)
	j.all.Store(all)
	if j.z.Store(all); lv != zerolog.DebugLevel && j.budgeted != nil {
		j.z.Store(to(j.budgeted))
	}
}

// Relevel goes on at another level, or at the same, and says so whatever the level is.
func (j *Journal) Relevel(level string) error {
	lv, err := zerolog.ParseLevel(level)
	if err != nil {
		return fmt.Errorf("log level %q: %w", level, err)
	}
	was := j.all.Load().GetLevel()
	j.write(lv)
	j.all.Load().Log().Str("level", "info").Str("event", "log_level").Str("was", was.String()).Str("is", lv.String()).
		Msg("SIGHUP: the log's level was read anew from the configuration, and the daemon goes on; what else has changed there takes effect when it is started again")
	return nil
}

func (j *Journal) event(name string) *zerolog.Event { return j.z.Load().Info().Str("event", name) }

// each is an event of every commit.
func (j *Journal) each(name string) *zerolog.Event {
	if j.commits {
		return j.all.Load().Info().Str("event", name)
	}
	return j.z.Load().Debug().Str("event", name)
}

func (j *Journal) Ready(n replica.Node) {
	j.event("daemon_ready").Str("node", string(n.Name)).Uint64("incarnation", uint64(n.Incarnation)).Uint64("session", uint64(n.Session)).Str("addr", n.Addr).Msg("daemon ready")
}

func (j *Journal) Leader(term uint64) {
	j.event("leader").Uint64("term", term).Msg("this node leads")
}

func (j *Journal) HandedOver(term uint64, err error) {
	if err != nil {
		j.Failed("hand over", fmt.Sprintf("leadership of term %d", term), err.Error()+": the other voters elect a leader once they miss this one")
		return
	}
	j.event("handed_over").Uint64("term", term).Msg("leadership handed over: this daemon ends")
}

// Renewed says that another certificate was read.
func (j *Journal) Renewed(notAfter time.Time) {
	j.event("certificate_renewed").Time("not_after", notAfter).Msg("the node's certificate was renewed: it is presented from now on")
}

// Revoked says that certificates are refused from now on.
func (j *Journal) Revoked(r replica.Revocation, by string) {
	j.z.Load().Warn().Str("event", "revoked").Str("role", r.Role.String()).Str("name", r.Name).Uint64("epoch", uint64(r.Epoch)).Str("by", by).Msg("certificates were revoked: they are refused from now on, and their connections end")
}

// GossipKeys says that other gossip keys were read; without are living nodes that do not hear what is said with the primary one.
func (j *Journal) GossipKeys(keys string, without []replica.NodeName) {
	e := j.event("gossip_keys").Str("keys", keys)
	if len(without) > 0 {
		e = j.z.Load().Warn().Str("event", "gossip_keys").Str("keys", keys).Interface("without", without).Str("remedy", "copy the file with both keys to them now: they do not hear this node's gossip")
	}
	e.Msg("gossip keys read: this node sends with the first, and accepts all")
}

func (j *Journal) Expires(text string, notAfter time.Time) {
	j.z.Load().Warn().Str("event", "certificate_expires").Time("not_after", notAfter).Msg(text)
}

// Moving says why another node is to lead.
func (j *Journal) Moving(term uint64, to replica.NodeName, strays []replica.NodeName) {
	j.event("leadership_moves").Uint64("term", term).Str("node", string(to)).Interface("strays", strays).Msg("these nodes have no link to this leader and do not answer it, but the voter hears them: leadership goes to the voter")
}

func (j *Journal) Linked(leader replica.NodeName, term uint64) {
	j.event("linked").Str("leader", string(leader)).Uint64("term", term).Msg("linked to the leader")
}

func (j *Journal) Unlinked(err error) {
	j.event("unlinked").AnErr("cause", err).Msg("link to the leader lost")
}

// LeftOut says that a link has no place for more messages of a job: what its processes asked for again and again is not sent.
func (j *Journal) LeftOut(peer string, of any) {
	j.again(&j.retries, fmt.Sprint("left out ", peer, " ", of), zerolog.WarnLevel).Str("event", "left_out").Str("node", peer).Str("of", fmt.Sprint(of)).
		Str("remedy", "find the processes of this job that use its rendezvous in a loop, or end it: replicad job end").
		Msg("questions or answers of one job were left out: its processes cause more than the link to the node carries; other jobs go on")
}

// Superseded says that two lives of a node had a link at once: that of the former counts as over, and so does its memory.
func (j *Journal) Superseded(was, is replica.Node) {
	j.z.Load().Warn().Str("event", "superseded").Str("node", string(is.Name)).Uint64("former", uint64(was.Incarnation)).Uint64("incarnation", uint64(is.Incarnation)).
		Str("former_addr", was.Addr).Str("addr", is.Addr).Str("remedy", "unless its host or keeper was started anew, two daemons run as this node: stop one of them").
		Msg("a node registered with another memory while its former daemon was linked: the memory of the former daemon counts as lost")
}

func jobEvent(e *zerolog.Event, job *replica.Job) *zerolog.Event {
	if job == nil {
		return e
	}
	return e.Str("job", job.Name).Uint64("epoch", uint64(job.Epoch))
}

// JobChanged logs, on the leader, what the difference of two applied states means.
func (j *Journal) JobChanged(was, is *replica.Job, pinnedAt time.Time) {
	if was == nil {
		j.event("job_created").Str("job", is.Name).Str("id", is.ID.String()).Uint32("world", is.Layout.World).Str("phase", is.Phase.String()).Msg("job known")
		return
	}
	for _, f := range is.Faults {
		if !slices.Contains(was.Faults, f) {
			e := jobEvent(j.z.Load().Warn().Str("event", "fault"), is).Uint64("fault_epoch", uint64(f.Epoch)).Str("kind", f.Kind.String()).Str("detail", f.Detail)
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
			jobEvent(j.z.Load().Warn().Str("event", "quarantined"), is).Str("node", string(n)).Msg("node quarantined for the job")
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
			Str("reason", p.Reason).Uint64("steps_lost", uint64(p.StepsLost)).Uint64("committed_lost", uint64(p.CommittedLost)).Bool("unvouched", p.Unvouched).Bool("initial", p.Initial).Msg("plan applied")
		if text := p.WentBack(); text != "" {
			jobEvent(j.z.Load().Warn().Str("event", "went_back"), is).Uint64("steps", uint64(p.CommittedLost)).Msg("the job " + text)
		}
		if p.Unvouched {
			jobEvent(j.z.Load().Warn().Str("event", "unvouched"), is).Str("generation", p.Generation.String()).
				Msg("the job goes on from a state that one rank alone vouches for: no state of two ranks is near enough (--lone-ahead, --require-votes): " + p.Reason)
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
	if held := is.Held(); is.Copies != was.Copies || is.Committed == was.Committed && held != was.Held() {
		jobEvent(j.event("copies"), is).Int("copies", held).Bool("degraded", is.Degraded || held < is.Copies).Msg("copies changed")
	}
	if is.Phase == replica.Ended && was.Phase != replica.Ended {
		jobEvent(j.event("ended"), is).Str("reason", is.EndReason).Msg("job ended")
	}
}

// disputed logs different roots of one generation: who reported which, in the same order, and who is suspect.
func (j *Journal) disputed(job *replica.Job, d replica.Dispute) {
	var ranks []replica.Rank
	var nodes, roots []string
	for _, v := range d.Votes {
		ranks, nodes, roots = append(ranks, v.Rank), append(nodes, string(v.Node)), append(roots, v.Root.String())
	}
	jobEvent(j.z.Load().Warn().Str("event", "dispute"), job).Uint32("group", uint32(d.Group)).Uint64("step", uint64(d.Generation.Step)).Str("generation", d.Generation.String()).
		Interface("ranks", ranks).Strs("nodes", nodes).Strs("roots", roots).Interface("suspects", d.Suspects).Bool("majority", d.Majority()).Msg("ranks of a group report different roots; epoch closed")
}

func (j *Journal) Fenced(job *replica.Job) {
	jobEvent(j.event("fenced"), job).Uint64("closed", uint64(job.ClosedEpoch)).Msg("every survivor fenced and settled")
}

// Offered says that so many ranks were offered to a node at once, of which the first is named.
func (j *Journal) Offered(job *replica.Job, first replica.Rank, ranks int, n replica.NodeName) {
	jobEvent(j.event("offered"), job).Uint32("rank", uint32(first)).Int("ranks", ranks).Str("node", string(n)).Msg("ranks offered")
}

// Excluded logs what was taken out of a job's history for good, and on whose word.
func (j *Journal) Excluded(job *replica.Job, c replica.Command) {
	switch c := c.(type) {
	case replica.Condemn:
		jobEvent(j.z.Load().Warn().Str("event", "condemned"), job).Str("generation", c.Generation.String()).Str("reason", c.Reason).Msg("generation condemned: its bytes are bad")
	case replica.ProveLost:
		jobEvent(j.z.Load().Warn().Str("event", "proved_lost"), job).Str("node", string(c.Holder.Node)).Str("reason", c.Why).Msg("memory of the node recorded as lost")
	}
}

func (j *Journal) Note(job *replica.Job, n recovery.Note) {
	e := jobEvent(j.event("note"), job).Str("code", n.Code).Str("text", n.Text)
	for k, v := range n.Fields {
		e = e.Str("note_"+k, v)
	}
	e.Msg("recovery note")
}

func (j *Journal) Note2(job *replica.Job, code, text string) {
	jobEvent(j.event("note"), job).Str("code", code).Str("text", text).Msg("note")
}

// Raft passes on what the library warns of: elections and lost peers among them, which are no failures. It says so again with
// each try; of one kind of line about one peer the log has one in a while, and the rest at debug.
func (j *Journal) Raft(bad bool, msg string, args ...any) {
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

// NoLeader says what it means that no leader is heard, and which voters do not vote; where none of them is known to, who is needed.
func (j *Journal) NoLeader(since time.Duration, voters []config.Voter, notVoting []string) (remedy string) {
	names := make([]string, len(voters))
	for i, v := range voters {
		names[i] = string(v.Name)
	}
	remedy = fmt.Sprintf("%d of the %d voters must run and reach each other, and this node must reach them", len(voters)/2+1, len(voters))
	if len(notVoting) > 0 {
		remedy = strings.Join(notVoting, "; ")
	}
	j.z.Load().Warn().Str("event", "no_leader").Dur("since_ms", since).Strs("voters", names).Str("remedy", remedy).Msg("no leader: nothing is committed, and no lost rank is replaced; training goes on")
	return remedy
}

func (j *Journal) LeaderAgain(leader replica.NodeName, after time.Duration) {
	j.event("leader_again").Str("leader", string(leader)).Dur("after_ms", after).Msg("there is a leader again: commits go on")
}

// Stalled is the stall alarm: training goes on and no step is committed.
func (j *Journal) Stalled(job *replica.Job, since time.Duration, waiting []string) {
	jobEvent(j.z.Load().Warn().Str("event", "stalled"), job).Uint64("step", uint64(job.Position.Step)).Dur("since_ms", since).Strs("waiting", waiting).Msg("no commit for longer than stall_alarm")
}

func (j *Journal) NodeState(n replica.NodeName, state string) {
	j.event("node_state").Str("node", string(n)).Str("state", state).Msg("node state")
}

func (j *Journal) Skipped(job *replica.Job, path, reason string) {
	jobEvent(j.event("durable_skipped"), job).Str("path", path).Str("reason", reason).Msg("durable generation skipped")
}

// CommitWaits logs a commit that some nodes have answered and others hold up.
func (j *Journal) CommitWaits(job *replica.Job, nodes []string, steps replica.Step, since time.Duration, waiting []string) {
	jobEvent(j.z.Load().Warn().Str("event", "commit_waits"), job).Strs("nodes", nodes).Uint64("step", uint64(job.Position.Step)).Uint64("uncommitted", uint64(steps)).Dur("since_ms", since).Strs("waiting", short(waiting)).Msg("the next commit waits for these nodes")
}

// AtRisk logs that one more fault may cost many steps.
func (j *Journal) AtRisk(job *replica.Job, steps replica.Step, waiting []string) {
	jobEvent(j.z.Load().Warn().Str("event", "at_risk"), job).Uint64("step", uint64(job.Position.Step)).Uint64("uncommitted", uint64(steps)).Strs("waiting", short(waiting)).Msg("another fault may cost the steps since the last commit")
}

// CommitStalled says that a job trains and nothing of it is committed, which part waits for whom, and what was done about it.
func (j *Journal) CommitStalled(job *replica.Job, s recovery.Stall) {
	e := jobEvent(j.z.Load().Warn().Str("event", "commit_stalled"), job).Uint64("step", uint64(s.Step)).Uint64("uncommitted", uint64(s.Steps)).Dur("since_ms", s.Since)
	if len(s.Gaps) > 0 {
		g := s.Gaps[0]
		e = e.Str("part", g.Part.String()).Str("node", string(g.Node)).Interface("holders", g.Holders).Str("why", g.Why).Str("moved_to", string(g.To))
	}
	e.Msg(s.String())
}

// CommitsAgain says that a stall is over.
func (j *Journal) CommitsAgain(job *replica.Job, after time.Duration) {
	jobEvent(j.event("commits_again"), job).Uint64("step", uint64(job.Position.Step)).Dur("after_ms", after).Msg("commits go on")
}

// short is the first of many reasons: with a thousand ranks a line must stay a line.
func short(reasons []string) []string {
	const most = 8
	if n := len(reasons); n > most {
		return append(slices.Clone(reasons[:most]), fmt.Sprintf("and %d more", n-most))
	}
	return reasons
}

// SlowStep says what held the leader up, beyond the budget of one step.
func (j *Journal) SlowStep(what, job string, took, budget time.Duration) {
	j.again(&j.retries, "step "+what+" "+job, zerolog.WarnLevel).Str("event", "slow_step").Str("what", what).Str("job", job).Int64("took_ms", took.Milliseconds()).Int64("budget_ms", budget.Milliseconds()).
		Msg("a step of the leader took longer than its budget; all jobs waited for it")
}

func (j *Journal) Refused(c replica.Command, err error) {
	j.z.Load().Debug().Str("event", "refused").Str("command", fmt.Sprintf("%T", c)).Err(err).Msg("proposal refused")
}

func (j *Journal) Failed(what, subject, why string) {
	j.z.Load().Warn().Str("event", "failed").Str("what", what).Str("subject", subject).Str("why", why).Msg("failed")
}

// Rotted says that a copy which was sealed here has changed since.
func (j *Journal) Rotted(job *replica.Job, part replica.Part, g replica.Generation, arena string, why error) {
	jobEvent(j.z.Load().Warn().Str("event", "rotten_copy"), job).Str("part", part.String()).Str("generation", g.String()).Str("subject", arena).Str("why", why.Error()).
		Str("remedy", "check this node's memory: ECC errors in the kernel's log").Msg("a sealed copy does not hash to its digests any more: it is given up")
}

// Retried is failed for what is tried again several times a second for as long as it fails.
func (j *Journal) Retried(what, subject, why string) {
	j.again(&j.retries, what+" "+subject+" "+why[:min(len(why), 60)], zerolog.WarnLevel).Str("event", "failed").Str("what", what).Str("subject", subject).Str("why", why).Msg("failed")
}

// again is a line of a kind that repeats: one in a while at its level, the rest at debug.
func (j *Journal) again(of *limiter, kind string, level zerolog.Level) *zerolog.Event {
	ok, held := of.due(kind, time.Now())
	if !ok {
		return j.z.Load().Debug()
	}
	e := j.z.Load().WithLevel(level)
	if held > 0 {
		e = e.Int("like_it_since_the_last", held)
	}
	return e
}

func (j *Journal) Warn(err error) {
	j.z.Load().Warn().Str("event", "config").Str("why", err.Error()).Msg("configuration warning")
}

// KeeperLost says that the keeper has gone, and whether another one is looked for.
func (j *Journal) KeeperLost(another bool) {
	remedy := "restart the daemon when convenient"
	if another {
		remedy = "none while another keeper takes its place: until keeper_back, ranks' memory does not survive this daemon"
	}
	j.z.Load().Error().Str("event", "keeper").Str("remedy", remedy).Msg("the keeper has ended, or serves another daemon; training goes on")
}

// KeeperBack says that a keeper has taken the place of the one that went, and how many arenas and records it was given.
func (j *Journal) KeeperBack(held int) {
	j.z.Load().Info().Str("event", "keeper_back").Int("descriptors", held).Msg("another keeper holds the memory of this node's ranks")
}

func (j *Journal) Claimed(job *replica.Job, r replica.Rank, inc replica.Incarnation, n replica.NodeName, pid int) {
	jobEvent(j.event("claimed"), job).Uint32("rank", uint32(r)).Uint64("incarnation", uint64(inc)).Str("node", string(n)).Int("pid", pid).Msg("rank attached")
}

func (j *Journal) Reattached(job *replica.Job, r replica.Rank, pid int) {
	jobEvent(j.event("reattached"), job).Uint32("rank", uint32(r)).Int("pid", pid).Msg("rank attached again")
}

func (j *Journal) Adopted(job *replica.Job, r replica.Rank, pid int, alive bool) {
	jobEvent(j.event("adopted"), job).Uint32("rank", uint32(r)).Int("pid", pid).Bool("alive", alive).Msg("arena adopted")
}

func (j *Journal) RankDied(job *replica.Job, r replica.Rank, pid int, w replica.Word, left bool) {
	e := j.event("rank_died")
	if !left {
		e = j.z.Load().Warn().Str("event", "rank_died")
	}
	jobEvent(e, job).Uint32("rank", uint32(r)).Int("pid", pid).Uint64("step", uint64(w.Step())).Str("phase", w.Phase().String()).Bool("left", left).Msg("rank's process exited")
}

func (j *Journal) RankNote(job *replica.Job, r replica.Rank, code, text string) {
	jobEvent(j.event("note"), job).Uint32("rank", uint32(r)).Str("code", code).Str("text", text).Msg("note")
}

func (j *Journal) RefusedRank(job string, r replica.Rank, pid int, why string) {
	j.event("rank_refused").Str("job", job).Uint32("rank", uint32(r)).Int("pid", pid).Str("why", why).Msg("rank refused")
}

// RefusedLauncher says why a launcher gets no ranks here.
func (j *Journal) RefusedLauncher(job string, user, pid int, why string) {
	j.event("launcher_refused").Str("job", job).Int("user", user).Int("pid", pid).Str("why", why).Msg("launcher refused")
}

// TurnedAway says whom the socket for ranks and launchers refused; others: how often it did so since the last that it told of, of the same user.
func (j *Journal) TurnedAway(user, pid, others int, why string) {
	j.z.Load().Warn().Str("event", "turned_away").Int("user", user).Int("pid", pid).Int("others", others).Str("why", why).Msg("refused at the socket")
}

func (j *Journal) Exited(job string, r replica.Rank, pid uint64, status int32) {
	j.event("process_exited").Str("job", job).Uint32("rank", uint32(r)).Uint64("pid", pid).Int32("status", status).Msg("launcher's process exited")
}

func (j *Journal) StartFailed(job *replica.Job, r replica.Rank, status int32, tries, of int) {
	j.z.Load().Warn().Str("event", "start_failed").Str("job", job.Name).Uint32("rank", uint32(r)).Int32("status", status).Int("in_a_row", tries).Int("of", of).Msg("process ended before it attached")
}

// Transferred is how a part came to a rank.
type Transferred struct {
	Part          replica.Part
	Epoch         replica.Epoch
	Tier          replica.Tier
	Bytes, Reused uint64
	By            map[replica.NodeName]uint64 // bytes, by who sent them
	Failed        map[replica.NodeName]string // who was set aside, and why
	Took          time.Duration
}

// Fetching says that chunks of a part are asked for from now on.
func (j *Journal) Fetching(job *replica.Job, r replica.Rank, part replica.Part, epoch replica.Epoch, bytes uint64, holders []replica.Holder) {
	from := zerolog.Arr()
	for _, h := range holders {
		from = from.Str(string(h.Node))
	}
	j.event("fetching").Str("job", job.Name).Uint64("epoch", uint64(epoch)).Uint32("rank", uint32(r)).Str("part", part.String()).Uint64("bytes", bytes).Array("holders", from).Msg("part is being fetched")
}

func (j *Journal) Moved(job *replica.Job, r replica.Rank, t Transferred) {
	by := zerolog.Dict()
	for n, b := range t.By {
		by = by.Uint64(string(n), b)
	}
	e := j.event("moved").Str("job", job.Name).Uint64("epoch", uint64(t.Epoch)).Uint32("rank", uint32(r)).Str("part", t.Part.String()).Str("tier", t.Tier.String()).
		Uint64("bytes", t.Bytes).Uint64("reused", t.Reused).Dict("by", by).Int64("took_us", t.Took.Microseconds())
	for n, why := range t.Failed {
		e = e.Str("set_aside_"+string(n), why)
	}
	e.Msg("part moved")
}

func (j *Journal) Verified(job *replica.Job, r replica.Rank, part replica.Part, epoch replica.Epoch) {
	j.event("verified").Str("job", job.Name).Uint64("epoch", uint64(epoch)).Uint32("rank", uint32(r)).Str("part", part.String()).Msg("part verified against the plan's root")
}

func (j *Journal) PushFailed(part replica.Part, g replica.Generation, to replica.NodeName, err error) {
	j.again(&j.retries, "push "+part.String()+" "+string(to), zerolog.WarnLevel).Str("event", "mirror_failed").Str("part", part.String()).Str("generation", g.String()).Str("node", string(to)).Err(err).Msg("private part not mirrored")
}

// CommitLag keeps a figure for status and logs it.
func (j *Journal) CommitLag(job *replica.Job, lag time.Duration) {
	j.mu.Lock()
	if len(j.lags) == keptLags {
		j.lags = append(j.lags[:0], j.lags[1:]...)
	}
	j.lags = append(j.lags, lag)
	j.mu.Unlock()
	jobEvent(j.each("commit_seen"), job).Uint64("step", uint64(job.Position.Step)).Int64("lag_us", lag.Microseconds()).Msg("commit seen")
}

// CommitSpell is what the log's one line on the commits of some seconds says.
type CommitSpell struct {
	said  time.Time // when the line before was written
	step  replica.Step
	count int
	worst time.Duration // lag
}

const commitsEach = 10 * time.Second // between two lines on a job's commits

// CommitsSeen adds a commit to the spell, and writes the line when the spell is over; the first commit of a job is one at once.
func (j *Journal) CommitsSeen(job *replica.Job, s *CommitSpell, lag time.Duration, now time.Time) {
	if s.step != job.Position.Step { // each local rank tells of it
		s.count++
	}
	s.step, s.worst = job.Position.Step, max(s.worst, lag)
	if !s.said.IsZero() && now.Sub(s.said) < commitsEach {
		return
	}
	jobEvent(j.event("commits"), job).Int("count", s.count).Uint64("step", uint64(s.step)).Int64("worst_lag_us", s.worst.Microseconds()).Msg("steps committed")
	*s = CommitSpell{said: now, step: s.step}
}

// Lag returns the p50 and p99 of the newest commit lags.
func (j *Journal) Lag() (p50, p99 time.Duration) {
	j.mu.Lock()
	s := slices.Clone(j.lags)
	j.mu.Unlock()
	if len(s) == 0 {
		return 0, 0
	}
	slices.Sort(s)
	return s[len(s)/2], s[len(s)*99/100]
}

// What follows is said at debug alone.

func (j *Journal) Candidate(c replica.Candidate) {
	j.z.Load().Debug().Str("event", "candidate").Uint64("term", c.Term).Uint64("n", c.N).Str("generation", c.Generation.String()).Msg("candidate named")
}

func (j *Journal) Pinned(by replica.NodeName, p replica.Pinned) {
	e := j.z.Load().Debug()
	if !e.Enabled() {
		return // a job of thousands of ranks says so thousands of times a commit, and to write its parts takes longer than to count them
	}
	e.Str("event", "pinned").Str("node", string(by)).Uint64("n", p.N).Str("generation", p.Generation.String()).Str("parts", fmt.Sprint(p.Parts)).Msg("pins")
}

func (j *Journal) Passed(by replica.NodeName, p replica.Passed) {
	j.z.Load().Debug().Str("event", "passed").Str("node", string(by)).Uint64("n", p.N).Uint32("rank", uint32(p.Rank)).Str("live", p.Live.String()).Str("holds", fmt.Sprint(p.Holds)).Msg("rank passed the candidate")
}

func (j *Journal) Pushed(part replica.Part, g replica.Generation, to replica.NodeName, took time.Duration, err error) {
	j.z.Load().Debug().Str("event", "pushed").Str("part", part.String()).Str("generation", g.String()).Str("node", string(to)).Int64("took_us", took.Microseconds()).Err(err).Msg("part pushed to a mirror")
}

func (j *Journal) Unreached(from replica.NodeName, to []replica.NodeName, part replica.Part, fetch bool, why string) {
	j.z.Load().Debug().Str("event", "unreached").Str("node", string(from)).Str("to", fmt.Sprint(to)).Str("part", part.String()).Bool("fetch", fetch).Str("why", why).Msg("parts can't be fetched")
}
