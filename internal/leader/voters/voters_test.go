package voters

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

func seats(names ...replica.NodeName) (out []Seat) {
	for _, n := range names {
		out = append(out, Seat{Name: n, Addr: string(n) + ":7400"})
	}
	return out
}

var votes = control.Standing{State: control.Votes}

// A configured voter counts by its own word on a link that is there, and by nothing else.
func TestWhoVotes(t *testing.T) {
	linked, gone := Seen{Linked: true}, Seen{}
	for what, tc := range map[string]struct {
		said control.Standing
		seen Seen
		seat Seat
		want string // of why; empty: it votes
	}{
		"votes":              {votes, linked, Seat{}, ""},
		"said nothing":       {control.Standing{}, linked, Seat{}, "it did not say why"},
		"waits":              {control.Standing{State: control.WaitsToVote, Why: "waits for c"}, linked, Seat{}, "waits for c"},
		"full":               {control.Standing{State: control.RaftFailed, Why: "no space"}, linked, Seat{}, "no space"},
		"old log":            {control.Standing{State: control.LogBehind, Why: "old"}, linked, Seat{}, "old"},
		"not in its file":    {control.Standing{State: control.NoRaft}, linked, Seat{}, "its configuration does not name it"},
		"voted, no link":     {votes, gone, Seat{}, "its daemon has no link to the leader, node a"},
		"silent":             {votes, Seen{Quiet: true}, Seat{}, "its host is silent"},
		"revoked":            {votes, Seen{Revoked: true, Quiet: true}, Seat{}, "replicad pki renew b"},
		"revoked and linked": {votes, Seen{Revoked: true, Linked: true}, Seat{}, ""}, // it has presented a newer one
		"learner":            {votes, linked, Seat{Joining: true}, "replicad voter add b b:7400"},
	} {
		tc.seat.Name, tc.seat.Addr = "b", "b:7400"
		var b Book
		b.Heard("b", tc.said)
		table := b.Table(append(seats("a"), tc.seat), "a", func(replica.NodeName) Seen { return tc.seen })
		if !table[0].Votes || table[0].Name != "a" {
			t.Errorf("%s: the leader does not vote: %+v", what, table)
		}
		if v := table[1]; v.Votes != (tc.want == "") || !strings.Contains(v.Why, tc.want) || (v.Why == "") != (tc.want == "") {
			t.Errorf("%s: %+v, want %q", what, v, tc.want)
		}
	}
}

// Launchers hear once that the next loss stops commits, after longer than a restart takes, and once that this is over.
func TestLaunchersHearOnce(t *testing.T) {
	var b Book
	all := func(n replica.NodeName) Seen { return Seen{Linked: true} }
	for _, n := range []replica.NodeName{"b", "c", "d", "e"} {
		b.Heard(n, votes)
	}
	three, five := seats("a", "b", "c"), seats("a", "b", "c", "d", "e")
	at := func(seats []Seat, now time.Duration) string { return b.Due(b.Table(seats, "a", all), now) }
	mute := control.Standing{State: control.RaftFailed, Why: "its disk is full: free space"}
	b.Heard("c", mute)
	for _, s := range []time.Duration{0, 5 * time.Second, 20 * time.Second} {
		if text := at(five, s); text != "" {
			t.Errorf("one of five is no matter, but %q", text)
		}
	}
	at(three, 30*time.Second)
	b.Heard("c", votes)
	at(three, 35*time.Second)
	b.Heard("c", mute)
	if text := at(three, 39*time.Second) + at(three, 48*time.Second); text != "" {
		t.Errorf("a restart is told: %q", text)
	}
	if text := at(three, 49*time.Second); text != "warning: 2 of the 3 voters vote, and the loss of one of them stops commits: c does not vote: its disk is full: free space" {
		t.Errorf("%q", text)
	}
	if text := at(three, 90*time.Second); text != "" {
		t.Errorf("told twice: %q", text)
	}
	b.Heard("a", mute)
	if text := at(three, 90*time.Second); text != "warning: 1 of the 3 voters vote, and nothing is committed until 2 do: a does not vote: its disk is full: free space; c does not vote: its disk is full: free space" {
		t.Errorf("%q", text)
	}
	b.Heard("a", control.Standing{State: control.WaitsToVote, Why: "as its hello said, which is of before it led"})
	if text := at(three, 90*time.Second); text != "" {
		t.Errorf("told twice: %q", text)
	}
	b.Heard("c", votes)
	if text := at(three, 91*time.Second); text != "3 of the 3 voters vote again: the loss of one stops no commits" {
		t.Errorf("%q", text)
	}
	if text := at(three, 92*time.Second); text != "" {
		t.Errorf("told twice: %q", text)
	}
	if text := at(seats("a"), 100*time.Second) + at(seats("a"), 200*time.Second); text != "" {
		t.Errorf("a voter alone is told of: %q", text)
	}
	if s := b.said["b"]; s != votes {
		t.Error(s)
	}
	b.Forget()
	if b.Mute("c") || len(b.said) > 0 {
		t.Error("a former term's words are kept")
	}
}
