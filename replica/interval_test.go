package replica

import (
	"testing"
	"time"
)

// The interval is Daly's, held against the best of a search of the time that is lost: writes, and what is computed again after a fault.
func TestDurableIntervalLosesLeast(t *testing.T) {
	lost := func(interval, cost, between float64) float64 { // of a second of work, to the first order
		return cost/interval + (interval+cost)/2/between
	}
	for _, tc := range []struct{ cost, between time.Duration }{{10 * time.Second, 2 * time.Hour}, {time.Minute, 3 * time.Hour}, {2 * time.Second, 12 * time.Hour}, {30 * time.Second, time.Hour}} {
		c, m := tc.cost.Seconds(), tc.between.Seconds()
		best := 1.0
		for s := 1.0; s < m; s++ {
			if lost(s, c, m) < lost(best, c, m) {
				best = s
			}
		}
		got := DurableInterval(tc.cost, tc.between).Seconds()
		if got < 0.9*best || got > 1.1*best {
			t.Errorf("writes of %v, a fault in %v: %v s, the search says %v s", tc.cost, tc.between, got, best)
		}
	}
	for _, tc := range []struct{ cost, between, want time.Duration }{
		{0, 24 * time.Hour, DurableAutoLeast}, {time.Millisecond, time.Hour, DurableAutoLeast}, {time.Hour, 24 * time.Hour, DurableAutoMost}, {time.Hour, time.Minute, DurableAutoLeast}, {time.Minute, 0, DurableAutoLeast}, {time.Hour, 20 * time.Minute, 20 * time.Minute},
	} {
		if got := DurableInterval(tc.cost, tc.between); got != tc.want {
			t.Errorf("writes of %v, a fault in %v: %v, want %v", tc.cost, tc.between, got, tc.want)
		}
	}
}
