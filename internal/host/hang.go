package host

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// pulses looks at the step words of the ranks that train here; one that stands still is said to the leader, which knows how
// far the others are.
func (h *Host) pulses(lj *localJob) {
	now := time.Since(h.began)
	limits := recovery.HangLimits{Factor: h.cfg.Timing.HangFactor, Least: h.cfg.Timing.HangLeast, First: h.cfg.Timing.HangFirst}
	changed := false
	for _, lr := range lj.ranks {
		hung := false
		if lj.job.Phase == replica.Open && lr.alive() && lr.gone == lj.job.Epoch && !lr.stopped() && !lr.left() {
			lr.pulse.Look(now, lr.arena.Step())
			hung = lr.pulse.Hung(now, limits)
		}
		halted := lr.halted
		if lj.job.Phase == replica.Open { // else it is lookAtProgress's
			halted = hung && h.processes.Halted(lr.pid, lr.start) // it breaks a tie of all that wait for it
		}
		changed = changed || hung != lr.hung || halted != lr.halted
		lr.hung, lr.halted = hung, halted
	}
	if changed {
		h.report(lj)
	}
}

// stepsOf says how the ranks of a job here get on; none where none trains.
func (h *Host) stepsOf(lj *localJob) (s control.StepMS, ok bool) {
	now, seen := time.Since(h.began), false
	for _, lr := range lj.ranks {
		if lj.job.Phase != replica.Open || !lr.alive() || lr.gone != lj.job.Epoch || lr.left() {
			continue
		}
		if lr.stopped() {
			s.Broken, ok = true, true // it was let go, and has stopped for want of its peers
			continue
		}
		lr.pulse.Look(now, lr.arena.Step())
		still := uint64(lr.pulse.Still(now).Milliseconds())
		if !seen || still < s.Still {
			s.Still = still
		}
		s.Pace, seen, ok = max(s.Pace, uint64(lr.pulse.Pace().Milliseconds())), true, true
	}
	return s, ok
}

// paused follows a rank's word that it stands still on purpose, for at most so long; 0 ends it.
func (h *Host) paused(lj *localJob, lr *localRank, most time.Duration) {
	now := time.Since(h.began)
	lr.pulse.Look(now, lr.arena.Step()) // the pause is of the epoch that the rank is in, which nobody may have looked at yet
	lr.pulse.Pause(now, most)
	h.answerCandidate(lj)
}

// killHung ends the processes here that are in a hang, or that their group has outvoted: their launchers start others, and
// their arenas stay. What was COPIED is sealed in their names, as for any dead process.
func (h *Host) killHung(lj *localJob) {
	for _, f := range lj.job.Faults {
		if f.Kind != replica.Hang && f.Kind != replica.Outvoted || f.OfNode() {
			continue
		}
		lr := lj.ranks[f.Rank]
		if lr == nil || !lr.alive() || lr.incarnation != f.Incarnation || lr.killed || lr.unproven {
			continue
		}
		lr.killed = true
		h.log.RankNote(lj.job, lr.rank, f.Kind.String(), "killed: "+f.Detail)
		for _, l := range h.launchers {
			if l.accepted && l.hello.Job == lj.job.Name && l.runs(lr.rank) {
				h.note(l, lj.job, fmt.Sprintf("rank %d: killed, %v: %s", lr.rank, f.Kind, f.Detail))
			}
		}
		h.kill(lj, lr)
	}
}
