package host

import (
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
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

func (h rooms) Moving(id replica.JobID, g replica.Generation) []mover.Moving {
	return h.mover.Moving(id, g)
}

func (h rooms) Spec(job *replica.Job, r replica.Rank) shm.Spec {
	return shm.Spec{Cluster: h.cluster, Era: h.era, Job: job.ID, Rank: r, ChunkBytes: room.ChunkBytes(job), Slots: room.Slots(job), Margin: uint64(h.cfg.MemoryMargin)}
}
