package job

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/rank"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Pulses looks at the step words of the ranks that train here. The leader is told of one that stands still: it knows how far
// the others are.
func Pulses(j *Job) {
	now, timing := j.at.Node.Up(), j.at.Config.Timing
	limits := recovery.HangLimits{Factor: timing.HangFactor, Least: timing.HangLeast, First: timing.HangFirst}
	due := false
	for _, lr := range j.Ranks {
		halted := func() bool { return j.at.Node.Processes().Halted(lr.PID, lr.Start) }
		due = lr.Beats(now, j.Job, limits, halted) || due
	}
	if due {
		j.Report()
	}
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

// KillHung ends the processes here that are in a hang, or that their group has outvoted: their launchers start others, and
// their arenas stay. What was COPIED is sealed in their names, as for any dead process.
func KillHung(j *Job) {
	for _, f := range condemned(j.Job) {
		lr := j.Ranks[f.Rank]
		if lr == nil || !lr.Alive() || lr.Incarnation != f.Incarnation || lr.Killed || lr.Unproven {
			continue
		}
		lr.Killed = true
		j.at.Log.RankNote(j.Job, lr.Rank, f.Kind.String(), "killed: "+f.Detail)
		j.launcher().NoteRank(lr.Rank, fmt.Sprintf("killed, %v: %s", f.Kind, f.Detail))
		kill(j, lr)
	}
}

// PollProgress polls the processes here that the job waits for, and whether a signal has stopped them. Progress is how much of its memory a
// process has in reach, which rises while it prefaults an arena or seals its first state. While a plan is loaded it is how much of the
// plan's parts has come.
func PollProgress(j *Job) {
	j.launcher().Poll()
	on := j.at.Node.Processes()
	for _, lr := range j.Ranks {
		switch {
		case j.Job.Phase == replica.Open:
			lr.Progress = 0 // hangs are known by the steps
		case lr.Alive() && j.Job.Phase == replica.Planned && lr.Loaded != j.Job.Epoch:
			lr.Progress, lr.Halted = lr.Arena.Came()>>20, on.Halted(lr.PID, lr.Start)
		case lr.Alive() && room.AwaitsProcesses(j.Job) && (!lr.Stopped() || j.Job.Phase == replica.Opening && lr.Initial != j.Job.Epoch):
			lr.Progress, lr.Halted = on.Mapped(lr.PID)>>20, on.Halted(lr.PID, lr.Start)
		default:
			lr.Halted = false
		}
	}
}

// kill ends a rank's process. That of another user the kernel lets this daemon kill only with CAP_KILL; its launcher, which is of that user,
// kills it otherwise. One that has ended already is as good.
func kill(j *Job, lr *rank.Rank) {
	on := j.at.Node.Processes()
	err := on.Kill(lr.PID, lr.Start)
	if !errors.Is(err, syscall.EPERM) {
		return
	}
	group, bad := on.Group(lr.PID) // a launcher gives each of its processes a group: the rank may be below a shell
	if bad == nil && j.launcher().Kill(lr.Rank, uint64(group)) {
		return
	}
	j.at.Log.Failed("kill", lr.Arena.Key(), err.Error()+": no launcher here runs it: give the daemon CAP_KILL, or start ranks by `replicad run`")
}

// Short stops a rank before it writes where no memory is, which its arena was promised: the kernel would kill whom it likes for that.
func (j *Job) Short(a *holding.Arena, err error) {
	for _, lr := range j.Ranks {
		if lr.Arena != a || !lr.Alive() {
			continue
		}
		lr.Why = fmt.Sprintf("process %d is killed: others took the memory that its arena was promised: %v", lr.PID, err)
		j.at.Log.RankNote(j.Job, lr.Rank, "no_memory", lr.Why)
		if !lr.Unproven {
			kill(j, lr)
		}
	}
}
