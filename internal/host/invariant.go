package host

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/invariant"
)

// check holds what a host keeps against what must be true between any two events. In builds that do not check it does nothing.
func check(h *Host) {
	if !invariant.On {
		return
	}
	has := map[*holding.Arena]string{} // what has an arena: two would each free its places
	owns := func(a *holding.Arena, who string) {
		invariant.Holds(a != nil, "%s has no arena", who)
		invariant.Holds(has[a] == "", "arena %s is that of %s, and of %s", a.Key(), has[a], who)
		invariant.Holds(!a.Dropped(), "%s has arena %s, which was given up", who, a.Key())
		has[a] = who
		a.Check()
	}
	for id, j := range h.jobs.all {
		invariant.Holds(j.Job.ID == id, "job %v lies under %v", j.Job.ID, id)
		j.Check()
		j.CheckArenas(owns)
	}
	h.admission.Check()
	h.launchers.Check()
}
