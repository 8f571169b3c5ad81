package job

import (
	"time"

	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/replica"
)

// A step of the upkeep brings one thing in line with the job's record. It is idempotent.
type step struct {
	what string
	do   func(*Job)
	why  string // it is where it is
}

// upkeep is what Reconcile does, in this order. A step may count on what those before it have done.
var upkeep = []step{
	{"clocks", func(j *Job) { j.clocks.Follow(j.at.Node.Up(), j.Job) }, "first: what follows is timed by them"},
	{"fence", Fence, "before anybody is told of a closed epoch, or anything of it is aborted: nothing may be sealed under it"},
	{"hung", KillHung, "behind the fence: a hung process that goes on as it is killed seals nothing"},
	{"supersede", Supersede, "behind the kills, and before the rooms: they see the arenas of ranks that went elsewhere as retired"},
	{"growing", func(j *Job) { j.at.Node.Notify(j.at.Growing, act.Changed{Job: j.Job.ID}) }, "before orders: a grown rank begins in its new arena"},
	{"restores", func(j *Job) { j.at.Node.Notify(j.at.Restores, act.Changed{Job: j.Job.ID}) }, "before orders: a rank loads what lies here"},
	{"mirrors", func(j *Job) { j.at.Node.Notify(j.at.Mirrors, act.Changed{Job: j.Job.ID}) }, "behind the restores of ranks, which somebody waits for"},
	{"orders", Order, "behind all that an order rests on"},
	{"remarks", func(j *Job) { j.remarks.Learn(j.Job); sayRemarks(j) }, "before the reports of what is written, which count on them"},
	{"writer", func(j *Job) { j.at.Node.Notify(j.at.Writer, act.Changed{Job: j.Job.ID}) }, "before pins: what is written holds its place"},
	{"candidate", (*Job).AnswerCandidate, "before anything is freed: what a commit waits for is pinned"},
	{"retain", (*Job).Retain, "behind pins and writes: what they hold stays"},
	{"lacks", func(j *Job) { j.lacks.Learn(j.Job) }, "before the report, which has them"},
	{"report", (*Job).Report, "last: it says what has come of all that"},
	{"check", func(j *Job) {
		if invariant.On {
			j.Check()
		}
	}, "what is kept must hold together now"},
}

// Reconcile brings everything local in line with the job's replicated state. It is idempotent; every view calls it, and whatever happens
// locally that could make an order, a restore or a pin possible.
func (j *Job) Reconcile() {
	for _, s := range upkeep {
		s.do(j)
	}
}

// Wake looks at the job again.
func (j *Job) Wake(depth act.Depth) {
	switch {
	case depth == act.Report:
		j.Report()
	case depth == act.Retain:
		j.Retain()
	case depth == act.Commit && j.Job.Phase == replica.Open && j.Job.Previous == nil:
		j.AnswerCandidate()
		j.Retain()
	default:
		j.Reconcile()
	}
}

// Tick does what no event announces. due: a report is due, whatever has changed. It tells whether something is awaited that sends no event: a
// word of a rank.
func (j *Job) Tick(due bool) (busy bool) {
	busy = Settle(j)
	Reap(j)
	PeersLost(j)
	Pulses(j)
	j.launcher().TakeOffers(j.at.Node.Now())
	if j.Job.Phase == replica.Open {
		j.AnswerCandidate()
	}
	if j.at.Growing.Asks(j.Job.ID) {
		j.at.Node.Notify(j.at.Growing, act.Changed{Job: j.Job.ID}) // no event says that a rank trains on instead of waiting
	}
	if due {
		PollProgress(j)
		j.launcher().Await(j.at.Node.Now())
		SayExposure(j, j.at.Node.Now())
		if takenForDead(j) {
			j.Reported = replica.NodeReport{} // its word of before did not count
		}
		j.Report()
	}
	return busy
}

// Linked repeats to a new leader whatever waits for an answer.
func (j *Job) Linked() {
	j.Reported = replica.NodeReport{}
	j.remarks.Linked()
	sayRemarks(j)
	j.Unlinked(j.at.Node.Now())
	j.repeat() // with the link the leader lost this node's pins
	j.Report()
	j.AnswerCandidate()
}

// Clocks says since when things last, for a new leader. False: there is nothing to say.
func (j *Job) Clocks() (l replica.Ledger, ok bool) {
	l, ok = j.clocks.Word(j.at.Node.Up(), j.Job.ID)
	return l, ok && j.Job.Phase != replica.Ended
}

// TakeClocks keeps what a leader has handed out of the job's clocks.
func (j *Job) TakeClocks(l replica.Ledger) { j.clocks.Take(j.at.Node.Up(), l) }

// Follow takes over the record that the leader has now. The rooms and the launchers learn of it; Reconcile follows once all jobs have theirs.
func (j *Job) Follow(record *replica.Job) {
	if record.LastIndex < j.Job.LastIndex {
		return
	}
	if j.Job.Phase == replica.Ended && record.Phase != replica.Ended {
		j.Reported = replica.NodeReport{} // a new run, of which the leader knows nothing yet
	}
	was := j.Job
	j.Job = record
	j.launcher().Follow(was, j.at.Node.Now())
	sayGrowth(j, was)
	j.at.Node.Notify(j.at.Push, act.Changed{Job: record.ID, Was: was})
	if was.Position != record.Position || was.Committed != record.Committed { // a commit that came with another change, or a plan that went back
		tellCommitted(j)
	}
}

// Unknown follows that the leader's state of this index lacks the job: it ended while this node was away.
func (j *Job) Unknown(index uint64) {
	if index < j.Job.LastIndex || j.Job.Phase == replica.Ended {
		return
	}
	is := *j.Job
	is.Phase, is.ClosedEpoch, is.Plan, is.Writer, is.LastIndex = replica.Ended, is.Epoch, nil, nil, index
	is.EndReason = "it ended while this node was away"
	j.Job = &is
}

// Told takes in an operator's word to the job's launchers.
func (j *Job) Told(text string, now time.Time) {
	j.exposure.Told(now)
	j.launcher().Note(text)
}
