//go:build cgo

package trouble_test

import (
	"path/filepath"
	"testing"

	"github.com/replicad/replicad/internal/config"
)

// TestStateDirFillsUp: with no room for the Raft log nothing is committed, training goes on all the same, and once there is
// room so do commits.
func TestStateDirFillsUp(t *testing.T) {
	t.Parallel()
	disk := tmpfs(t, "4m")
	n := one(t, func(c *config.Config) { c.StateDir = filepath.Join(disk, "state") })
	l := n.run("job", 1, rankSpec{Floats: 100})
	l.await("step", fields{"step": 5})
	full(t, disk)
	f := n.daemon.await("raft", fields{"level": "warn", "raft_error": "no space left on device"})
	contains(t, f.text, n.cfg.StateDir, "free space in state_dir")
	from := l.mark()
	l.awaitFrom(from, "step", nil)
	remove(t, filepath.Join(disk, "ballast"))
	n.daemon.awaitFrom(n.daemon.mark(), "commit_seen", nil)
	if l.saw(func(l line) bool { return l.is("error", nil) }) {
		t.Error("the rank failed")
	}
}

// TestDurableDirFillsUp: a durable generation that can't be written is given up with the reason; training and commits go on,
// and once there is room a later one is written.
func TestDurableDirFillsUp(t *testing.T) {
	t.Parallel()
	disk := tmpfs(t, "1m")
	n := one(t, func(c *config.Config) { c.DurableDir = disk })
	full(t, disk)
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	f := n.daemon.await("failed", fields{"what": "durable"})
	contains(t, f.text, "no space left on device", "free space in "+disk)
	n.daemon.awaitFrom(n.daemon.mark(), "commit_seen", nil)
	remove(t, filepath.Join(disk, "ballast"))
	n.daemon.await("durable", nil)
	if l.saw(func(l line) bool { return l.is("fenced", nil) }) {
		t.Error("training was disturbed")
	}
}

// TestDurableDirIsFull: a daemon that starts while its durable tier has no room says so, and serves; ranks are worth more than the last resort. What
// lies there can be read.
func TestDurableDirIsFull(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.DurableDir = full(t, tmpfs(t, "64k")) })
	f := n.daemon.await("failed", fields{"what": "durable"})
	contains(t, f.text, n.cfg.DurableDir, "no space left on device", "free space in")
	n.run("job", 1, rankSpec{}, "--durable-every", "5").await("step", fields{"step": 20})
	n.daemon.awaitFrom(n.daemon.mark(), "commit_seen", nil)

	l := n.run("other", 1, rankSpec{}, "--resume")
	n.daemon.await("note", fields{"text": `no durable generation of job "other": it starts afresh`})
	l.await("step", fields{"step": 20})
}
