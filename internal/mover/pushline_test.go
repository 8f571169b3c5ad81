package mover

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestPushLineKeepsWhatACommitWaitsFor: newer steps displace older ones in the line to a slow mirror, and never the candidate, which goes first.
func TestPushLineKeepsWhatACommitWaitsFor(t *testing.T) {
	l := newPushLine()
	of := func(s replica.Step) Push {
		return Push{Key: transfer.Key{Part: replica.OfRank(0), Generation: fixture.Gen(1, s)}}
	}
	steps := func(list []Push) (out []replica.Step) {
		for _, p := range list {
			out = append(out, p.Key.Generation.Step)
		}
		return out
	}
	candidate := func(s replica.Step) func(transfer.Key) bool {
		return func(k transfer.Key) bool { return k.Generation.Step == s }
	}
	var dropped []replica.Step
	for s := replica.Step(1); s <= 9; s++ {
		dropped = append(dropped, steps(l.put(of(s), candidate(3)))...)
	}
	if want := []replica.Step{1, 2, 4, 5, 6, 7}; !slices.Equal(dropped, want) {
		t.Fatalf("dropped %v, want %v", dropped, want)
	}
	if again := l.put(of(3), candidate(3)); !slices.Equal(steps(again), []replica.Step{3}) {
		t.Fatalf("a part that waits already: dropped %v", steps(again))
	}
	var taken []Push
	for p, ok := l.take(); ok; p, ok = l.take() {
		taken = append(taken, p)
	}
	if want := []replica.Step{3, 8, 9}; !slices.Equal(steps(taken), want) {
		t.Fatalf("taken %v, want %v", steps(taken), want)
	}
	for s := replica.Step(1); s <= 4; s++ { // all of them awaited: the oldest goes
		dropped = steps(l.put(of(s), func(transfer.Key) bool { return true }))
	}
	if !slices.Equal(dropped, []replica.Step{1}) {
		t.Fatalf("dropped %v, want the oldest", dropped)
	}
}
