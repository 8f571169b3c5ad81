package rank

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// A rank stands still until something of it changes; memory that comes and goes is no way forward.
func TestStillness(t *testing.T) {
	var s Stillness
	r := replica.RankReport{Incarnation: 1, Attached: true, Progress: 5}
	for i, c := range []struct {
		at    time.Duration
		does  func()
		still time.Duration
	}{
		{5, func() {}, 0},
		{8, func() {}, 3},
		{9, func() { r.Progress = 4 }, 4},
		{10, func() { r.Progress = 5 }, 5},
		{11, func() { r.Progress = 6 }, 0},
		{12, func() { r.Stopped = true }, 0},
		{20, func() {}, 8},
		{21, func() { r.Ordered = 4 }, 0},
		{22, func() { r.Incarnation = 2 }, 0},
		{23, func() { r.EndingMS = 1000 }, 0},
	} {
		c.does()
		if got := s.Look(c.at, r); got != c.still {
			t.Errorf("%d: still for %v, want %v", i, got, c.still)
		}
	}
}

// The time that bytes take counts where a state is brought, and not where a program makes its own.
func TestAStateIsBrought(t *testing.T) {
	for _, c := range []struct {
		job  replica.Job
		want bool
	}{
		{replica.Job{Phase: replica.Opening}, false},
		{replica.Job{Phase: replica.Opening, From: &replica.Origin{}}, true},
		{replica.Job{Phase: replica.Opening, Growth: &replica.Growth{}}, true},
		{replica.Job{Phase: replica.Planned}, true},
		{replica.Job{Phase: replica.Open, From: &replica.Origin{}}, false},
		{replica.Job{Phase: replica.Closed, From: &replica.Origin{}}, false},
	} {
		if got := Brings(&c.job); got != c.want {
			t.Errorf("%v from %v: %v", c.job.Phase, c.job.From, got)
		}
	}
}
