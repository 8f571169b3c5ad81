//go:build cgo

package trouble_test

import (
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// TestMirrorsDaemonStaysDown: the daemon of a node that only mirrors is killed and not started again, while its host is up. The commit
// that waits names the node, in the log and in status; after daemon_grace another node mirrors, and commits go on in the same epoch.
func TestMirrorsDaemonStaysDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.cfg.Timing.DaemonGrace = 4 * time.Second
		n.write()
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	launcher := c.nodes[0].run("lonely", 1, rankSpec{Pace: 20 * time.Millisecond}, "--ranks", "0")
	launcher.await("step", fields{"step": 20})
	var mirror *node
	c.nodes[0].statusWhen(func(s status) bool {
		for _, p := range s.job("lonely").Parts {
			for _, n := range c.nodes[1:] {
				if p.Part == "private 0" && slices.Contains(p.Nodes, n.cfg.Node) {
					mirror = n
				}
			}
		}
		return mirror != nil
	})
	mirror.daemon.kill()
	other := c.nodes[1]
	if other == mirror {
		other = c.nodes[2]
	}
	s := c.nodes[0].statusWhen(func(s status) bool {
		return slices.ContainsFunc(s.job("lonely").Waiting, func(w string) bool {
			return w == "node "+string(mirror.cfg.Node)+": its daemon has no link to the leader"
		})
	})
	stuck := s.job("lonely").Position.Step
	s = c.nodes[0].statusWhen(func(s status) bool { return s.job("lonely").Position.Step > stuck+50 })
	j := s.job("lonely")
	if j.Epoch != 1 || mirror.daemon.Running() {
		t.Fatalf("%+v", j)
	}
	holds := func(n replica.NodeName) bool {
		return slices.ContainsFunc(j.Parts, func(p statusPart) bool { return slices.Contains(p.Nodes, n) })
	}
	if !holds(other.cfg.Node) || holds(mirror.cfg.Node) {
		t.Fatalf("held by %+v, with the daemon of %s down", j.Parts, mirror.cfg.Node)
	}
	said := func(l line) bool {
		return l.is("commit_waits", nil) && contained(l.fields["nodes"], string(mirror.cfg.Node))
	}
	if !c.nodes[0].daemon.saw(said) && !other.daemon.saw(said) {
		t.Errorf("no leader logged that the commit waits for %s", mirror.cfg.Node)
	}
}

func contained(list any, name string) bool {
	names, _ := list.([]any)
	return slices.Contains(names, any(name))
}
