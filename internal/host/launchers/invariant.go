package launchers

import "github.com/replicad/replicad/internal/invariant"

// Check holds the launchers against themselves. In builds that do not check it does nothing.
func (p *Pool) Check() {
	if !invariant.On {
		return
	}
	for id, l := range p.all {
		invariant.Holds(l.peer.ID() == id, "launcher %d lies under session %d", l.peer.PID(), id)
	}
	for id, l := range p.creates {
		invariant.Holds(id != 0 && l != nil, "request %d for a job is nobody's", id)
	}
}
