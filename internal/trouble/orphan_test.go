//go:build cgo

package trouble_test

import (
	"fmt"
	"testing"
)

// TestBarriersOutliveTheDaemon: ranks that meet in every step train on while the daemon of one of their nodes is killed and started
// again. Its rank is back before the daemon has heard of a leader; what it asks then waits, and is not refused.
func TestBarriersOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.calm() // a change of leader while a daemon is down loses what that daemon's ranks had told both (D23)
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	launchers := map[*node]*process{}
	for r, n := range c.nodes[:2] {
		launchers[n] = n.run("job", 2, rankSpec{}, "--ranks", fmt.Sprint(r))
	}
	for _, l := range launchers {
		l.await("step", fields{"step": 10})
	}
	for i := range 3 {
		// The daemon that leads keeps the rendezvous: what its own ranks told it goes with it (D23).
		n := c.nodes[0]
		if c.nodes[2].statusWhen(linked).Leader == string(n.cfg.Node) {
			n = c.nodes[1]
		}
		n.daemon.kill()
		n.start()
		for _, l := range launchers {
			from := l.mark()
			for range 20 {
				l.awaitFrom(from, "step", nil)
				at, _, _ := l.scan(from, func(l line) bool { return l.is("step", nil) })
				from = at + 1
			}
			if bad := func(l line) bool { return l.is("error", nil) || l.is("fenced", nil) }; l.saw(bad) {
				t.Fatalf("restart %d: training was disturbed:\n%s", i+1, l.tail(20))
			}
		}
	}
}
