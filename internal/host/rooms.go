package host

import (
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// rooms is the host as its rooms see it.
type rooms struct{ *Host }

func (h rooms) Self() replica.Holder { return h.holder() }

func (h rooms) Holder(n replica.NodeName) replica.Holder { return h.nodes[n].Holder() }

func (h rooms) Jobs() (jobs []room.JobView) {
	for _, lj := range h.jobs {
		jobs = append(jobs, lj.view())
	}
	return jobs
}

func (h rooms) Job(id replica.JobID) (view room.JobView, known bool) {
	lj := h.jobs[id]
	if lj == nil {
		return view, false
	}
	return lj.view(), true
}
