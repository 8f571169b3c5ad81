package writer

import "github.com/replicad/replicad/internal/invariant"

// check holds the writes against themselves. In builds that do not check it does nothing.
func (r *Room) check() {
	if !invariant.On {
		return
	}
	for id, j := range r.jobs {
		for object, w := range j.writes {
			invariant.Holds(w.Object == object && w.Job == id, "the write of %s of job %v lies under %s of %v", w.Object, w.Job, object, id)
		}
		for object, s := range j.said {
			w := j.writes[object]
			invariant.Holds(s.Job == id, "a report of job %v lies under job %v", s.Job, id)
			invariant.Holds(w == nil || w.over || !r.running[w] || w.Number != s.Number,
				"write %d of %s runs, and has ended", s.Number, object)
		}
	}
}
