//go:build cgo

package trouble_test

import (
	"fmt"
	"testing"
)

// TestInitialStateDiffers: two ranks of a group on two nodes don't start from the same state, as without a broadcast before
// seal_initial. Nobody trains; both launchers end with the name of the region that differs, and of no other.
func TestInitialStateDiffers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	var launchers []*process
	for i, n := range c.nodes {
		launchers = append(launchers, n.run("job", 2, rankSpec{Unequal: true}, "--ranks", fmt.Sprint(i)))
	}
	for _, l := range launchers {
		if code := l.exit(); code != 1 {
			t.Errorf("the launcher ends with code %d, want 1", code)
		}
		l.says("initial state of group 0 differs between rank 0 (n1) and rank 1 (n2): region \"bias\"; remedy: broadcast")
	}
	j := c.nodes[0].statusWhen(linked).job("job")
	contains(t, j.EndReason, `region "bias"; remedy`)
	if j.Phase != "ended" || j.Position.Step != 0 {
		t.Errorf("the job is %s at step %d", j.Phase, j.Position.Step)
	}
}
