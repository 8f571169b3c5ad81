package recovery

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// HearsMore tells whether another voter should lead: it hears all that the leader hears, and at least one of the strays besides, the nodes
// that have no link to the leader and do not answer it. A network cut between the leader and a node, or one way between them, stops every
// commit that needs the node, and nothing but another leader helps. Each move leaves fewer strays, so leadership can't go to and fro.
func HearsMore(strays, unheard []replica.NodeName) bool {
	for _, n := range unheard {
		if !slices.Contains(strays, n) {
			return false
		}
	}
	return slices.ContainsFunc(strays, func(n replica.NodeName) bool { return !slices.Contains(unheard, n) })
}
