//go:build cgo

package trouble_test

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAllDaemonsAreAskedToEndAndTheLeaderStands: the leader's daemon gets no core for a while, just as all are asked to end: another leads, and what is
// committed is on disk in the end.
func TestAllDaemonsAreAskedToEndAndTheLeaderStands(t *testing.T) {
	t.Parallel()
	c, _ := stopping(t)
	at := c.nodes[0].status().job("job").Position.Step
	leader, _ := c.leader()
	leader.daemon.Signal(syscall.SIGSTOP)
	awaitStopped(t, leader.daemon.PID())
	time.AfterFunc(2*time.Second, func() { leader.daemon.Signal(syscall.SIGCONT) })
	endsWritten(t, c, at)
}

// TestAllDaemonsAreAskedToEndWithoutALeader: no daemon ever hears of a leader again: each leaves what it has of the newest commit in its spool, and says so.
// The machines go down with their memory, and a resume finishes the step. It used to be NOT on disk.
func TestAllDaemonsAreAskedToEndWithoutALeader(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	var launchers []*process
	for _, n := range c.nodes {
		n.cfg.Timing.StopGrace = 5 * time.Second // each waits it out for a leader, and writes in what is left
		n.write()
		n.launch()
	}
	for i, n := range c.nodes {
		if n.daemon.await("linked", nil); i < 2 {
			launchers = append(launchers, n.run("job", 2, rankSpec{}, "--ranks", string('0'+rune(i)), "--durable-every", "1000000"))
		}
	}
	launchers[0].await("step", fields{"step": 60})
	at := c.nodes[0].status().job("job").Position.Step
	leader, others := c.leader()
	for _, n := range []*node{leader, others[0]} { // the third has no majority, nor has each of them later
		n.daemon.Signal(syscall.SIGSTOP)
		awaitStopped(t, n.daemon.PID())
	}
	said := ""
	for _, n := range []*node{others[1], others[0], leader} {
		n.daemon.Signal(syscall.SIGTERM)
		n.daemon.Signal(syscall.SIGCONT)
		if code := n.daemon.exit(); code != 0 {
			t.Errorf("the daemon of %s ends with code %d", n.Name, code)
		}
		if n != c.nodes[2] { // it has no rank: whether it has anything of the step, to leave in its spool, is the leader's choice
			said += n.daemon.output()
		}
	}
	if !strings.Contains(said, "not in the store") || strings.Contains(said, "NOT on disk") {
		t.Errorf("they do not say where the step is: %s", said)
	}
	if disk := newest(t, c.nodes[0]); disk != 0 {
		t.Fatalf("step %d is on disk: there was a leader", disk)
	}
	for _, n := range c.nodes {
		n.keeper.kill()
	}
	for _, l := range launchers {
		l.kill()
	}
	for _, n := range c.nodes {
		n.launch()
	}
	launchers = nil
	for i, n := range c.nodes[:2] {
		n.daemon.await("linked", nil)
		launchers = append(launchers, n.run("job", 2, rankSpec{}, "--ranks", string('0'+rune(i)), "--resume"))
	}
	loaded := launchers[1].awaitWithin(3*patience, 0, "what it goes on from", func(l line) bool { return l.is("loaded", nil) })
	if step := int(loaded.fields["step"].(float64)); step < at || loaded.fields["source"] != "durable" {
		t.Errorf("it goes on from step %d (%v), and step %d was committed", step, loaded.fields["source"], at)
	}
}
