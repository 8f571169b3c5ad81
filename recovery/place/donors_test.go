package place

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

func TestDonors(t *testing.T) {
	nodes := map[replica.NodeName]replica.Node{}
	for _, n := range []struct {
		name             replica.NodeName
		host, rack, zone string
	}{
		{"self", "h1", "r1", "z1"}, {"twin", "h1", "r1", "z1"}, {"rack1", "h2", "r1", "z1"}, {"rack2", "h3", "r1", "z1"},
		{"zone", "h4", "r2", "z1"}, {"far", "h5", "r3", "z2"}, {"bare1", "", "", ""}, {"bare2", "", "", ""},
	} {
		labels := map[string]string{}
		for k, v := range map[string]string{"host": n.host, "rack": n.rack, "zone": n.zone} {
			if v != "" {
				labels[k] = v
			}
		}
		nodes[n.name] = replica.Node{Name: n.name, Labels: labels}
	}
	holders := func(names ...replica.NodeName) (out []replica.Holder) {
		for _, n := range names {
			out = append(out, replica.Holder{Node: n, Incarnation: 1})
		}
		return out
	}
	for what, tc := range map[string]struct {
		of     []replica.NodeName
		others [][]replica.NodeName // holders of the plan's other parts
		want   []replica.NodeName
	}{
		"nearest first":                 {[]replica.NodeName{"far", "zone", "rack1", "twin", "self"}, nil, []replica.NodeName{"self", "twin", "rack1", "zone", "far"}},
		"a busy one of the rack":        {[]replica.NodeName{"rack1", "rack2", "far"}, [][]replica.NodeName{{"rack1"}}, []replica.NodeName{"rack2", "rack1", "far"}},
		"the other":                     {[]replica.NodeName{"rack1", "rack2", "far"}, [][]replica.NodeName{{"rack2"}}, []replica.NodeName{"rack1", "rack2", "far"}},
		"near and busy before far":      {[]replica.NodeName{"far", "rack1"}, [][]replica.NodeName{{"rack1"}, {"rack1"}}, []replica.NodeName{"rack1", "far"}},
		"without labels, the less busy": {[]replica.NodeName{"bare1", "bare2"}, [][]replica.NodeName{{"bare1"}}, []replica.NodeName{"bare2", "bare1"}},
		"one that nobody registered":    {[]replica.NodeName{"gone", "zone"}, nil, []replica.NodeName{"zone", "gone"}},
		"none":                          {nil, nil, nil},
	} {
		src := replica.Source{Part: replica.OfGroup(0), Holders: holders(tc.of...)}
		plan := &replica.Plan{Sources: []replica.Source{src}}
		for i, names := range tc.others {
			plan.Sources = append(plan.Sources, replica.Source{Part: replica.OfGroup(replica.GroupID(i + 1)), Holders: holders(names...)})
		}
		if got := Donors(plan, nodes, "self", 3, src); !slices.Equal(got, holders(tc.want...)) {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
		if !slices.Equal(src.Holders, holders(tc.of...)) {
			t.Errorf("%s: the plan was changed", what)
		}
	}
}

// Ranks that fetch one part from holders that are alike begin with different ones.
func TestDonorsAreSpread(t *testing.T) {
	var src replica.Source
	for i := range 16 {
		src.Holders = append(src.Holders, replica.Holder{Node: replica.NodeName("n" + string(rune('a'+i)))})
	}
	first := map[replica.NodeName]int{}
	for rank := range replica.Rank(160) {
		first[Donors(&replica.Plan{}, nil, "self", rank, src)[0].Node]++
	}
	for n, times := range first {
		if times > 25 {
			t.Errorf("%d of 160 ranks begin with %s", times, n)
		}
	}
	if len(first) < 15 {
		t.Errorf("of 16 holders %d are begun with", len(first))
	}
}
