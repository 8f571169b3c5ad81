package recovery

import (
	"testing"
)

// TestWhichKindsAreMeasures: a measure does not go on with time, and a clock that stands behind them in the list does.
func TestWhichKindsAreMeasures(t *testing.T) {
	for k := clockGone; k <= clockRecovered; k++ {
		want := k >= measureSpace && k != clockRecovered
		if measure(k) != want {
			t.Errorf("kind %d is a measure: %v", k, measure(k))
		}
	}
	if measure(clockRecovered + 1) {
		t.Error("a kind that nobody knows is a measure")
	}
}
