package recovery_test

import (
	"testing"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

func TestUngathered(t *testing.T) {
	// Node a holds rank 0, b held rank 1 in a former life, and c has none.
	job := func(faults ...replica.Fault) *replica.Job {
		return &replica.Job{Ranks: []replica.Claimed{{Incarnation: 1, Node: "a", NodeIncarnation: 1}, {Incarnation: 2, Node: "b", NodeIncarnation: 7}, {}}, Layout: replica.Layout{World: 3, Groups: make([]replica.GroupID, 3)}, Faults: faults}
	}
	nodes := map[replica.NodeName]replica.Node{"a": {Name: "a", Incarnation: 1}, "b": {Name: "b", Incarnation: 2}, "c": {Name: "c", Incarnation: 3}}
	of := func(k replica.FaultKind, n replica.NodeName, i replica.NodeIncarnation) replica.Fault {
		return replica.Fault{Kind: k, Node: n, NodeIncarnation: i}
	}
	for _, c := range []struct {
		name    string
		job     *replica.Job
		brought string
		silent  string
		late    bool
		want    bool
	}{
		{"all brought it", job(), "abc", "", false, true},
		{"nobody has", job(), "", "", false, false},
		{"a rank's node is waited for", job(), "bc", "", true, false},
		{"and though it is silent", job(), "bc", "a", true, false},
		{"unless its rank is free", job(replica.Fault{Kind: replica.ProcessDead, Rank: 0, Incarnation: 1}), "bc", "", true, true},
		{"which takes until late", job(replica.Fault{Kind: replica.ProcessDead, Rank: 0, Incarnation: 1}), "bc", "", false, false},
		{"or it is dead", job(of(replica.NodeDead, "a", 1)), "bc", "", false, true},
		{"another life of it is", job(of(replica.NodeDead, "a", 9)), "bc", "", false, false},
		{"a drained one is here", job(of(replica.Drain, "c", 3)), "ab", "", false, false},
		{"any other until late", job(), "a", "", true, true},
		{"or until it is silent", job(), "a", "bc", false, true},
		{"one of two is", job(), "a", "b", false, false},
		{"a former life holds nothing", job(), "a", "", true, true},
	} {
		in := func(set string) func(replica.NodeName) bool {
			return func(n replica.NodeName) bool {
				for _, s := range set {
					if string(s) == string(n) {
						return true
					}
				}
				return false
			}
		}
		if got := len(recovery.Ungathered(c.job, nodes, in(c.brought), func(h replica.Holder) bool { return in(c.silent)(h.Node) }, c.late)) == 0; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRanksOn(t *testing.T) {
	job := &replica.Job{Ranks: []replica.Claimed{{Incarnation: 1, Node: "a"}, {Node: "a"}, {Incarnation: 2, Node: "b"}, {Incarnation: 3, Node: "a"}}}
	for n, want := range map[replica.NodeName]int{"a": 2, "b": 1, "c": 0} {
		if got := plan.RanksOn(job, n); len(got) != want || n == "a" && (got[0] != 0 || got[1] != 3) {
			t.Errorf("node %s: %v, want %d ranks", n, got, want)
		}
	}
}
