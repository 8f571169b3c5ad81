package recovery_test

import (
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// TestAStoppedJobWaitsAnewAfterAllHaveStartedAgain: while no daemon ran nobody could go on with it, so the whole bound counts from the first leader after that, by that
// leader's word as well. A leader that changes after that takes nothing of it away.
func TestAStoppedJobWaitsAnewAfterAllHaveStartedAgain(t *testing.T) {
	w := script("node a offers=2", "node b offers=2", "job groups=0,0", "start 0 a", "start 1 b", "steps 3", "stop")(t)
	bound, ok := recovery.Waits[recovery.AwaitReturn].Bound.Of(w.timing)
	if !ok || bound < time.Minute {
		t.Fatalf("the bound is %v", bound)
	}
	const looks = 5 * time.Second
	passes := func(d time.Duration) {
		for end := w.now + d; w.now < end && w.state().Phase != replica.Ended; {
			w.must(t, w.wait(looks))
			w.handOut()
		}
	}
	passes(bound * 9 / 10)
	for _, n := range w.names() { // all daemons end, and with them what they kept
		w.stopDaemon(n)
	}
	for _, n := range w.names() {
		w.startDaemon(n)
	}
	began := w.now
	w.since = w.now // nodes hear of the job's phase anew
	w.newLeader()
	passes(bound / 2)
	if w.state().Phase == replica.Ended {
		t.Fatalf("it ended %v after all started again, and the bound is %v: %s", w.now-began, bound, w.state().EndReason)
	}
	w.newLeader()
	passes(bound)
	if took := w.now - began; w.state().Phase != replica.Ended || took < bound || took > bound+3*looks {
		t.Errorf("phase %v, %v after all started again; want an end after %v", w.state().Phase, took, bound)
	}
}
