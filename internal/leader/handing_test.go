package leader

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// A leader whose clock is behind that of the one that made the job knows nothing of the job's age: it used to cut all that the job had waited for to a millisecond.
func TestAJobFromTheFutureHasNoAge(t *testing.T) {
	for began, want := range map[time.Time]bool{time.Now().Add(time.Hour): false, time.Now().Add(-time.Hour): true} {
		if got := age(&replica.Job{Began: uint64(began.UnixMilli())}); got > 0 != want || got < 0 {
			t.Errorf("began at %v: %v old", began, got)
		}
	}
	if got := age(&replica.Job{}); got != 0 {
		t.Errorf("of a job that does not say when it began: %v", got)
	}
}
