package recovery

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// TestANodeKnowsOfCommitsAlone: what it says of any other clock by itself counts for nothing, as the oldest of such words counts.
func TestANodeKnowsOfCommitsAlone(t *testing.T) {
	const hour = 3_600_000
	for kind, counts := range map[replica.ClockKind]bool{clockCommit: true, clockGone: false} {
		var c Clocks
		k := replica.Clock{Kind: kind, Epoch: 1}
		c.Learn(2*time.Hour, "liar", replica.Ledger{Era: 1, Own: []replica.Reading{{Clock: k, N: hour}}}, 0)
		if at, ok := c.At(k); ok != counts || counts && at != time.Hour {
			t.Errorf("kind %d: since %v (%v), want that it counts: %v", kind, at, ok, counts)
		}
	}
}
