package writer

import (
	"cmp"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// discards are the generations of which a job's durable writes here have left something that no marker names. True: it is being removed.
type discards map[replica.Generation]bool

// leave ends all writes but those of a generation, and remembers what is to be removed of those that did not become durable.
func (r *Room) leave(now time.Time, v room.JobView, j *job, but replica.Generation) {
	for _, w := range j.writes {
		if w.Generation != but && w.begun && w.Generation != v.Job.Durable && !j.discards[w.Generation] {
			j.discards[w.Generation] = false
		}
	}
	j.endBut(now, but)
}

// discard has removed what is left of a generation once nothing of it is on its way: no write here that has not returned, and no write of the job
// that wants it again.
func (r *Room) discard(v room.JobView, j *job) {
	gs := make([]replica.Generation, 0, len(j.discards))
	for g, under := range j.discards {
		if !under && !(v.Job.Writer != nil && v.Job.Writer.Generation == g) && !r.writing(v.Job.ID, g) {
			gs = append(gs, g)
		}
	}
	slices.SortFunc(gs, func(a, b replica.Generation) int { return cmp.Compare(a.Step, b.Step) })
	for _, g := range gs {
		if v.Job.Durable == g || r.owner.Undurable() != nil {
			delete(j.discards, g)
			continue
		}
		j.discards[g] = true
		r.effects = append(r.effects, Discard{v.Job.ID, v.Job.Name, g})
	}
}

// writing tells whether a write of a generation has not returned.
func (r *Room) writing(id replica.JobID, g replica.Generation) bool {
	for w := range r.running {
		if w.Job == id && w.Generation == g {
			return true
		}
	}
	return false
}
