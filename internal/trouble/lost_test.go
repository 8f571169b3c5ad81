//go:build cgo

package trouble_test

import (
	"slices"
	"testing"
	"time"
)

// loses says for good that a node is lost, again until that is taken: its link outlives it for a while. It returns what is said then.
func (n *node) loses(name string) (out string) {
	n.t.Helper()
	for end := time.Now().Add(patience); ; {
		code, out := n.verb("node", "lost", name, "--why", "burnt")
		if code == 0 {
			return out
		}
		if time.Now().After(end) {
			n.t.Fatal(out)
		}
	}
}

// TestADeadNodeIsLost: a node's daemon, keeper and memory are gone, and its host refuses. The operator's word is taken though the
// link to it has not timed out.
func TestADeadNodeIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	n1, n2 := c.nodes[0], c.nodes[1]
	n1.run("job", 1, rankSpec{}).await("step", fields{"step": 5})
	n2.die()
	n1.statusWhen(func(s status) bool {
		return slices.ContainsFunc(s.Nodes, func(n struct {
			Name, State string
			Voter       bool
		}) bool {
			return n.Name == "n2" && n.State != "alive"
		})
	})
	if code, out := call(t, "node", "lost", "n2", "--why", "burnt", "--config", n1.File); code != 0 {
		t.Errorf("code %d:\n%s", code, out)
	}
}
