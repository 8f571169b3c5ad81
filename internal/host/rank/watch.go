package rank

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// HaltedAfter is for how long a rank stands still before its node takes it to rest, and looks whether a signal has stopped it.
const HaltedAfter = 2 * time.Second

// Watch follows one rank by its step word. It reads neither the clock nor the kernel: the node passes in what they say, and the time since
// any fixed moment.
type Watch struct {
	Pulse  recovery.Pulse
	Word   replica.Word // that was looked at last
	Hung   bool         // stood still at it for longer than it may
	Halted bool         // while it has to go on: its process is stopped by a signal
}

// Look takes in the step word of a rank that trains, and tells whether the rank hangs.
func (w *Watch) Look(now time.Duration, word replica.Word, limits recovery.HangLimits) (hung bool) {
	w.Word = word
	w.Pulse.Look(now, word)
	return w.Pulse.Hung(now, limits)
}

// Hangs tells whether the rank hangs, whose step word is this now. What was found at another word says nothing: the rank has gone on since, in a
// new epoch for example, where it would be killed for having waited in the one before.
func (w *Watch) Hangs(word replica.Word) bool { return w.Hung && w.Word == word }

// Found keeps what a look has found, and tells whether a report is due for it.
func (w *Watch) Found(hung, halted bool) (due bool) {
	due = hung != w.Hung || halted != w.Halted
	w.Hung, w.Halted = hung, halted
	return due
}

// Pause takes the rank's word that it stands still on purpose, for at most so long; 0 ends it.
func (w *Watch) Pause(now time.Duration, word replica.Word, most time.Duration) {
	w.Pulse.Look(now, word) // the pause is of the epoch that the rank is in, which nobody may have looked at yet
	w.Pulse.Pause(now, most)
}

// UnderWay tells whether the rank loaded what the job's open epoch goes on from, and has not finished. One that has stopped since broke off.
// Whether the rank was let go too, a daemon that starts again learns only as the rank attaches again, which a process that is stopped never does.
func (lr *Rank) UnderWay(job *replica.Job) bool {
	return job.Phase == replica.Open && lr.Alive() && lr.Loaded == job.Epoch && !lr.Left()
}

// Rests is true where the rank has made no step for a while. It may wait for a commit, and the commit of a step to come would wait for it.
// Both would stand still, until the rank is killed for that. How long its steps take does not count: a program that waits for each commit
// would wait twice as long each time. A rank in a long step has by this only what it holds already committed sooner.
func (lr *Rank) Rests(now time.Duration) bool {
	return lr.Word == lr.Arena.Step() && lr.Pulse.Still(now) >= HaltedAfter
}

// Beats looks at the rank's step word, and tells whether a report is due for what was found. halted asks the kernel.
func (lr *Rank) Beats(now time.Duration, job *replica.Job, limits recovery.HangLimits, halted func() bool) (due bool) {
	trains := lr.UnderWay(job) && !lr.Stopped()
	hung := trains && lr.Look(now, lr.Arena.Step(), limits)
	is := lr.Halted
	if job.Phase == replica.Open { // else it is a matter of its progress
		still := hung || trains && lr.Pulse.Still(now) >= HaltedAfter
		is = still && halted() // it is named, and of a hang it breaks the tie of all that wait for it
	}
	return lr.Found(hung, is)
}

// StepTimes sums up the steps of a job's ranks on a node.
type StepTimes struct {
	Is     control.StepMS
	Any    bool // a rank trains here, or broke off
	trains bool // Still is that of a rank
}

// Count takes in a rank.
func (s *StepTimes) Count(now time.Duration, job *replica.Job, lr *Rank) {
	switch {
	case !lr.UnderWay(job):
	case lr.Stopped():
		s.broke()
	default:
		s.add(now, lr.Arena.Step(), &lr.Watch)
	}
}

// broke counts a rank that was let go, and has stopped for want of its peers.
func (s *StepTimes) broke() { s.Is.Broken, s.Any = true, true }

// add counts a rank that trains: the node's ranks have stood still for as long as the one that moved last, and are as slow as the slowest.
func (s *StepTimes) add(now time.Duration, word replica.Word, w *Watch) {
	w.Pulse.Look(now, word)
	still := uint64(w.Pulse.Still(now).Milliseconds())
	if !s.trains || still < s.Is.Still {
		s.Is.Still = still
	}
	s.Is.Pace = max(s.Is.Pace, uint64(w.Pulse.Pace().Milliseconds()))
	s.Any, s.trains = true, true
}
