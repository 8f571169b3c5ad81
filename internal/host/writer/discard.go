package writer

import (
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// discards are the durable writes of a job, by number, that have left something here which no commit names.
type discards map[uint64]*discard

type discard struct {
	of      tier.Attempt
	objects []string
	under   bool // it is being removed
}

// leave ends all writes but those of a number, and remembers what is to be removed of those that did not become durable. Where another node's word
// that one did is on its way, the store knows better.
func (r *Room) leave(now time.Time, v room.JobView, j *job, but uint64) {
	for _, w := range j.writes {
		if w.Generation == v.Job.Durable {
			w.goes()
		}
		if w.Number == but || !w.begun || w.Generation == v.Job.Durable {
			continue
		}
		d := j.discards[w.Number]
		if d == nil {
			d = &discard{of: w.Attempt}
			j.discards[w.Number] = d
		}
		if !d.under {
			d.objects = append(d.objects, w.Object)
		}
	}
	j.endBut(now, but)
}

// discard has removed what is left of a write once nothing of it is on its way here.
func (r *Room) discard(v room.JobView, j *job) {
	for _, number := range slices.Sorted(maps.Keys(j.discards)) {
		d := j.discards[number]
		if d.under || r.writing(v.Job.ID, number) {
			continue
		}
		if v.Job.Durable == d.of.Generation || r.owner.Undurable() != nil {
			delete(j.discards, number)
			continue
		}
		d.under = true
		slices.Sort(d.objects)
		r.effects = append(r.effects, Discard{d.of, d.objects})
	}
}

// writing tells whether a write of a number has not returned.
func (r *Room) writing(id replica.JobID, number uint64) bool {
	for w := range r.running {
		if w.Job == id && w.Number == number {
			return true
		}
	}
	return false
}
