package consensus

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const base = 400 * time.Millisecond
	begin := time.Unix(1_900_000_000, 0)
	at := func(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }
	p := pace{heartbeat: base, election: base}
	want := func(when float64, heartbeat, election time.Duration) {
		t.Helper()
		if h, e := p.timeouts(at(when)); h != heartbeat || e != election {
			t.Errorf("after %v s: heartbeat %v, election %v, want %v and %v", when, h, e, heartbeat, election)
		}
	}
	want(0, base, base)
	p.ran(20*time.Millisecond, at(0))
	want(0.1, base, base)
	p.ran(300*time.Millisecond, at(1))
	want(1.1, 4*base, 4*base)
	p.ran(2*time.Second, at(2))
	want(2.1, 16*base, 16*base) // would be 20 times: the most

	p.led(true)
	want(3, base, 16*base) // its heartbeats keep the lease
	p.lost(at(4))
	want(5, base, 16*base)              // it stands first
	want(4+standSlot, 16*base, 16*base) // others have their turn
	p.lost(at(15))                      // it did not lead
	want(15.1, 16*base, 16*base)
	p.led(false)
	want(21.5, 16*base, 16*base) // the second 2 is one of the last 20
	want(22.1, base, base)
	p.ran(time.Hour, at(23))
	want(5000, base, base)
}
