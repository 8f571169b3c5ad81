package plan

import (
	"github.com/replicad/replicad/replica"
)

// RanksOn lists the ranks that a node holds, in rising order.
func RanksOn(job *replica.Job, n replica.NodeName) (ranks []replica.Rank) {
	for r, c := range job.Ranks {
		if c.Incarnation != 0 && c.Node == n {
			ranks = append(ranks, replica.Rank(r))
		}
	}
	return ranks
}
