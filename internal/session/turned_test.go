package session

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/wire"
)

// TestTurnedAwayIsTold: of a wrong token, of a message that is none and of a user who may not come the daemon hears, with who it was.
func TestTurnedAwayIsTold(t *testing.T) {
	s := serve(t, Config{Token: func(string) string { return "right" }})
	hello := testHello()
	hello.Token = "wrong"
	c := dial(t, s)
	c.send(wire.MHello, hello.Append(nil))
	ev := next[TurnedAway](t, s)
	if ev.UID != os.Getuid() || ev.PID != os.Getpid() || ev.Code != wire.CodeRefused || !strings.Contains(ev.Why, "token") || ev.Others != 0 {
		t.Errorf("wrong token: %+v", ev)
	}
	c = dial(t, s)
	c.send(wire.MSealed, nil)
	if ev := next[TurnedAway](t, s); ev.Code != wire.CodeInvalid || !strings.Contains(ev.Why, "before a hello") {
		t.Errorf("no hello: %+v", ev)
	}
}

func TestTurnedCounts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		seen := turned{}
		one, other := refusal{1000, wire.CodeRefused}, refusal{1001, wire.CodeRefused}
		if others, due := seen.say(one, time.Now()); !due || others != 0 {
			t.Error("the first is not told")
		}
		for range 1000 {
			if _, due := seen.say(one, time.Now()); due {
				t.Fatal("each is told")
			}
		}
		if _, due := seen.say(other, time.Now()); !due {
			t.Error("one user hides another")
		}
		time.Sleep(saysTurned)
		if others, due := seen.say(one, time.Now()); !due || others != 1000 {
			t.Errorf("%d others are told of (%v), want 1000", others, due)
		}
		for uid := range 10 * maxTurned {
			seen.say(refusal{uid, wire.CodeInvalid}, time.Now())
		}
		if len(seen) > maxTurned+1 {
			t.Errorf("%d users are kept, at most %d", len(seen), maxTurned+1)
		}
	})
}
