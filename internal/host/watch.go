package host

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// watch follows one rank by its step word. It reads neither the clock nor the kernel: the host passes in what they say, and the time since
// any fixed moment.
type watch struct {
	pulse  recovery.Pulse
	word   replica.Word // that was looked at last
	hung   bool         // stood still at it for longer than it may
	halted bool         // while it has to go on: its process is stopped by a signal
}

// look takes in the step word of a rank that trains, and tells whether the rank hangs.
func (w *watch) look(now time.Duration, word replica.Word, limits recovery.HangLimits) (hung bool) {
	w.word = word
	w.pulse.Look(now, word)
	return w.pulse.Hung(now, limits)
}

// hangs tells whether the rank hangs, whose step word is this now. What was found at another word says nothing: the rank has gone on since, in a
// new epoch for example, where it would be killed for having waited in the one before.
func (w *watch) hangs(word replica.Word) bool { return w.hung && w.word == word }

// found keeps what a look has found, and tells whether a report is due for it.
func (w *watch) found(hung, halted bool) (due bool) {
	due = hung != w.hung || halted != w.halted
	w.hung, w.halted = hung, halted
	return due
}

// pause takes the rank's word that it stands still on purpose, for at most so long; 0 ends it.
func (w *watch) pause(now time.Duration, word replica.Word, most time.Duration) {
	w.pulse.Look(now, word) // the pause is of the epoch that the rank is in, which nobody may have looked at yet
	w.pulse.Pause(now, most)
}

// stepTimes sums up the steps of a job's ranks on this node.
type stepTimes struct {
	is     control.StepMS
	any    bool // a rank trains here, or broke off
	trains bool // Still is that of a rank
}

// broke counts a rank that was let go, and has stopped for want of its peers.
func (s *stepTimes) broke() { s.is.Broken, s.any = true, true }

// add counts a rank that trains: the node's ranks have stood still for as long as the one that moved last, and are as slow as the slowest.
func (s *stepTimes) add(now time.Duration, word replica.Word, w *watch) {
	w.pulse.Look(now, word)
	still := uint64(w.pulse.Still(now).Milliseconds())
	if !s.trains || still < s.is.Still {
		s.is.Still = still
	}
	s.is.Pace = max(s.is.Pace, uint64(w.pulse.Pace().Milliseconds()))
	s.any, s.trains = true, true
}

// condemned are the faults of a job for which the node of a rank ends its process: the rank hangs, or its group has outvoted it.
func condemned(job *replica.Job) (list []replica.Fault) {
	for _, f := range job.Faults {
		if (f.Kind == replica.Hang || f.Kind == replica.Outvoted) && !f.OfNode() {
			list = append(list, f)
		}
	}
	return list
}
