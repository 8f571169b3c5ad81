package memplan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// Running is a job as the node sees it on which some of its ranks run.
func Running(s control.Status, name string) (j Job, err error) {
	at := slices.IndexFunc(s.Jobs, func(x control.JobStatus) bool { return x.Name == name && x.Phase != "ended" })
	if at < 0 {
		return j, fmt.Errorf("node %s knows no job of that name that runs: replicad status lists them", s.Node)
	}
	x := s.Jobs[at]
	of := slices.IndexFunc(s.Sizes, func(z control.SizeStatus) bool { return z.Job == x.ID })
	if of < 0 {
		return j, fmt.Errorf("no rank of it has registered its state on node %s: ask the daemon of a node that it trains on", s.Node)
	}
	groups, nodes := map[replica.GroupID]bool{}, map[replica.NodeName]int{}
	for _, r := range x.Ranks {
		groups[r.Group] = true
		if r.Node != "" {
			nodes[r.Node]++
		}
		j.RanksPerNode = max(j.RanksPerNode, nodes[r.Node])
	}
	if len(nodes) == 0 {
		return j, fmt.Errorf("node %s knows on which nodes no rank runs (%s): ask again, or another node's daemon", s.Node,
			cmp.Or(x.LeftOut, "the leader may not answer"))
	}
	z := s.Sizes[of]
	j.Shards = len(groups)
	j.Replicas = (len(x.Ranks) + j.Shards - 1) / j.Shards
	j.Copies, j.Slots, j.ChunkBytes, j.Own = x.Copies, z.Slots, z.ChunkBytes, z.Own
	j.Measured = &Measured{Trained: z.Trained, Common: z.Common, Frozen: z.Frozen, Shards: j.Shards}
	return j, nil
}
