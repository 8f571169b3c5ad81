//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// trio starts three voters.
func trio(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	return c
}

// loseLog loses the log of a voter whose daemon does not run.
func (n *node) loseLog() {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.cfg.StateDir, "raft")); err != nil {
		n.t.Fatal(err)
	}
}

// TestVoterWithoutItsLog: a voter that lost its disk comes back under its name, with --bootstrap left in its unit, and its vote is a vote.
func TestVoterWithoutItsLog(t *testing.T) {
	t.Parallel()
	c := trio(t)
	l := c.nodes[0].run("job", 1, rankSpec{Pace: 20 * time.Millisecond}, "--min-copies", "1")
	l.await("step", fields{"step": 5})
	lost := c.nodes[2]
	lost.die()
	lost.loseLog()
	lost.flags = []string{"--bootstrap"}
	lost.launch()
	lost.daemon.await("raft", fields{"text": "this voter votes again"})
	c.nodes[1].die() // without the third one's vote and log nothing is committed now
	at := c.nodes[0].statusWhen(func(s status) bool { return s.Leader != "" && s.Leader != "n2" }).job("job").Position.Step
	c.nodes[0].statusWhen(func(s status) bool { return s.job("job").Position.Step > at+5 })
}

// TestBootstrapLeftInTheUnit: n2 is down, n1 and n3 commit, n3's disk is lost and it starts with --bootstrap, n2 comes back: no history but the first.
// With n1 all goes on.
func TestBootstrapLeftInTheUnit(t *testing.T) {
	t.Parallel()
	c := trio(t)
	n1, n2, n3 := c.nodes[0], c.nodes[1], c.nodes[2]
	n2.die()
	l := n1.run("job", 1, rankSpec{Pace: 20 * time.Millisecond}, "--min-copies", "1")
	l.await("step", fields{"step": 5})
	at := n1.statusWhen(func(s status) bool { return s.job("job").Position.Step > 5 }).job("job").Position.Step
	n3.die()
	n1.daemon.kill()
	n3.loseLog()
	for _, n := range []*node{n2, n3} {
		n.flags = []string{"--bootstrap"}
		n.launch()
	}
	n3.daemon.awaitText(0, "this voter learns: its log is empty")
	if code, out := n2.verb("voter", "list"); code != 0 || !strings.Contains(out, "no leader answers") {
		t.Errorf("voter list without a leader: code %d, %s", code, out)
	}
	n1.flags = []string{"--bootstrap"}
	n1.serve()
	n3.daemon.await("raft", fields{"text": "this voter votes again"})
	s := n1.statusWhen(func(s status) bool { return s.job("job").Position.Step > at })
	if len(s.Jobs) != 1 {
		t.Errorf("jobs: %+v", s.Jobs)
	}
}

// TestWrongVoterIsRefused: a voter that is not there, is another node, or does not wait to be one, changes nothing.
func TestWrongVoterIsRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	n1, n2 := c.nodes[0], c.nodes[1]
	for _, wrong := range []struct{ name, addr, text string }{
		{"bb", "127.0.0.1:9", "does not answer"},
		{"bb", n2.cfg.Addr, "does not answer"}, // it has another certificate
		{"n2", n2.cfg.Addr, "does not serve"},  // its daemon is no voter's
		{"n2", n1.cfg.Addr, "does not answer"}, // the leader's own address
		{"n1", n1.cfg.Addr, "votes already"},
	} {
		if code, out := n1.verb("voter", "add", wrong.name, wrong.addr); code != exitFailed {
			t.Errorf("added %s at %s: code %d, %s", wrong.name, wrong.addr, code, out)
		} else {
			contains(t, out, wrong.text)
		}
	}
	if code, out := n1.verb("voter", "list"); code != 0 || strings.Contains(out, "n2") || strings.Contains(out, "bb") {
		t.Errorf("code %d: %s", code, out)
	}
	n1.run("job", 1, rankSpec{}).await("step", fields{"step": 5})
}

// TestVoterRecover: two of three voters are lost for good while a job runs. Nothing happens without the operator's word; then the third
// leads alone, and the ranks, which were never stopped, go on.
func TestVoterRecover(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	left := c.nodes[2]
	left.run("job", 1, rankSpec{}, "--min-copies", "1").await("step", fields{"step": 5})
	if code, out := call(t, "voter", "recover", "--config", left.File, "--accept-loss"); code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	} else {
		contains(t, out, "in use by another process")
	}
	c.nodes[0].die()
	c.nodes[1].die()
	left.daemon.kill()
	code, out := call(t, "voter", "recover", "--config", left.File)
	if code != exitFailed {
		t.Errorf("code %d: %s", code, out)
	}
	contains(t, out, "last entry", "of term", "job job", "committed step", "can't prove", "nothing was changed", "--accept-loss")
	if code, out = call(t, "voter", "recover", "--config", left.File, "--accept-loss"); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	contains(t, out, "n3 is the only voter now, in era 2", "committed step", "can't prove")
	left.cfg.Voters = left.cfg.Voters[2:]
	left.write()
	left.launch()
	left.daemon.await("linked", nil)
	at := left.statusWhen(func(s status) bool { j := s.job("job"); return j.Phase == "open" && j.Epoch > 1000 }).job("job").Position.Step
	left.statusWhen(func(s status) bool { return s.job("job").Position.Step > at })
}
