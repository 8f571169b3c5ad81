package fetch

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestReceivers: who fetches a part under the plan as well is asked for what it has, those after the rank first; who holds it is a source
// anyway, and what each rank has of its own nobody else fetches.
func TestReceivers(t *testing.T) {
	plan := &replica.Plan{Layout: replica.Layout{World: 8, Groups: []replica.GroupID{0, 0, 0, 0, 0, 0, 0, 1}}, GroupMirrors: [][]replica.NodeName{{"m"}, {"m"}}}
	for _, n := range []replica.NodeName{"donor", "a", "a", "b", "c", "d", "", "e"} {
		plan.Ranks = append(plan.Ranks, replica.Claimed{Node: n})
	}
	src := replica.Source{Holders: []replica.Holder{{Node: "donor"}}}
	for _, c := range []struct {
		rank replica.Rank
		part replica.Part
		want []replica.NodeName
	}{
		{1, replica.OfGroup(0), []replica.NodeName{"a", "b", "c", "d"}}, // rank 2 is on its own node
		{3, replica.OfGroup(0), []replica.NodeName{"c", "d", "a", "m"}},
		{7, replica.OfGroup(1), []replica.NodeName{"m"}},
		{1, replica.OfRank(1), nil},
	} {
		f := Parts{Plan: plan, Rank: c.rank}
		if got := f.receivers(src, c.part); !slices.Equal(got, c.want) {
			t.Errorf("rank %d, %v: %v, want %v", c.rank, c.part, got, c.want)
		}
	}
}
