package host

import (
	"errors"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// Without a leader nothing is committed, and the log has to say that: one line after a while, rarely again, and one when there is one.
func TestNoLeaderIsSaidOnce(t *testing.T) {
	d := newRig(t)
	d.cfg.Voters = []config.Voter{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}
	said := func(noLeader, again int) {
		t.Helper()
		if n, m := d.log.Count(`"event":"no_leader"`), d.log.Count(`"event":"leader_again"`); n != noLeader || m != again {
			t.Errorf("%d lines say that there is no leader and %d that there is one again, want %d and %d", n, m, noLeader, again)
		}
	}
	up := d.link
	for range 100 {
		d.leaderless(time.Now().Add(time.Hour))
	}
	said(0, 0) // it is linked
	d.handle(LinkDown{Link: up, Err: errors.New("link: no word from the leader")})
	down := time.Now()
	d.leaderless(down.Add(noLeaderAfter / 2))
	said(0, 0)
	for i := range 600 { // a minute
		d.leaderless(down.Add(noLeaderAfter + time.Duration(i)*100*time.Millisecond))
	}
	said(1, 0)
	if n := d.log.Count("nothing is committed") + d.log.Count("2 of the 3 voters must run") + d.log.Count(`"voters":["n1","n2","n3"]`); n != 3 {
		t.Errorf("the line lacks something:\n%s", d.log.String())
	}
	d.leaderless(down.Add(noLeaderAfter + 2*noLeaderAgain))
	said(2, 0)
	for range 2 {
		d.handle(LinkUp{Link: up, Leader: "n2"})
	}
	said(2, 1)
}
