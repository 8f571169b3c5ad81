//go:build cgo

package trouble_test

import (
	"syscall"
	"testing"
)

// TestKeeperDies: keeper and daemon of a node with a rank end and start again, in every order; later the daemon is started again, and later still a
// rank of another node is killed. The rank trains on all the time, the ranks meet again, and no committed step is lost. The node's life ends only
// where both had ended.
func TestKeeperDies(t *testing.T) {
	t.Parallel()
	type sequence struct {
		own  bool // the daemon starts keepers
		next bool // it is another life
		do   func(n *node, back func())
	}
	for name, seq := range map[string]sequence{
		"the keeper": {do: func(n *node, back func()) {
			n.keeper.kill()
			n.keep()
			back()
		}},
		"the keeper that its daemon started": {own: true, do: func(n *node, back func()) {
			n.keeper.kill()
			back()
			pid := n.daemon.await("keeper_started", nil).fields["pid"].(float64)
			n.t.Cleanup(func() { _ = syscall.Kill(int(pid), syscall.SIGKILL) }) // it outlives its daemon
		}},
		"the keeper, twice": {do: func(n *node, back func()) {
			for range 2 {
				n.keeper.kill()
				n.keep()
				back()
			}
		}},
		"both, the keeper back first": {next: true, do: func(n *node, _ func()) {
			n.daemon.kill()
			n.keeper.kill()
			n.keep()
			n.start()
		}},
		"both, the daemon back first": {next: true, do: func(n *node, _ func()) {
			n.keeper.kill()
			n.daemon.kill()
			n.serve()
			n.keep()
			n.daemon.await("linked", nil)
		}},
		"the keeper while its daemon starts": {next: true, do: func(n *node, _ func()) {
			n.daemon.Signal(syscall.SIGTERM)
			n.daemon.exit()
			n.keeper.kill()
			n.keep()
			n.start()
		}},
		"the daemon before the keeper has its life": {next: true, do: func(n *node, _ func()) {
			n.keeper.kill()
			n.daemon.await("keeper", nil)
			n.daemon.kill()
			n.keep()
			n.start()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "n1", "n2")
			c.voters(1)
			n1, n2 := c.nodes[0], c.nodes[1]
			if seq.own {
				n2.flags = []string{"--wait-keeper=false"}
				n2.keep()
				n2.keeperAnswers() // or the daemon starts one of its own at once, and this one ends
			}
			n1.start()
			n2.start()
			n1.run("job", 2, rankSpec{}, "--ranks", "0")
			ranks := n2.run("job", 2, rankSpec{}, "--ranks", "1")
			ranks.await("step", fields{"step": 20})
			was := n2.statusWhen(linked)

			seen := 0
			seq.do(n2, func() {
				n2.daemon.awaitFrom(seen, "keeper_back", nil)
				seen = n2.daemon.mark()
			})
			is := n2.statusWhen(func(s status) bool { return linked(s) && !s.KeeperLost })
			if another := is.Incarnation != was.Incarnation; another != seq.next {
				t.Errorf("incarnation %d after %d", is.Incarnation, was.Incarnation)
			}
			ranks.awaitFrom(ranks.mark(), "step", fields{"epoch": 1})

			n2.daemon.Signal(syscall.SIGTERM) // as an upgrade does
			n2.daemon.exit()
			n2.start()
			if again := n2.statusWhen(linked); again.Incarnation != is.Incarnation || again.Session != is.Session+1 {
				t.Errorf("a daemon that starts again has incarnation %d, session %d after %d, %d", again.Incarnation, again.Session, is.Incarnation, is.Session)
			}
			ranks.awaitFrom(ranks.mark(), "step", fields{"epoch": 1})

			job := n1.statusWhen(linked).job("job")
			mark := ranks.mark()
			if err := syscall.Kill(job.Ranks[0].PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if o := ranks.awaitFrom(mark, "loaded", nil); stepAt(o) < job.Position.Step || o.fields["source"] == "durable" {
				t.Errorf("want at least step %d from memory: %s", job.Position.Step, o.text)
			}
			ranks.awaitFrom(ranks.mark(), "step", fields{"epoch": 2})
		})
	}
}
