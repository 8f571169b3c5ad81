package lock

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// possibleCopies is copies(p): min_copies, or as many nodes as can hold a part where they are fewer (protocol section 5.2):
// for a private part its rank's node and mirrors, for a replicated part its members' nodes and mirrors.
func (c *Committer) possibleCopies() int {
	judged := make(map[replica.NodeName]bool)
	able := func(n replica.NodeName) bool {
		ok, known := judged[n]
		if !known {
			ok = checkHolder(c.job, c.node, replica.Holder{Node: n, Incarnation: c.node[n].Incarnation}) == nil
			judged[n] = ok
		}
		return ok
	}
	n := c.job.Options.MinCopies
	var nodes []replica.NodeName // that can hold the part at hand; no more are looked for than count
	can := func(name replica.NodeName) {
		if len(nodes) < n && !slices.Contains(nodes, name) && able(name) {
			nodes = append(nodes, name)
		}
	}
	for r, claim := range c.job.Ranks {
		nodes = nodes[:0]
		can(claim.Node)
		for _, m := range c.job.Mirrors[r] {
			can(m)
		}
		n = min(n, len(nodes))
	}
	for g, members := range c.job.Layout.Members() {
		nodes = nodes[:0]
		for _, r := range members {
			can(c.job.Ranks[r].Node)
		}
		for _, m := range c.job.GroupMirrors[g] {
			can(m)
		}
		n = min(n, len(nodes))
	}
	return max(n, 1)
}
