package consensus

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	const base = 400 * time.Millisecond
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	p := pace{heartbeat: base, election: base, lease: base}
	idle := false
	want := func(when float64, heartbeat, election time.Duration) {
		t.Helper()
		if h, e := p.timeouts(at(when), idle); h != heartbeat || e != election {
			t.Errorf("after %v s: heartbeat %v, election %v, want %v and %v", when, h, e, heartbeat, election)
		}
	}
	want(0, base, base)
	p.ran(time.Minute, at(0.5)) // it was stopped once
	p.ran(20*time.Millisecond, at(1))
	want(1.1, base, base)
	p.ran(300*time.Millisecond, at(2))
	want(2.1, 4*base, 4*base)
	p.ran(2*time.Second, at(3))
	want(3.1, 16*base, 16*base) // would be 20 times: the most

	p.led(true)
	want(4, base, 16*base) // its heartbeats keep the lease
	p.lost(at(5))
	want(6, base, 16*base)              // it stands first
	want(5+standSlot, 16*base, 16*base) // others have their turn
	p.lost(at(16))                      // it did not lead
	want(16.1, 16*base, 16*base)
	p.led(false)
	want(20.1, 4*base, 4*base) // the second 0 is none of the last 20: 300 ms is the worst but one
	want(23.1, base, base)
	p.ran(time.Hour, at(24))
	p.ran(time.Hour, at(25))
	want(5000, base, base)

	p.led(true)
	want(5001, base, base)
	idle = true // no job is there: a leader's heartbeats come half as often
	want(5002, 2*base, 2*base)
	p.lease = base / 4 // as often as the lease needs
	want(5003, base, base)
	p.lease = base
	p.ran(60*time.Millisecond, at(5004)) // the cores are taken: one may come late
	p.ran(60*time.Millisecond, at(5005))
	want(5006, base, base)
	p.led(false)
	want(5007, base, base)
}
