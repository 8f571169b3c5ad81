package host

import "github.com/replicad/replicad/replica"

// mayAsk tells whether the leader may be asked for one more create or claim of a user now; the pace counts it then. A session has one under way at
// most. Those of sessions that are over count until they are answered: a process that comes and goes in a loop fills no link.
func (h *Host) mayAsk(user uint32, job replica.JobID) bool {
	most := h.cfg.PerUser.Sessions
	if most > 0 && h.launchers.UnderWay()+len(h.claims) >= most && h.underWay(user) >= most {
		return false
	}
	return h.asking.May(user, job)
}

// underWay counts the creates and claims of a user that the leader has not answered.
func (h *Host) underWay(user uint32) (n int) {
	n = h.launchers.UnderWayOf(user)
	for _, a := range h.claims {
		if lj := h.jobs[a.claim.Job]; lj != nil && lj.job.Owner == user {
			n++
		}
	}
	return n
}

// waitsFor tells whether the process that a claim was made for still waits for its answer.
func (h *Host) waitsFor(id uint64, a *attaching) bool {
	return a.request == id && h.attaching[a.peer.ID()] == a
}
