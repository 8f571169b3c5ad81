package host

import (
	"errors"
	"syscall"

	"github.com/replicad/replicad/internal/wire"
)

// kill ends a rank's process. That of another user the kernel lets this daemon kill only with CAP_KILL; its launcher, which is of that user,
// kills it otherwise. One that has ended already is as good.
func (h *Host) kill(lj *localJob, lr *localRank) {
	err := h.processes.Kill(lr.pid, lr.start)
	if !errors.Is(err, syscall.EPERM) {
		return
	}
	group, bad := h.processes.Group(lr.pid) // a launcher gives each of its processes a group: the rank may be below a shell
	for _, l := range h.launchers {
		if bad == nil && l.accepted && l.hello.Job == lj.job.Name && l.runs(lr.rank) && l.starts.of(lr.rank).pid == uint64(group) {
			l.peer.Send(wire.RankHeader{Type: wire.MRunStop, Epoch: lj.job.Epoch}, wire.RunStop{Rank: lr.rank, Signal: uint32(syscall.SIGKILL)}.Append(nil)) //nolint:errcheck // a dead peer is Gone
			return
		}
	}
	h.log.Failed("kill", lr.arena.Key(), err.Error()+": no launcher here runs it: give the daemon CAP_KILL, or start ranks by `replicad run`")
}
