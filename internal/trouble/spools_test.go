//go:build cgo

package trouble_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// inSpool finds the generation whose write lies whole in a spool.
func inSpool(t testing.TB, dir string) (whole replica.Generation) {
	t.Helper()
	notes, err := filepath.Glob(filepath.Join(dir, "*.note.spool"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[replica.Generation]int{}
	for _, path := range notes {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // the write is through
		}
		n, err := format.ParseSpooled(b)
		if err != nil {
			continue // it is being written
		}
		seen[n.Generation]++
		for i, p := range n.Pieces {
			packed, err := n.Packed(i)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(dir, p.File)); packed.Manifest.Bytes > 0 && (err != nil || uint64(info.Size()) != packed.Manifest.Bytes) {
				seen[n.Generation] -= 100
			}
		}
	}
	for g, objects := range seen {
		if objects == 2 && g.Compare(whole) > 0 { // the group's, and that of the private parts
			whole = g
		}
	}
	return whole
}

// inBothSpools stops all daemons at a moment at which a write lies whole in the spools of both nodes, and is not committed.
func (c *cluster) inBothSpools(dir string) (spooled replica.Generation) {
	c.t.Helper()
	both := func() (g replica.Generation) {
		if g = inSpool(c.t, c.nodes[0].cfg.SpoolDir); inSpool(c.t, c.nodes[1].cfg.SpoolDir) != g {
			return replica.Generation{}
		}
		return g
	}
	c.nodes[0].statusWhen(func(status) bool {
		if spooled = both(); spooled.IsZero() {
			return false
		}
		for _, n := range c.nodes {
			n.daemon.Signal(syscall.SIGSTOP)
			awaitStopped(c.t, n.daemon.PID())
		}
		commits, err := filepath.Glob(filepath.Join(dir, "job", "*", "commits", format.StepName(spooled)+".json"))
		if err == nil && len(commits) == 0 && both() == spooled {
			return true
		}
		for _, n := range c.nodes { // it went on meanwhile
			n.daemon.Signal(syscall.SIGCONT)
		}
		return false
	})
	return spooled
}

// TestSpoolsOutliveTheirDaemons: all daemons are killed while an upload is under way whose parts lie whole in their spools. A fresh fleet, and one that
// has its log, finish it before they go on from it, and say so.
func TestSpoolsOutliveTheirDaemons(t *testing.T) {
	for name, afresh := range map[string]bool{"a fresh fleet": true, "with its log": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			c := newCluster(t, "n1", "n2")
			c.voters(1)
			for _, n := range c.nodes {
				n.cfg.DurableDir, n.cfg.SpoolDir, n.cfg.DurableRate = dir, t.TempDir(), 1<<20
				n.write()
				n.launch()
			}
			run := func(flags ...string) (launchers []*process) {
				for i, n := range c.nodes {
					n.daemon.await("linked", nil)
					launchers = append(launchers, n.run("job", 2, rankSpec{Floats: 1 << 20, Pace: 50 * time.Millisecond}, append([]string{"--groups", "0,1", "--ranks", fmt.Sprint(i), "--durable-every", "5"}, flags...)...))
				}
				return launchers
			}
			launchers := run()
			leader := c.nodes[0]
			leader.daemon.awaitWithin(3*patience, 0, "a durable write", func(l line) bool { return l.is("durable", nil) })
			spooled := c.inBothSpools(dir)
			for _, n := range c.nodes {
				n.daemon.kill()
			}
			for i, n := range c.nodes {
				n.keeper.kill()
				launchers[i].kill()
			}
			for i, n := range c.nodes {
				if afresh {
					if err := os.RemoveAll(n.cfg.StateDir); err != nil {
						t.Fatal(err)
					}
					if i == 0 {
						n.flags = []string{"--bootstrap"} // again: its log is gone
					}
				}
				n.launch()
			}
			launchers = run("--resume")
			loaded := launchers[1].awaitWithin(3*patience, 0, "what it goes on from", func(l line) bool { return l.is("loaded", nil) })
			if step := loaded.fields["step"].(float64); replica.Step(step) != spooled.Step || loaded.fields["source"] != "durable" {
				t.Errorf("it goes on from step %v (%v), and step %d lay in the spools", step, loaded.fields["source"], spooled.Step)
			}
			launchers[0].awaitText(0, fmt.Sprintf("resumed: step %d of ", spooled.Step))
			launchers[0].says("finished from the spools of n1, n2")
			leader.daemon.awaitWithin(3*patience, 0, "another durable write", func(l line) bool {
				step, ok := l.fields["step"].(float64)
				return l.is("durable", nil) && ok && replica.Step(step) > spooled.Step
			})
			for _, n := range c.nodes { // each hears by itself that it is through
				n.statusWhen(func(status) bool {
					left, err := filepath.Glob(filepath.Join(n.cfg.SpoolDir, fmt.Sprintf("*.%d-%d.*", spooled.Epoch, spooled.Step)))
					return err == nil && len(left) == 0
				})
			}
		})
	}
}
