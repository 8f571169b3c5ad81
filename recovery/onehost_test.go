package recovery

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestGroupOnOneMachine: docs/nodes.md: "two copies are in one domain only if no other is free", and "two nodes with the same host count as one
// machine, which may be lost whole".
func TestGroupOnOneMachine(t *testing.T) {
	for _, label := range []string{"host", "rack", "zone"} {
		in := Placement{Job: replica.JobID{3}, Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, Copies: 2, Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}}
		for name, domain := range map[replica.NodeName]string{"a": "h1", "b": "h1", "c": "h2"} {
			in.Nodes[name], in.Usable[name] = replica.Node{Name: name, Labels: map[string]string{label: domain}}, true
		}
		in.Ranks = []replica.Claimed{{Incarnation: 1, Node: "a"}, {Incarnation: 1, Node: "b"}}
		byRank, byGroup := PlaceMirrors(in)
		t.Logf("%s: ranks' own parts go to %v, the group's to %v", label, byRank, byGroup)
		if len(byGroup[0]) == 0 {
			t.Errorf("%s: both copies of the group's part are in one %s, and c is free in another: its loss ends the job's state, though each rank's own part is safe on c", label, label)
		}
	}
}
