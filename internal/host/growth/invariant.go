package growth

import "github.com/replicad/replicad/internal/invariant"

// check holds the asks against themselves. In builds that do not check it does nothing.
func (r *Room) check() {
	if !invariant.On {
		return
	}
	for at, a := range r.asks {
		invariant.Holds(at == place{a.Job, a.Rank}, "the ask of rank %d of job %v lies under %v", a.Rank, a.Job, at)
		invariant.Holds(a.making == nil || a.making.of == a, "rank %d waits for the arena of another ask", a.Rank)
		invariant.Holds(a.making == nil || a.arena == nil, "rank %d has an arena, and another one is made", a.Rank)
	}
}
