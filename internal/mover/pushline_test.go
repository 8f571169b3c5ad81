package mover

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestPushLineKeepsWhatACommitWaitsFor: newer steps displace older ones in the line to a slow mirror, and never the candidate, which goes
// first and breaks off what it finds under way, unless a commit waits for that too.
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
	if want := []replica.Step{1, 2, 4, 5, 6, 7, 8}; !slices.Equal(dropped, want) {
		t.Fatalf("dropped %v, want %v", dropped, want)
	}
	if again := l.put(of(3), candidate(3)); !slices.Equal(steps(again), []replica.Step{3}) {
		t.Fatalf("a part that waits already: dropped %v", steps(again))
	}
	l.put(Push{Key: transfer.Key{Part: replica.FrozenOf(0), Generation: fixture.Gen(1, 0)}}, candidate(3)) // another part: it displaces nothing
	var taken []Push
	for _, p, ok := l.take(t.Context()); ok; _, p, ok = l.take(t.Context()) {
		taken = append(taken, p)
		l.done()
	}
	if want := []replica.Step{3, 9, 0}; !slices.Equal(steps(taken), want) {
		t.Fatalf("taken %v, want %v", steps(taken), want)
	}
	for s := replica.Step(1); s <= pushQueue+1; s++ { // all of them awaited: the oldest goes
		dropped = steps(l.put(of(s), func(transfer.Key) bool { return true }))
	}
	if !slices.Equal(dropped, []replica.Step{1}) {
		t.Fatalf("dropped %v, want the oldest", dropped)
	}

	l = newPushLine()
	l.put(of(1), candidate(1))
	at, _, _ := l.take(t.Context())
	if again := l.put(of(1), candidate(1)); len(again) != 1 {
		t.Fatal("a part that is under way is put once more")
	}
	l.put(of(2), candidate(1))
	if l.put(of(3), func(k transfer.Key) bool { return k.Generation.Step != 2 }); at.Err() != nil {
		t.Fatal("what a commit waits for is broken off")
	}
	if l.put(of(4), candidate(4)); at.Err() == nil {
		t.Fatal("what no commit waits for any more holds up the candidate")
	}
	l.done()
	if dropped := l.put(of(1), candidate(4)); len(dropped) != 1 || dropped[0].Key.Generation.Step != 1 {
		t.Fatalf("dropped %v: a newer step waits than one that is no candidate any more", steps(dropped))
	}
}

// TestPushLineServesEachPart: steps of one part that come faster than they are sent do not keep another part from its turn. It holds a slot
// while it waits: with two slots, of which the committed step has the other, nothing more would be captured.
func TestPushLineServesEachPart(t *testing.T) {
	l := newPushLine()
	none := func(transfer.Key) bool { return false }
	l.put(Push{Key: transfer.Key{Part: replica.OfGroup(0), Generation: fixture.Gen(1, 1)}}, none)
	for s := replica.Step(1); s <= 3; s++ {
		l.put(Push{Key: transfer.Key{Part: replica.OfRank(0), Generation: fixture.Gen(1, s)}}, none)
		_, p, _ := l.take(t.Context())
		l.done()
		if p.Key.Part == replica.OfGroup(0) {
			return
		}
	}
	t.Error("the group's part has waited for three steps of the private one")
}
