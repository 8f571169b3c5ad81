package leader

import (
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// ledger is what a leader hands out.
func ledger(c *recovery.Clocks, now time.Duration, seq uint64) replica.Ledger {
	return replica.Ledger{Term: 1, Seq: seq, Readings: c.Readings(now)}
}

// Who is waited for is said at once, after twice as long, and so on; a wait that has ended is another one when it begins again. A leader that comes
// in between says nothing that another one has said.
func TestWaitsAreSaidMoreAndMoreSeldom(t *testing.T) {
	const began = 100 * time.Second // before the second leader's clock begins
	for _, changes := range []bool{false, true} {
		c, keep, shift := new(recovery.Clocks), recovery.Keep{}, time.Duration(0)
		for i, say := range []struct {
			at        time.Duration
			waits, is bool
		}{{1, true, true}, {2, true, false}, {16, true, true}, {30, true, false}, {46, true, true}, {47, false, false}, {48, true, true}} {
			if changes && i > 0 && i < 5 { // a ledger goes from one to the next
				keep.Take(say.at*time.Second, ledger(c, say.at*time.Second-shift, uint64(i)))
				l, _ := keep.Word(say.at*time.Second, replica.JobID{1})
				shift, c = began*time.Duration(i), new(recovery.Clocks)
				c.Learn(say.at*time.Second-shift, "a", l, 0)
			}
			if got := c.SayAwaited(say.at*time.Second-shift, 15*time.Second, say.waits); got != say.is {
				t.Errorf("leader changes %v, %d: said %v, want %v", changes, i, got, say.is)
			}
		}
	}
}
