package mirrors

import "github.com/replicad/replicad/internal/invariant"

// check holds what is mirrored against itself. In builds that do not check it does nothing.
func (r *Room) check() {
	if !invariant.On {
		return
	}
	for id, held := range r.jobs {
		for part, m := range held.arenas {
			invariant.Holds(m.Part == part, "the mirror of %v lies under %v", m.Part, part)
			invariant.Holds(m.Arena != nil, "the mirror of %v has no arena", part)
			invariant.Holds(m.Arena.Spec().Job == id, "the mirror of %v of job %v is of job %v", part, id, m.Arena.Spec().Job)
		}
		for part, mk := range held.making {
			invariant.Holds(mk.key == part && mk.job == id, "the arena for %v of job %v is made under %v of %v", mk.key, mk.job, part, id)
			invariant.Holds(mk.err == nil, "the arena for %v has failed, and is on its way", part)
		}
	}
}
