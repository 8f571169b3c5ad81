package host

import (
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// pollProgress polls the processes here that the job waits for, and whether a signal has stopped them. Progress is how much of its memory a
// process has in reach, which rises while it prefaults an arena or seals its first state. While a plan is loaded it is how much of the
// plan's parts has come.
func (h *Host) pollProgress(lj *localJob) {
	h.launchers.Of(lj).Poll()
	for _, lr := range lj.ranks {
		switch {
		case lj.job.Phase == replica.Open:
			lr.progress = 0 // hangs are known by the steps
		case lr.alive() && lj.job.Phase == replica.Planned && lr.loaded != lj.job.Epoch:
			lr.progress, lr.halted = lr.arena.Came()>>20, h.processes.Halted(lr.pid, lr.start)
		case lr.alive() && room.AwaitsProcesses(lj.job) && (!lr.stopped() || lj.job.Phase == replica.Opening && lr.initial != lj.job.Epoch):
			lr.progress, lr.halted = h.processes.Mapped(lr.pid)>>20, h.processes.Halted(lr.pid, lr.start)
		default:
			lr.halted = false
		}
	}
}
