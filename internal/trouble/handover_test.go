//go:build cgo

package trouble_test

import (
	"strings"
	"syscall"
	"testing"
)

// TestLeaderEndsByHandingOver: SIGTERM of the leader hands leadership over before its daemon ends; no voter has to miss it first, and
// the job goes on to commit.
func TestLeaderEndsByHandingOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.calm() // it is the leader that is ended
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	name := c.nodes[0].statusWhen(linked).Leader
	var leader *node
	var others []*node
	for _, n := range c.nodes {
		if string(n.cfg.Node) == name {
			leader = n
		} else {
			others = append(others, n)
		}
	}
	others[0].run("job", 1, rankSpec{}, "--min-copies", "1").await("step", fields{"step": 5})
	marks := []int{others[0].daemon.mark(), others[1].daemon.mark()}
	leader.daemon.Signal(syscall.SIGTERM)
	if code := leader.daemon.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	if !leader.daemon.saw(func(l line) bool { return l.is("handed_over", nil) }) {
		t.Fatalf("%s led and ended without handing over:\n%s", name, leader.daemon.tail(20))
	}
	for i, n := range others {
		n.daemon.awaitFrom(marks[i], "linked", nil)
	}
	heir := others[0].statusWhen(func(s status) bool { return linked(s) && s.Leader != name }).Leader
	for i, n := range others {
		if string(n.cfg.Node) != heir {
			continue
		}
		// The heir stands because it was told to, not because it missed a leader.
		if said := n.daemon.text(marks[i], n.daemon.mark()); strings.Contains(said, "heartbeat timeout reached") {
			t.Errorf("%s was elected after a heartbeat timeout:\n%s", heir, said)
		}
	}
	at := others[0].statusWhen(linked).job("job").Position.Step
	others[0].statusWhen(func(s status) bool { return s.job("job").Position.Step > at })
}
