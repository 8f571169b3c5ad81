package admission

import "github.com/replicad/replicad/internal/invariant"

// Check holds the gate against itself, and against the ranks. In builds that do not check it does nothing.
func (g *Gate) Check() {
	if !invariant.On {
		return
	}
	for id, p := range g.all {
		invariant.Holds(p.peer.ID() == id, "process %d lies under session %d", p.peer.PID(), id)
		invariant.Holds(p.attach == 0 || p.welcomed, "process %d asks for an arena, and is not welcomed", p.peer.PID())
		own := p.request == 0 || g.claims[p.request] == p
		invariant.Holds(own, "the claim %d of process %d is somebody else's", p.request, p.peer.PID())
		job, rank := g.owner.RankOf(p.peer)
		invariant.Holds(job == nil, "process %d attaches, and has rank %v", p.peer.PID(), rank)
	}
	for id, p := range g.claims {
		invariant.Holds(id != 0 && p != nil, "claim %d is nobody's", id)
	}
}
