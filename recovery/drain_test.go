package recovery_test

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

func TestDrainCost(t *testing.T) {
	on := func(nodes ...replica.NodeName) (out []replica.Holder) {
		for _, n := range nodes {
			out = append(out, replica.Holder{Node: n, Incarnation: 1})
		}
		return out
	}
	part := replica.OfRank(0)
	for name, c := range map[string]struct {
		options replica.Options
		able    []replica.NodeName
		holders []replica.Holder
		want    []string // empty: it costs nothing
	}{
		"two others are left":                {replica.Options{}, []replica.NodeName{"a", "b", "c"}, on("a", "b"), nil},
		"one other is left":                  {replica.Options{}, []replica.NodeName{"a", "b"}, on("a", "b"), []string{"on at most 1 nodes instead of 2", "all its ranks would run on node a, whose loss would end the job"}},
		"with a durable tier":                {replica.Options{DurableEvery: 5}, []replica.NodeName{"a", "b"}, on("a", "b"), []string{"back to its durable tier"}},
		"one copy is all that is asked for":  {replica.Options{MinCopies: 1}, []replica.NodeName{"a", "b", "c"}, on("a"), nil},
		"three copies":                       {replica.Options{MinCopies: 3}, []replica.NodeName{"a", "b", "c"}, on("a", "b", "c"), []string{"2 nodes instead of 3"}},
		"it alone holds a part":              {replica.Options{}, []replica.NodeName{"a", "b", "c"}, on("b"), []string{"node b alone holds private 0 of the committed step 7"}},
		"with others that can take no ranks": {replica.Options{}, []replica.NodeName{"a", "b", "c"}, on("b", "d"), []string{"node b alone holds private 0"}},
	} {
		j := &replica.Job{Options: c.options, Position: replica.Position{Epoch: 1, Step: 7}, Parts: []replica.PartRoot{{Part: part, Holders: c.holders}}}
		got := recovery.DrainCost(j, c.able, "b")
		if (got == "") != (len(c.want) == 0) {
			t.Errorf("%s: %q", name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", name, got, w)
			}
		}
	}
}
