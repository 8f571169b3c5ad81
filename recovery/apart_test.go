package recovery

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
)

// A group that has its copies in one failure domain gets one more in another where a node is free there, and none where that would be no better.
func TestGroupsCopiesAreApart(t *testing.T) {
	type site map[string]string
	for what, c := range map[string]struct {
		nodes   map[replica.NodeName]site
		members []replica.NodeName
		copies  int
		misfit  replica.NodeName
		want    []replica.NodeName
	}{
		"one host":                 {nodes: map[replica.NodeName]site{"a": {"host": "1"}, "b": {"host": "1"}, "c": {"host": "2"}}, members: []replica.NodeName{"a", "b"}, copies: 2, want: []replica.NodeName{"c"}},
		"one rack":                 {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "2"}}, members: []replica.NodeName{"a", "b"}, copies: 2, want: []replica.NodeName{"c"}},
		"one zone":                 {nodes: map[replica.NodeName]site{"a": {"zone": "1"}, "b": {"zone": "1"}, "c": {"zone": "2"}}, members: []replica.NodeName{"a", "b"}, copies: 2, want: []replica.NodeName{"c"}},
		"no labels":                {nodes: map[replica.NodeName]site{"a": {}, "b": {}, "c": {}}, members: []replica.NodeName{"a", "b"}, copies: 2},
		"nothing better is free":   {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "1"}}, members: []replica.NodeName{"a", "b"}, copies: 2},
		"another host of the rack": {nodes: map[replica.NodeName]site{"a": {"rack": "1", "host": "1"}, "b": {"rack": "1", "host": "1"}, "c": {"rack": "1", "host": "2"}}, members: []replica.NodeName{"a", "b"}, copies: 2, want: []replica.NodeName{"c"}},
		"two hosts of a rack":      {nodes: map[replica.NodeName]site{"a": {"rack": "1", "host": "1"}, "b": {"rack": "1", "host": "2"}, "c": {"rack": "1", "host": "3"}}, members: []replica.NodeName{"a", "b"}, copies: 2},
		"apart already":            {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "2"}, "d": {"rack": "3"}}, members: []replica.NodeName{"a", "b", "c"}, copies: 2},
		"three copies, two apart":  {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "2"}, "d": {"rack": "3"}}, members: []replica.NodeName{"a", "b", "c"}, copies: 3, want: []replica.NodeName{"d"}},
		"one member":               {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}}, members: []replica.NodeName{"a"}, copies: 2, want: []replica.NodeName{"b"}},
		"it can't get the part":    {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "2"}}, members: []replica.NodeName{"a", "b"}, copies: 2, misfit: "c"},
		"the only other one can't": {nodes: map[replica.NodeName]site{"a": {}, "c": {}}, members: []replica.NodeName{"a"}, copies: 2, misfit: "c", want: []replica.NodeName{"c"}},
		"one copy is enough":       {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "2"}}, members: []replica.NodeName{"a", "b"}, copies: 1},
		"one in the other domain":  {nodes: map[replica.NodeName]site{"a": {"rack": "1"}, "b": {"rack": "1"}, "c": {"rack": "1"}, "d": {"rack": "2"}, "e": {"rack": "2"}}, members: []replica.NodeName{"a", "b", "c"}, copies: 3, want: []replica.NodeName{"e"}},
	} {
		in := place.Placement{Job: replica.JobID{3}, Copies: c.copies, Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}, Misfit: func(_, n replica.NodeName) bool { return n == c.misfit }}
		for name, l := range c.nodes {
			in.Nodes[name], in.Usable[name] = replica.Node{Name: name, Labels: l}, true
		}
		for _, n := range c.members {
			in.Ranks, in.Layout.Groups = append(in.Ranks, replica.Claimed{Incarnation: 1, Node: n}), append(in.Layout.Groups, 0)
		}
		in.Layout.World = uint32(len(c.members))
		_, got := place.Mirrors(in)
		if slices.Sort(got[0]); !slices.Equal(got[0], c.want) {
			t.Errorf("%s: %v, want %v", what, got[0], c.want)
		}
		in.GroupMirrors = got
		if _, again := place.Mirrors(in); !slices.Equal(again[0], got[0]) {
			t.Errorf("%s: %v, and then %v", what, got[0], again[0])
		}
	}
}
