//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVoterWithoutItsLog: a voter that lost its disk does not vote again under its name, says what to do, and serves as a
// client meanwhile; the other two go on.
func TestVoterWithoutItsLog(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	lost := c.nodes[2]
	lost.die()
	if err := os.RemoveAll(filepath.Join(lost.cfg.StateDir, "raft")); err != nil {
		t.Fatal(err)
	}
	lost.launch()
	f := lost.daemon.await("failed", fields{"what": "raft", "subject": "this voter runs as a client"})
	contains(t, f.text, lost.cfg.StateDir, "new name")
	lost.daemon.await("linked", nil)
	c.nodes[0].run("job", 1, rankSpec{}).await("step", fields{"step": 5})
	s := lost.statusWhen(func(s status) bool { return linked(s) && len(s.Nodes) == 3 })
	if s.Leader == "n3" {
		t.Errorf("status: %+v", s)
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
