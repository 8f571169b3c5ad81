package host

import (
	"errors"
	"syscall"
)

// kill ends a rank's process. That of another user the kernel lets this daemon kill only with CAP_KILL; its launcher, which is of that user,
// kills it otherwise. One that has ended already is as good.
func (h *Host) kill(lj *localJob, lr *localRank) {
	err := h.processes.Kill(lr.pid, lr.start)
	if !errors.Is(err, syscall.EPERM) {
		return
	}
	group, bad := h.processes.Group(lr.pid) // a launcher gives each of its processes a group: the rank may be below a shell
	if bad == nil && h.launchers.Of(lj).Kill(lr.rank, uint64(group)) {
		return
	}
	h.log.Failed("kill", lr.arena.Key(), err.Error()+": no launcher here runs it: give the daemon CAP_KILL, or start ranks by `replicad run`")
}
