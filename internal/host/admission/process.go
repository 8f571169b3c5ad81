package admission

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// process is on its way from HELLO to its arena.
type process struct {
	peer     session.Peer
	hello    wire.Hello
	helloReq uint32
	attach   uint32 // request of ATTACH; 0: not sent yet
	welcomed bool
	turned   bool // its last ATTACH was refused
	geometry replica.Geometry
	request  uint64 // of the claim under way; 0: none
	claim    replica.Claim
	creating bool           // its arena is being made, or parked
	arena    *holding.Arena // being parked for it; its predecessor's, or nobody's yet
	granted  replica.Incarnation
}

// wants reports whether the process asks for this rank.
func (p *process) wants(job string, r replica.Rank) bool {
	return p.hello.Job == job && p.hello.Rank == r
}

// here reports whether a process is still on its way.
func (g *Gate) here(p *process) bool { return g.all[p.peer.ID()] == p }

// Registered lays out the regions that a rank registers. The library has refused them already; one of another make may not have.
func Registered(regions []replica.Region) (replica.Geometry, error) {
	for _, r := range regions {
		if err := r.Registrable(); err != nil {
			return replica.Geometry{}, err
		}
	}
	return replica.NewGeometry(regions)
}
