//go:build cgo

package trouble_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// A rank stops in the middle of a step and never says so: its daemon notices, it is killed where it stands, and the job goes on
// in another process. One that has declared a pause is left alone.
func TestARankHangs(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.Timing.HangLeast, c.Timing.HangFirst = time.Second, time.Second })
	l := n.run("job", 1, rankSpec{Rest: 12})
	l.await("resting", nil) // three times as long as it may stand still, and declared
	at := l.await("step", fields{"step": 20})
	n.committed(20)
	pid := int(at.fields["pid"].(float64))
	// A machine without time may have the rank stand still elsewhere.
	if n.daemon.saw(func(o line) bool { return o.is("fault", fields{"detail": "stands still in step 11, IDLE"}) }) {
		t.Error("a declared pause was taken for a hang")
	}
	from := l.mark()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.daemon.await("fault", fields{"kind": "hang", "detail": "stands still in step"})
	o := l.awaitFrom(from, "loaded", nil)
	if o.fields["source"] != "own-ram" || o.fields["step"].(float64) < 20 {
		t.Errorf("want step 20 or later of its own memory: %s", o.text)
	}
	l.awaitFrom(from, "step", fields{"step": int(o.fields["step"].(float64)) + 3})
}

// A process that hangs before it attaches has no steps to tell that by: it is killed after timing.start, and another one started.
// The launcher says why. Both as the job begins, where another rank waits, and in a recovery.
func TestAProcessHangsAtItsStart(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.Timing.Start = 2 * time.Second })
	stuck := filepath.Join(t.TempDir(), "stuck")
	write(t, stuck, "")
	l := n.run("job", 2, rankSpec{Stuck: stuck})
	l.await("stuck", nil)
	l.awaitText(0, ": killed, since it had not attached after 2s (timing.start of this node's configuration); it is started again")
	at := l.await("step", fields{"step": 20})
	n.committed(20)

	write(t, stuck, "")
	from := l.mark()
	if err := syscall.Kill(int(at.fields["pid"].(float64)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	l.awaitFrom(from, "stuck", nil)
	if o := l.awaitFrom(from, "loaded", nil); o.fields["source"] != "own-ram" || o.fields["step"].(float64) < 20 {
		t.Errorf("want step 20 or later of its own memory: %s", o.text)
	}
}

// committed waits until a step, or a later one, is committed: what a rank has done is kept from then on, and steps that are faster than
// commits have no copy of their own each.
func (n *node) committed(step float64) {
	n.t.Helper()
	n.daemon.awaitLine(0, "a commit of the step or a later one", func(o line) bool { return o.is("committed", nil) && o.fields["step"].(float64) >= step })
}

// All ranks stand still at the same place, since a signal has stopped one of them: it alone is replaced.
func TestAStoppedRankAloneIsReplaced(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.Timing.HangLeast, c.Timing.HangFirst = time.Second, time.Second })
	l := n.run("job", 2, rankSpec{})
	waits := l.await("step", fields{"step": 20, "rank": 0}).fields["pid"]
	stopped := int(l.await("step", fields{"step": 20, "rank": 1}).fields["pid"].(float64))
	n.committed(20)
	from := l.mark()
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	n.daemon.await("fault", fields{"kind": "hang", "rank": 1, "detail": "its process is stopped by a signal"})
	l.awaitFrom(from, "loaded", fields{"rank": 1})
	if o := l.awaitFrom(from, "loaded", fields{"rank": 0}); o.fields["pid"] != waits {
		t.Errorf("the rank that only waited was started anew: %s", o.text)
	}
	if n.daemon.saw(func(o line) bool { return o.is("fault", fields{"kind": "hang", "rank": 0}) }) {
		t.Error("it was named, too")
	}
}
