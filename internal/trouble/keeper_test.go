//go:build cgo

package trouble_test

import (
	"syscall"
	"testing"
)

// TestKeeperDies: a keeper is killed beside its daemon, and a keeper takes its place; later the daemon is started again, and later still a rank of
// another node is killed. Nothing of that ends the node's life: its rank trains on, the ranks meet again, and no step is lost to it.
func TestKeeperDies(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	n1, n2 := c.nodes[0], c.nodes[1]
	other := n1.run("job", 2, rankSpec{}, "--ranks", "0")
	ranks := n2.run("job", 2, rankSpec{}, "--ranks", "1")
	ranks.await("step", fields{"step": 20})

	n2.keeper.kill()
	n2.keep()
	ranks.awaitFrom(ranks.mark(), "step", nil)

	n2.daemon.Signal(syscall.SIGTERM)
	n2.daemon.exit()
	n2.start()
	ranks.awaitFrom(ranks.mark(), "step", nil)

	dead := n1.statusWhen(linked).job("job").Ranks[0].PID
	mark := ranks.mark()
	if err := syscall.Kill(dead, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ranks.awaitFrom(mark, "loaded", nil)
	ranks.awaitFrom(ranks.mark(), "step", nil)
	_ = other
}
