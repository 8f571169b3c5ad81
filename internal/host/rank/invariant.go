package rank

import (
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/replica"
)

// Check holds the rank against its job's record.
func (lr *Rank) Check(job *replica.Job) {
	r, spec := lr.Rank, lr.Arena.Spec()
	invariant.Holds(lr.Incarnation != 0, "rank %d of job %s has no incarnation", r, job.Name)
	invariant.Holds(!spec.Mirror, "rank %d of job %s has a mirror's arena %s", r, job.Name, lr.Arena.Key())
	invariant.Holds(spec.Job == job.ID && spec.Rank == r, "rank %d of job %s has arena %s of rank %d", r, job.Name, lr.Arena.Key(), spec.Rank)
	invariant.Holds(lr.Finishing >= 0, "rank %d of job %s hashes %d places", r, job.Name, lr.Finishing)
	invariant.Holds(lr.Peer == nil || lr.Alive(), "rank %d of job %s is %v, and connected", r, job.Name, lr.Life)
	invariant.Holds(max(lr.Loaded, lr.Initial, lr.Gone) <= job.Epoch,
		"rank %d of job %s: loaded %d, initial %d, gone %d in epoch %d", r, job.Name, lr.Loaded, lr.Initial, lr.Gone, job.Epoch)
	invariant.Holds(lr.Torn <= job.ClosedEpoch, "rank %d of job %s is torn in epoch %d, closed is %d", r, job.Name, lr.Torn, job.ClosedEpoch)
}
