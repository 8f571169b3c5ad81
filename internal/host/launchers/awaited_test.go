package launchers

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
)

// The launcher is told which process is waited for: first after claim_timeout, then each time that has doubled.
func TestLauncherIsToldWhoIsAwaited(t *testing.T) {
	d := newRig(t)
	d.cfg.Timing.Claim = time.Second
	peer, end := d.session()
	lj := d.put(fixture.Closed(fixture.Job()))
	d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 2}}, time.Now())
	end.Reads() // accepted
	l := d.all[peer.ID()]
	l.start(lj.job, 1, time.Now())
	end.Reads() // the start
	d.running(peer, 1, 19951)
	l.starts.hello(1) // it makes its session
	d.Of(lj).Await(time.Now())
	for i, waited := range []time.Duration{1, 1, 2, 9, 9} {
		l.starts.entry(1).running, l.starts[1].since = true, time.Now().Add(-waited*time.Second)
		d.Of(lj).Await(time.Now())
		if i == 1 || i == 4 {
			continue // it has been said
		}
		h, body := end.Reads()
		if note, err := wire.ParseRefused(body); err != nil || h.Type != wire.MRunNote {
			t.Fatalf("message %d, %q, %v", h.Type, note.Text, err)
		} else {
			lasts(t, note.Text, "rank 1: process 19951 has run {so long} and has not called resume() yet", waited*time.Second)
		}
	}
	if _, pids, _ := d.starting(lj); len(pids) != 1 || pids[0] != 19951 {
		t.Errorf("the leader would be told of %v", pids)
	}

	lj.ranks[1] = &Rank{PID: 19951, Alive: true, Loaded: 3}
	l.starts[1].attached = true
	l.starts.quiet()
	lj.closedAt = time.Now().Add(-40 * time.Second)
	d.Of(lj).Await(time.Now())
	_, body := end.Reads()
	note, _ := wire.ParseRefused(body)
	lasts(t, note.Text, "rank 1: process 19951 has not called resume() again, {so long} after the epoch was closed; the others wait for it", 40*time.Second)
}

// lasts fails the test unless a text is the one that is wanted, of what has lasted so long: a machine without time adds to that.
func lasts(t *testing.T, text, want string, least time.Duration) {
	t.Helper()
	before, after, _ := strings.Cut(want, "{so long}")
	long, starts := strings.CutPrefix(text, before)
	long, ends := strings.CutSuffix(long, after)
	if took, err := time.ParseDuration(long); !starts || !ends || err != nil || took < least || took > least+fixture.Patience {
		t.Fatalf("%q; want %q, of %v or more", text, want, least)
	}
}
