package host

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// What the launchers here print of their job: the memory that its copies take, a loss and its recovery, what a restart does not mend, a rank that ended and did not leave.

// outage is a closed epoch, as this node saw it close.
type outage struct{ began time.Time }

// outages says the loss that closed an epoch, and later how the job came out of it. What the two lie apart is this node's own time.
func (h *Host) outages(lj *localJob, was *replica.Job) {
	is := lj.job
	switch {
	case is.Phase == replica.Open && (was.Phase != replica.Open || was.Epoch != is.Epoch):
		from, took := h.restores.Brought(is.ID, is.Epoch)
		if text := lj.recovered(from); text != "" {
			h.noteAll(lj, text)
		}
		if p := is.Plan; p != nil && p.Resumed != "" {
			text := "resumed: " + p.Resumed
			if from != 0 {
				text += fmt.Sprintf("; loaded in %.1f s", took.Seconds())
			}
			h.noteAll(lj, text)
		}
		lj.outage = nil
	case over(is):
		lj.outage = nil
	case is.Growth != nil: // nothing is lost with the epoch that it closes: sayGrowth
	case (was.Phase == replica.Open || was.Growth != nil) && is.ClosedEpoch >= was.Epoch && lj.outage == nil:
		lj.outage = &outage{began: time.Now()}
		h.noteAll(lj, lossText(is))
	}
}

// lossText says why an epoch was closed, and what else is going to be printed because of it.
func lossText(job *replica.Job) string {
	why := differText(job)
	if len(job.Faults) > 0 && why == unnamed { // a fault of the rank that is outvoted comes with the dispute
		f := job.Faults[0]
		who := fmt.Sprintf("rank %d", f.Rank)
		if f.OfNode() {
			who = fmt.Sprintf("node %s", f.Node)
		}
		detail, _, _ := strings.Cut(f.Detail, "\n")
		if why = fmt.Sprintf("%s: %v", who, f.Kind); detail != "" {
			why += ", " + clip(detail)
		}
	}
	return fmt.Sprintf("epoch %d is closed (%s); recovering. Tracebacks of collectives that break now are expected", job.ClosedEpoch, why)
}

// unnamed is what is said where nothing on record tells which ranks differ.
const unnamed = "ranks differ"

// differText says which ranks differ, of an epoch that was closed for no fault. In which regions is said once their daemons have compared them.
func differText(job *replica.Job) string {
	i := slices.IndexFunc(job.Disputed, func(d replica.Dispute) bool { return d.Generation.Epoch == job.ClosedEpoch && len(d.Votes) > 0 })
	if i < 0 {
		return unnamed
	}
	d := job.Disputed[i]
	of := "no root has a majority"
	if d.Majority() {
		of = "the others agree"
	}
	return fmt.Sprintf("ranks differ at step %d: %s of group %d, and %s; the regions in which they do are named next", d.Generation.Step, ranksText(d.Suspects), d.Group, of)
}

// ranksText names some ranks.
func ranksText(ranks []replica.Rank) string {
	const most = 8
	list := make([]string, 0, most)
	for _, r := range ranks[:min(len(ranks), most)] {
		list = append(list, fmt.Sprint(r))
	}
	if more := len(ranks) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return plural(replica.Step(len(ranks)), "rank") + " " + strings.Join(list, ", ")
}

// recovered says where the job goes on, from which tier that ranks here needed, and at what cost, which is the plan's to say; empty: this node saw no loss, and no committed step is gone.
func (lj *localJob) recovered(tier replica.Tier) string {
	job := lj.job
	plan := job.Plan
	if plan == nil || lj.outage == nil && plan.CommittedLost == 0 {
		return ""
	}
	if tier == 0 {
		tier = plan.Tier()
	}
	from := map[replica.Tier]string{replica.OwnRAM: "own memory", replica.PeerRAM: "other nodes' memory", replica.Disk: "disk"}[tier]
	text := fmt.Sprintf("recovered: step %d from %s, %d %s lost", job.Position.Step, from, plan.StepsLost, plural(plan.StepsLost, "step"))
	if lj.outage != nil {
		text += fmt.Sprintf(", %.1f s", time.Since(lj.outage.began).Seconds())
	}
	if back := plan.WentBack(); back != "" {
		text += "; warning: the job " + back
	}
	return text
}

// sayBegun tells a launcher that names what its job begins with when that is read: from the first commit on the job goes by its own state.
func (h *Host) sayBegun(l *launcher, job *replica.Job) {
	if l.hello.From != nil && !l.begun && !job.Committed.IsZero() {
		l.begun = true
		l.peer.Send(wire.RankHeader{Type: wire.MRunBegun, Epoch: job.Epoch}, nil) //nolint:errcheck // a dead peer is Gone
	}
}

