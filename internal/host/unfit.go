package host

import (
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// unfit ends the launcher of a program that never got a rank, and never will. The job keeps its memory for the right program. A job that has
// committed nothing has nothing to keep, and ends.
func (h *Host) unfit(lj *localJob, l *launcher, r replica.Rank, why string) {
	if lj.job.Position.Step <= lj.job.Start() {
		h.endForGood(lj, r, why)
		return
	}
	text := fmt.Sprintf("%s. Job %s is kept in memory at step %d: start it with the program that it was started with (its own output, and the daemon's log, say what differs), or end it (replicad job end %s)", why, lj.job.Name, lj.job.Position.Step, lj.job.Name)
	h.log.RankNote(lj.job, r, "unfit", text)
	h.sayDone(l, lj.job, wire.ExitRefused, text)
}

// endForGood ends a job that starting again would only end the same way.
func (h *Host) endForGood(lj *localJob, r replica.Rank, why string) {
	h.send(control.EndRequest{Name: lj.job.Name, Reason: recovery.DoNotRequeue + why, Rank: r})
}

// survivors tells whether a rank of the job has a process, which would wait for those that have none.
func survivors(job *replica.Job) bool {
	for r, c := range job.Ranks {
		if c.Incarnation != 0 && !recovery.Vacated(job, replica.Rank(r)) {
			return true
		}
	}
	return false
}
