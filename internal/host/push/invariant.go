package push

import "github.com/replicad/replicad/internal/invariant"

// check holds what was sent against itself. In builds that do not check it does nothing.
func (r *Room) check() {
	if !invariant.On {
		return
	}
	for id, j := range r.jobs {
		for rank, rk := range j.ranks {
			invariant.Holds(rk.incarnation != 0, "rank %d of job %v has sent parts, and no incarnation", rank, id)
			for k := range rk.sent {
				invariant.Holds(k.node != r.self && k.node != "", "rank %d mirrors %v on its own node %q", rank, k.part, k.node)
			}
		}
	}
}