// sayOrigin has a launcher that joins a job print what that began with, before it is accepted: `replicad exec` waits for no more than that.
func (h *Host) sayOrigin(l *launcher, job *replica.Job) {
	switch from := job.From; {
	case from == nil || l.hello.Joined != (replica.JobID{}): // it was told when it came first
	case adopted(job): // --resume has found a state of the job's own: the leader says so
	case job.Committed.IsZero():
		l.note(job.Epoch, fmt.Sprintf("from: %v (world %d, now %d)", from, from.World, job.Layout.World))
	default:
		l.note(job.Epoch, fmt.Sprintf("from: the job began with %v, and goes on from its own state since (step %d)", from, job.Position.Step))
	}
}

// origin tells a process what its job began with, as JSON; an empty text: with the program's own state.
func (h *Host) origin(ev session.From) {
	lj, lr := h.rankOf(ev.Peer)
	if a := h.attaching[ev.Peer.ID()]; lj == nil && a != nil {
		lj = h.jobNamed(a.hello.Job)
	}
	if lj == nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet")
		return
	}
	text, known := originFor(lj.job, lr)
	if !known {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "not all ranks have named their groups yet")
		return
	}
	ev.Peer.Send(wire.RankHeader{Type: wire.MFromIs, Request: ev.Header.Request, Epoch: lj.job.Epoch}, text) //nolint:errcheck // a dead peer is Gone
}

// originFor is the text for a process; it is not known yet who of a rank's group loads while ranks are still naming their groups. lr is nil for a
// process that has not attached.
func originFor(job *replica.Job, lr *localRank) (text []byte, known bool) {
	switch {
	case job.From == nil:
		return nil, true
	case lr == nil:
		return job.From.JSON(nil), true
	case int(lr.rank) >= len(job.Layout.Groups):
		return nil, false
	}
	leads := job.Layout.Leads(lr.rank)
	return job.From.JSON(&leads), true
}

// sayResumed tells a rank which durable generation its job goes on from, as launchers were told.
func (h *Host) sayResumed(ev session.Resumed) {
	text := ""
	if lj, _ := h.rankOf(ev.Peer); lj != nil && lj.job.Plan != nil {
		text = lj.job.Plan.Resumed
	}
	ev.Peer.Send(wire.RankHeader{Type: wire.MResumedIs, Request: ev.Header.Request}, []byte(replica.Cut(text, wire.MaxRefusedText))) //nolint:errcheck // a dead peer is Gone
}

