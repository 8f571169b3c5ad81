package host

import (
	"fmt"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// ranFor is the job of a user that a hello names; nil: there is none, or it has not trained yet, so that it recovers from nothing.
func (h *Host) ranFor(job string, uid int) *localJob {
	lj := h.jobNamed(job)
	if lj == nil || lj.job.Phase == replica.Opening || foreign(lj.job, uid) != "" {
		return nil
	}
	return lj
}

// recovers tells whether a process asks for a rank that its job has lost, and is the only one here that does.
func (h *Host) recovers(p session.Peer, hello wire.Hello) bool {
	lj := h.ranFor(hello.Job, p.UID())
	if lj == nil || int(hello.Rank) >= len(lj.job.Ranks) {
		return false
	}
	if lr := lj.ranks[hello.Rank]; lr != nil && lr.alive() {
		return false
	}
	if c := lj.job.Ranks[hello.Rank]; c.Incarnation != 0 && c.Node != h.self.Name && !recovery.Vacated(lj.job, hello.Rank) {
		return false
	}
	for _, a := range h.attaching {
		if a.hello.Job == hello.Job && a.hello.Rank == hello.Rank {
			return false
		}
	}
	return true
}

// launches tells whether a launcher is the only one here of a job that recovers.
func (h *Host) launches(p session.Peer, job string) bool {
	lj := h.ranFor(job, p.UID())
	return lj != nil && h.launchersOf(lj.job) == 0
}

// hasNoSession ends the session of a process that finds only those taken which are kept for others. It may come again.
func (h *Host) hasNoSession(ev session.Hello) {
	h.log.RefusedRank(ev.Hello.Job, ev.Hello.Rank, ev.Peer.PID(), ev.Full)
	h.audit.Refused("rank", h.self.Name, audit.Fields{"job": ev.Hello.Job, "rank": fmt.Sprint(ev.Hello.Rank), "pid": fmt.Sprint(ev.Peer.PID()), "refused": ev.Full})
	ev.Peer.Refuse(0, wire.CodeAgain, ev.Full)
	ev.Peer.Close()
}
