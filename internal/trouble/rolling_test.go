//go:build cgo

package trouble_test

import (
	"testing"
	"time"
)

// TestDaemonsStartAgainTogether: both daemons of a job are killed and started again, round after round, the leader with them. The ranks meet
// in a barrier at each step: the answer of one may be lost where that of the other was not, and they meet all the same.
func TestDaemonsStartAgainTogether(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	pace := rankSpec{Pace: 10 * time.Millisecond} // an epoch's rendezvous has 4096 barriers
	n1, n3 := c.nodes[0], c.nodes[1]
	n1.run("job", 2, pace, "--ranks", "0")
	n3.run("job", 2, pace, "--ranks", "1").await("step", fields{"step": 5})
	for range 8 {
		n1.daemon.kill()
		n3.daemon.kill()
		n3.launch()
		n3.daemon.await("daemon_ready", nil)
		n1.launch()
		for _, n := range []*node{n1, n3} {
			n.daemon.await("linked", nil)
		}
		at := n1.statusWhen(func(s status) bool { return linked(s) && s.job("job").Phase == "open" }).job("job").Position.Step
		n1.statusWhen(func(s status) bool { return s.job("job").Position.Step > at })
	}
}
