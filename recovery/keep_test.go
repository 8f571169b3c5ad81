package recovery

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// TestWhatTheLeaderHandsOutIsKept: also after what a leader of another history handed out, which no later one of this history would come up to.
func TestWhatTheLeaderHandsOutIsKept(t *testing.T) {
	reads := func(era replica.Era, term, seq, ms uint64) replica.Ledger {
		return replica.Ledger{Era: era, Term: term, Seq: seq, Readings: []replica.Reading{{Clock: replica.Clock{Kind: clockAlone}, N: ms}}}
	}
	var k Keep
	for _, step := range []struct {
		takes replica.Ledger
		want  uint64
	}{{reads(1, 99, 5, 1), 1}, {reads(1, 7, 2, 2), 2}, {reads(1, 7, 1, 3), 2}, {reads(1, 7, 3, 4), 4}, {reads(2, 1, 1, 5), 5}} {
		k.Take(time.Second, step.takes)
		if l, ok := k.Word(time.Second, replica.JobID{1}); !ok || l.Readings[0].N != step.want {
			t.Errorf("after %v: keeps %v, want the reading %d", step.takes, l, step.want)
		}
	}
}
