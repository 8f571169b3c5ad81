package restore

import "github.com/replicad/replicad/internal/invariant"

// check holds the restores against themselves. In builds that do not check it does nothing.
func (r *Room) check() {
	if !invariant.On {
		return
	}
	for id, j := range r.jobs {
		for rank, p := range j.ranks {
			if q := p.running; q != nil {
				invariant.Holds(q.Job.ID == id && q.Rank.Rank == rank,
					"the restore of rank %d of job %v lies under rank %d of %v", q.Rank.Rank, q.Job.ID, rank, id)
				invariant.Holds(!p.done, "the parts of rank %d have come, and are being restored", rank)
			}
			invariant.Holds(!p.done || p.failing == "" || p.tries > 0, "rank %d has failed in no try: %s", rank, p.failing)
		}
		for _, q := range j.readings {
			invariant.Holds(q.Job == id, "a reading of job %v lies under job %v", q.Job, id)
		}
	}
}
