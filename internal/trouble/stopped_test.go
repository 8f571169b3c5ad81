//go:build cgo

package trouble_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// freePair is a job of two ranks on the first two of three nodes, which step by step need no daemon.
func freePair(t *testing.T, pace time.Duration) (c *cluster, launchers []*process) {
	t.Helper()
	c = newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	for i, n := range c.nodes[:2] {
		launchers = append(launchers, n.run("job", 2, rankSpec{Pace: pace, Free: true}, "--ranks", string(rune('0'+i))))
	}
	return c, launchers
}

// standStill stops a daemon until the ranks of another node have made so many steps, and has it go on.
func (c *cluster) standStill(stopped *node, other *process, steps int) {
	c.t.Helper()
	from := other.mark()
	at := other.awaitFrom(from, "step", nil).fields["step"].(float64)
	stopped.daemon.Signal(syscall.SIGSTOP)
	awaitStopped(c.t, stopped.daemon.PID())
	other.awaitLine(from, "steps meanwhile", func(o line) bool { return o.is("step", nil) && o.fields["step"].(float64) >= at+float64(steps) })
	stopped.daemon.Signal(syscall.SIGCONT)
}

// undisturbed fails the test where an epoch was closed, or a process ended, and waits until commits go on.
func (c *cluster) undisturbed(launchers []*process) {
	c.t.Helper()
	var from []int
	for _, n := range c.nodes {
		from = append(from, n.daemon.mark())
	}
	for i, n := range c.nodes[:2] {
		n.daemon.awaitFrom(from[i], "commit_seen", fields{"epoch": 1})
	}
	for _, n := range c.nodes {
		if n.daemon.saw(func(o line) bool { return o.is("fault", nil) }) {
			c.t.Errorf("%s: a fault was recorded", n.cfg.Node)
		}
	}
	for i, l := range launchers {
		if l.saw(func(o line) bool { return o.is("fenced", nil) || strings.Contains(o.text, "ended with status") }) {
			c.t.Errorf("rank %d was disturbed", i)
		}
	}
}

// A daemon that stands still for seconds (stopped, swapped out, starved) is one that is down: training goes on, no epoch is closed and
// nothing is redone, whether it leads, follows, or has ranks.
func TestADaemonStandsStill(t *testing.T) {
	t.Parallel()
	c, launchers := freePair(t, 300*time.Millisecond)
	launchers[0].await("step", fields{"step": 3})
	launchers[1].await("step", fields{"step": 3})
	leader, _ := c.leader()
	order := []*node{leader}
	for _, n := range c.nodes[:2] {
		if n != leader {
			order = append(order, n)
			break
		}
	}
	for _, n := range order {
		other := launchers[0]
		if n == c.nodes[0] {
			other = launchers[1]
		}
		c.standStill(n, other, 12) // 3.6 s; silence alone was taken for death after 1.5
		c.undisturbed(launchers)
	}
}

// The same for 5 and 20 s, with steps of 0.3 and of 5 s, for each daemon in turn. It takes ten minutes.
func TestADaemonStandsStillForLong(t *testing.T) {
	if os.Getenv("TROUBLE_LONG") == "" {
		t.Skip("takes ten minutes: set TROUBLE_LONG")
	}
	for name, pace := range map[string]time.Duration{"0.3 s": 300 * time.Millisecond, "5 s": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, launchers := freePair(t, pace)
			launchers[0].await("step", fields{"step": 3})
			launchers[1].await("step", fields{"step": 3})
			for _, long := range []time.Duration{5 * time.Second, 20 * time.Second} {
				for i, n := range c.nodes {
					c.standStill(n, launchers[min(1, (i+1)%2)], int((long+pace-1)/pace))
					c.undisturbed(launchers)
					t.Logf("%s stood still for %v under steps of %v: undisturbed, leader %s", n.cfg.Node, long, pace, c.nodes[0].status().Leader)
				}
			}
		})
	}
}
