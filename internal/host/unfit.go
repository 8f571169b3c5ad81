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

// sixLines is what a program needs to be a rank, as its launcher prints it: a note is one line.
var sixLines = [...]string{
	"this program has no replicad session, so it is no rank of the job. It needs these lines (docs/pytorch.md has a whole program):",
	"    import replicad",
	"    with replicad.Session(model, optimizer) as session:",
	"        session.resume()",
	"        for step in session.steps(steps):",
	"            ...  # forward, backward",
	"            with session.step():",
	"                optimizer.step()",
}

// stranger ends the launcher of a program that ended well without a word to this daemon: started again it would only do the same.
func stranger(h *Host, lj *localJob, l *launcher, r replica.Rank) {
	h.log.StartFailed(lj.job, r, 0, 1, 1)
	if !l.taught {
		l.taught = true
		for _, line := range sixLines {
			l.note(lj.job.Epoch, line)
		}
	}
	h.unfit(lj, l, r, fmt.Sprintf("rank %d's process ended with status 0 on node %s and never connected to the daemon: its program makes no replicad session", r, h.self.Name))
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
