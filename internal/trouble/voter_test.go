//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
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
