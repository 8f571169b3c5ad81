package leader

import (
	"testing"
	"time"
)

// Who is waited for is said at once, after twice as long, and so on; a wait that has ended is another one when it begins again.
func TestWaitsAreSaidMoreAndMoreSeldom(t *testing.T) {
	var s saidWaits
	for i, c := range []struct {
		at        time.Duration
		waits, is bool
	}{{1, true, true}, {2, true, false}, {16, true, true}, {30, true, false}, {46, true, true}, {47, false, false}, {48, true, true}} {
		if got := s.due(c.at*time.Second, 15*time.Second, c.waits); got != c.is {
			t.Errorf("%d: said %v, want %v", i, got, c.is)
		}
	}
}
