package replica

import "testing"

// The interval is Daly's, held against the best of a search of the time that is lost: writes, and what is computed again after a fault.
func TestDurableIntervalLosesLeast(t *testing.T) {
	lost := func(interval, cost, between float64) float64 { // of a second of work, to the first order
		return cost/interval + (interval+cost)/2/between
	}
	const minute, hour = 60.0, 3600.0
	for _, tc := range []struct{ cost, between float64 }{{10, 2 * hour}, {minute, 3 * hour}, {2, 12 * hour}, {30, hour}} {
		best := 1.0
		for s := 1.0; s < tc.between; s++ {
			if lost(s, tc.cost, tc.between) < lost(best, tc.cost, tc.between) {
				best = s
			}
		}
		if got := DurableInterval(tc.cost, tc.between); got < 0.9*best || got > 1.1*best {
			t.Errorf("writes of %v s, a fault in %v s: %v s, the search says %v s", tc.cost, tc.between, got, best)
		}
	}
	for _, tc := range []struct{ cost, between, want float64 }{
		{0, 24 * hour, DurableAutoLeast}, {0.001, hour, DurableAutoLeast}, {hour, 24 * hour, DurableAutoMost}, {hour, minute, DurableAutoLeast}, {minute, 0, DurableAutoLeast}, {hour, 20 * minute, 20 * minute},
	} {
		if got := DurableInterval(tc.cost, tc.between); got != tc.want {
			t.Errorf("writes of %v s, a fault in %v s: %v s, want %v s", tc.cost, tc.between, got, tc.want)
		}
	}
}