func plural(n replica.Step, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// sayLacks says, at a commit, what copies of ranks here lack.
func (h *Host) sayLacks(lj *localJob) {
	for _, l := range lj.lacks.Committed(lj.job.Committed) {
		h.noteAll(lj, fmt.Sprintf("step %d lacks %s (%s): a restart from it is not the same run; session.noticed says what to do", lj.job.Position.Step, clip(l.Text), l.Who()))
	}
}

// saySaid tells the leader what ranks and launchers here say of the generation that is being written.
func (h *Host) saySaid(lj *localJob) {
	if list, news := lj.said.Report(lj.job); news {
		h.send(control.SaidReport{Job: lj.job.ID, Number: lj.job.Writer.Number, Said: list})
	}
}

// failure is an exception that a rank reported, as far as it can be told from another one.
type failure struct {
	epoch replica.Epoch
	step  replica.Step
	text  string
}

// maxFailures bounds what is remembered of a rank's exceptions in one step.
const maxFailures = 8

var addresses = regexp.MustCompile(`0x[0-9a-fA-F]+`)

// failed passes an exception on, and says at once where it is the one that ended an earlier epoch at the same step: no restart mends it.
func (h *Host) failed(lj *localJob, lr *localRank, ev session.Fail) {
	h.send(control.Evidence{Job: lj.job.ID, Fault: replica.Fault{Epoch: ev.Header.Epoch, Kind: replica.Exception, Rank: lr.rank, Incarnation: lr.incarnation, Detail: ev.Text}})
	word := lr.arena.Step()
	step := word.Step()
	if word.Phase() == replica.Idle {
		step++ // it is on its way to the next one
	}
	is := failure{ev.Header.Epoch, step, addresses.ReplaceAllString(ev.Text, "0x...")}
	before := slices.DeleteFunc(lj.failures[lr.rank], func(f failure) bool { return f.step != step })
	again := slices.ContainsFunc(before, func(f failure) bool { return f.text == is.text && f.epoch != is.epoch })
	if !slices.Contains(before, is) {
		before = append(before, is)
	}
	lj.failures[lr.rank] = before[max(0, len(before)-maxFailures):]
	if !again {
		return
	}
	first, _, _ := strings.Cut(ev.Text, "\n")
	text := fmt.Sprintf("rank %d: the same exception at step %d as before the last restart: %s", lr.rank, step, clip(first))
	h.log.RankNote(lj.job, lr.rank, "same_exception", text)
	h.noteAll(lj, text+"; it will come again each time: end the job (replicad job end "+lj.job.Name+") and mend the program")
}

// clip cuts a text for one line.
func clip(text string) string {
	const most = 300
	if len(text) > most {
		text = replica.Cut(text, most) + "..."
	}
	return text
}

// endedBy judges the status of a process: success is none where the rank has not left, and after wire.StatusFinal no new process is started.
func (h *Host) endedBy(lj *localJob, l *launcher, x wire.RunExited) {
	if over(lj.job) {
		return
	}
	lr := lj.ranks[x.Rank]
	held := lr != nil && uint64(lr.pid) == x.PID
	switch {
	case x.Status == wire.StatusFinal && (held || l.starts.of(x.Rank).attached):
		h.endForGood(lj, x.Rank, fmt.Sprintf("rank %d on node %s ended with status %d, which means that a new process would only end the same way; its own output has the reason", x.Rank, h.self.Name, x.Status))
	case x.Status == wire.StatusFinal:
		why := fmt.Sprintf("the program for rank %d on node %s ended with status %d before it had the rank, which means that a new process would only end the same way", x.Rank, h.self.Name, x.Status)
		if text := l.starts.of(x.Rank).refused; text != "" {
			why += ": " + text
		}
		h.unfit(lj, l, x.Rank, why)
	case x.Status == wire.StatusWant && (held || l.starts.of(x.Rank).attached):
		h.short(lj, x.Rank, want.Something, fmt.Sprintf("process %d of rank %d ended with status %d", x.PID, x.Rank, x.Status))
	case x.Status == 0 && held && !lr.left():
		h.noteAll(lj, fmt.Sprintf("rank %d: process %d ended with status 0 and has not left the job, so it is started again: a program that has finished must leave (session.leave(), rp_leave)", x.Rank, x.PID))
	}
}

// noteAll has the launchers of a job here print something.
func (h *Host) noteAll(lj *localJob, text string) {
	for _, l := range h.launchers {
		if l.accepted && !l.done && l.job == lj.job.ID {
			l.note(lj.job.Epoch, text)
		}
	}
}

// saidMemory is the size of an arena from which on its launchers are told of it.
const saidMemory = 256 << 20

// sayMemory says, once to each launcher and before a page is touched, what each rank's copies take.
func (h *Host) sayMemory(lj *localJob, spec shm.Spec) {
	bytes, err := spec.Bytes()
	if err != nil || bytes < saidMemory {
		return
	}
	text := fmt.Sprintf("a rank's copies take %d MiB of this node's memory: %d slots of %d MiB, and what is kept once or is the rank's own", mib(bytes), spec.Slots, mib(spec.Geometry.ReplicatedBytes))
	if fewer := spec; spec.Slots > 2 {
		fewer.Slots = 2
		if less, err := fewer.Bytes(); err == nil {
			text += fmt.Sprintf("; with --slots 2 they take %d MiB", mib(less))
		}
	}
	for _, l := range h.launchers {
		if l.accepted && !l.done && l.job == lj.job.ID && !l.memory {
			l.memory = true
			l.note(lj.job.Epoch, text)
		}
	}
}

// fewerSlots adds to the refusal of an arena that does not fit that one with two slots would.
func fewerSlots(spec shm.Spec, err error) error {
	short := new(shm.TooLittleMemory)
	if !errors.As(err, &short) || spec.Slots <= 2 {
		return err
	}
	all, whole := spec.Bytes()
	spec.Slots = 2
	two, half := spec.Bytes()
	if errors.Join(whole, half) != nil || two > short.Have+all-min(all, short.Need) { // what was reserved before it fell short is given back
		return err
	}
	return fmt.Errorf("%w; with two slots it needs %d MiB, which fits: start the job anew with `replicad run --slots 2` (a step is then captured only when the one before is committed)", err, mib(two))
}

func mib(bytes uint64) uint64 { return (bytes + 1<<20 - 1) >> 20 }
