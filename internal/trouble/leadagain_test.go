//go:build cgo

package trouble_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestALeaderThatCouldNotWriteItsLog: the disk of the Raft directory answers nothing for some seconds. The leader falls silent, nobody takes its place, and
// it leads again in the same term. It used to number its candidates from one again, which nodes took for old ones: the job trained on, and committed nothing.
func TestALeaderThatCouldNotWriteItsLog(t *testing.T) {
	t.Parallel()
	n := newCluster(t, "n1").nodes[0]
	dir := filepath.Join(n.cfg.StateDir, "raft")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	disk := mountLoop(t, dir)
	n.cfg.Raft.Watchdog = 2 * time.Second
	n.write()
	n.start()
	l := n.run("job", 1, rankSpec{})
	l.await("step", fields{"step": 60})
	was := n.statusWhen(linked).Term
	from := n.daemon.mark()
	disk.freeze()
	n.daemon.awaitFrom(from, "raft", fields{"text": "falls silent"})
	disk.thaw()
	n.daemon.awaitFrom(from, "linked", nil)
	for range 3 {
		n.daemon.awaitFrom(n.daemon.mark(), "committed", nil)
	}
	if now := n.statusWhen(linked).Term; now != was {
		t.Errorf("it leads in term %d, and led in %d: the test shows nothing", now, was)
	}
	if l.saw(func(l line) bool { return l.is("fenced", nil) }) {
		t.Error("training was disturbed")
	}
}
