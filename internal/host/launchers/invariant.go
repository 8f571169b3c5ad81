package launchers

import "github.com/replicad/replicad/internal/invariant"

// Check holds the launchers against themselves. In builds that do not check it does nothing.
func (p *Pool) Check() {
	if !invariant.On {
		return
	}
	for id, l := range p.all {
		invariant.Holds(l.peer.ID() == id, "launcher %d lies under session %d", l.peer.PID(), id)
		invariant.Holds(!l.begun || l.accepted, "launcher %d has begun a job that has not accepted it", l.peer.PID())
		invariant.Holds(!l.creating || !l.accepted, "launcher %d has a job, and asks for one", l.peer.PID())
	}
	for id, l := range p.creates {
		invariant.Holds(id != 0 && l != nil, "request %d for a job is nobody's", id)
	}
}
