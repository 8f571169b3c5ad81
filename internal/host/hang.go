package host

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// haltedAfter is for how long a rank stands still before its node looks whether a signal has stopped it.
const haltedAfter = 2 * time.Second

// underWay tells whether the rank loaded what the job's open epoch goes on from, and has not finished. One that has stopped since broke off.
// Whether the rank was let go too, a daemon that starts again learns only as the rank attaches again, which a process that is stopped never does.
func (lr *localRank) underWay(job *replica.Job) bool {
	return job.Phase == replica.Open && lr.alive() && lr.loaded == job.Epoch && !lr.left()
}

// pulses looks at the step words of the ranks that train here. The leader is told of one that stands still: it knows how far
// the others are.
func (h *Host) pulses(lj *localJob) {
	now := time.Since(h.began)
	limits := recovery.HangLimits{Factor: h.cfg.Timing.HangFactor, Least: h.cfg.Timing.HangLeast, First: h.cfg.Timing.HangFirst}
	due := false
	for _, lr := range lj.ranks {
		trains := lr.underWay(lj.job) && !lr.stopped()
		hung := trains && lr.look(now, lr.arena.Step(), limits)
		halted := lr.halted
		if lj.job.Phase == replica.Open { // else it is pollProgress's
			still := hung || trains && lr.pulse.Still(now) >= haltedAfter
			halted = still && h.processes.Halted(lr.pid, lr.start) // it is named, and of a hang it breaks the tie of all that wait for it
		}
		due = lr.found(hung, halted) || due
	}
	if due {
		h.report(lj)
	}
}

// stepsOf says how the ranks of a job here get on; none where none trains.
func (h *Host) stepsOf(lj *localJob) (control.StepMS, bool) {
	now := time.Since(h.began)
	var s stepTimes
	for _, lr := range lj.ranks {
		switch {
		case !lr.underWay(lj.job):
		case lr.stopped():
			s.broke()
		default:
			s.add(now, lr.arena.Step(), &lr.watch)
		}
	}
	return s.is, s.any
}

// paused follows a rank's word that it stands still on purpose, for at most so long; 0 ends it.
func (h *Host) paused(lj *localJob, lr *localRank, most time.Duration) {
	lr.pause(time.Since(h.began), lr.arena.Step(), most)
	h.answerCandidate(lj)
}

// killHung ends the processes here that are in a hang, or that their group has outvoted: their launchers start others, and
// their arenas stay. What was COPIED is sealed in their names, as for any dead process.
func (h *Host) killHung(lj *localJob) {
	for _, f := range condemned(lj.job) {
		lr := lj.ranks[f.Rank]
		if lr == nil || !lr.alive() || lr.incarnation != f.Incarnation || lr.killed || lr.unproven {
			continue
		}
		lr.killed = true
		h.log.RankNote(lj.job, lr.rank, f.Kind.String(), "killed: "+f.Detail)
		h.launchers.Of(lj).NoteRank(lr.rank, fmt.Sprintf("killed, %v: %s", f.Kind, f.Detail))
		h.kill(lj, lr)
	}
}
