//go:build cgo

package trouble_test

import (
	"slices"
	"strings"
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
	s = c.nodes[0].statusWhen(func(s status) bool { return len(s.job("lonely").Parts) > 0 && s.job("lonely").Position.Step > stuck+50 })
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
	c.nodes[0].statusWhen(func(status) bool { return c.nodes[0].daemon.saw(said) || other.daemon.saw(said) }) // one leads
}

// TestLostCopiesAreMadeAgain: the node that mirrors a job dies while the job makes no step. What is committed is copied to another node, in
// the same epoch, though nothing is committed any more.
func TestLostCopiesAreMadeAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.cfg.Timing.DaemonGrace = 2 * time.Second
		n.write()
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	launcher := c.nodes[0].run("resting", 1, rankSpec{Rest: 20, RestFor: time.Hour, Floats: 1 << 19, Pace: 50 * time.Millisecond}, "--ranks", "0")
	launcher.await("resting", nil)
	holds := func(s status, n *node, part string) bool {
		return slices.ContainsFunc(s.job("resting").Parts, func(p statusPart) bool { return p.Part == part && slices.Contains(p.Nodes, n.cfg.Node) })
	}
	var mirror, other *node
	before := c.nodes[0].statusWhen(func(s status) bool {
		mirror, other = c.nodes[1], c.nodes[2]
		if !holds(s, mirror, "group 0") {
			mirror, other = other, mirror
		}
		return s.job("resting").Position.Step >= 1 && holds(s, mirror, "group 0")
	})
	mirror.die()
	after := c.nodes[0].statusWhen(func(s status) bool { return holds(s, other, "group 0") && holds(s, other, "private 0") })
	was, is := before.job("resting"), after.job("resting")
	if is.Epoch != was.Epoch || is.Position.Step >= 20 {
		t.Errorf("%+v, and before %s died %+v", is, mirror.cfg.Node, was)
	}
}

// TestStatusSaysHowOftenAJobCommits: where the way to the mirror takes longer than a step, the newest step that is there commits, and status
// says every how many steps that is, and why.
func TestStatusSaysHowOftenAJobCommits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	c.calm()
	net := c.behind()
	for _, from := range c.nodes {
		for _, to := range c.nodes {
			if from != to {
				c.must(net.Shape(from.Name, to.Name, 0, 40*time.Millisecond, 0))
			}
		}
	}
	rank := c.nodes[0].run("far", 1, rankSpec{Pace: 5 * time.Millisecond}, "--ranks", "0")
	rank.await("step", fields{"step": 100})
	var code int
	var out string
	c.nodes[0].statusWhen(func(s status) bool { // both, in two answers: a busy leader may miss one
		is := s.job("far").Commits
		if is == nil || is.Steps <= 2*is.Count || !strings.Contains(is.Why, "a step takes") {
			return false
		}
		code, out = call(t, "status", "--socket", c.nodes[0].cfg.AdminSocket)
		return code == 0 && strings.Contains(out, "\ncommits ")
	})
}

func contained(list any, name string) bool {
	names, _ := list.([]any)
	return slices.Contains(names, any(name))
}
