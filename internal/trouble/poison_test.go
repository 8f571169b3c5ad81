//go:build cgo

package trouble_test

import (
	"fmt"
	"testing"
)

// One of three twins has a NaN in its weights before the digest is made, so no digest is wrong. But the twins' roots differ: the two
// that agree name the third, the poisoned step is never committed and never loaded (a rank that loads a NaN says so and ends),
// and the job goes on from the step before, once.
// (A bit that flips in a holder's copy is TestACopyRots.)
func TestATwinIsPoisoned(t *testing.T) {
	t.Parallel()
	const poisoned = 12
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	var launchers []*process
	for i, n := range c.nodes {
		launchers = append(launchers, n.run("job", 3, rankSpec{Poison: poisoned, Steps: 40, Pace: 20e6}, "--ranks", fmt.Sprint(i)))
	}
	for _, l := range launchers {
		o := l.await("loaded", fields{"epoch": 2})
		if got := int(o.fields["step"].(float64)); got >= poisoned {
			t.Errorf("the job goes on from the poisoned state: %s", o.text)
		}
		if code := l.exit(); code != 0 {
			t.Errorf("a launcher ends with code %d", code)
		}
	}
	voter := c.nodes[0]
	voter.daemon.await("disputed", fields{"text": "rank 2 on n3"})
	if j := voter.status().job("job"); j.Epoch != 2 || j.Position.Step < poisoned {
		t.Errorf("the job ended in epoch %d at step %d, want 2 and beyond the poisoned step: one dispute, no loop", j.Epoch, j.Position.Step)
	}
}
