package place

import (
	"cmp"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Donors are the holders of a planned part in the order in which a node asks them for a rank: this node itself, the nearest failure domain
// first, in it who is asked for the fewest parts of the plan. Among equals each rank begins elsewhere, so that ranks that fetch one part
// together do not all ask the same few.
func Donors(plan *replica.Plan, nodes map[replica.NodeName]replica.Node, to replica.NodeName, rank replica.Rank, src replica.Source) []replica.Holder {
	asked := make(map[replica.NodeName]int)
	for _, s := range plan.Sources {
		for _, h := range s.Holders {
			asked[h.Node]++
		}
	}
	w := NewWeigher(replica.JobID{}, src.Part).with(byte(rank)).with(byte(rank >> 8)).with(byte(rank >> 16))
	out := slices.Clone(src.Holders)
	slices.SortFunc(out, func(a, b replica.Holder) int {
		return cmp.Or(
			cmp.Compare(nearness(nodes, to, b.Node), nearness(nodes, to, a.Node)),
			cmp.Compare(asked[a.Node], asked[b.Node]),
			cmp.Compare(w.Of(b.Node), w.Of(a.Node)),
			cmp.Compare(a.Node, b.Node))
	})
	return out
}

// nearness is greater the smaller the failure domain that two nodes share; 0: none.
func nearness(nodes map[replica.NodeName]replica.Node, a, b replica.NodeName) (near int) {
	if a == b {
		return 1 << len(Harms)
	}
	for _, h := range Harms {
		if v := nodes[a].Labels[h.Label]; v != "" && v == nodes[b].Labels[h.Label] {
			near = max(near, h.Harm)
		}
	}
	return near
}
