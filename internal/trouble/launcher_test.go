//go:build cgo

package trouble_test

import (
	"syscall"
	"testing"
)

// A launcher that is stopped beside a healthy one on its node does not get the rank that it has lost for ever: the other one is asked.
func TestAStoppedLauncherIsLeftOut(t *testing.T) {
	t.Parallel()
	n := one(t)
	first := n.run("job", 1, rankSpec{})
	at := first.await("step", fields{"step": 20})
	second := n.run("job", 1, rankSpec{}, "--spare")
	n.statusWhen(func(s status) bool { return len(s.job("job").Offers) == 1 })
	n.committed(20)
	first.Signal(syscall.SIGSTOP)
	awaitStopped(t, first.PID())
	if err := syscall.Kill(int(at.fields["pid"].(float64)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o := second.await("loaded", nil)
	if o.fields["source"] != "own-ram" || o.fields["step"].(float64) < 20 {
		t.Errorf("want step 20 or later of the rank's own memory: %s", o.text)
	}
	first.Signal(syscall.SIGCONT)
	second.await("step", fields{"step": int(o.fields["step"].(float64)) + 10})
}
