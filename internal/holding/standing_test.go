package holding

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A part is one thing in an arena: absent, on its way, or there; and what is broken off is absent again, with its place free for another.
func TestStanding(t *testing.T) {
	a, _ := hold(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 2, Mirror: true})
	g := fixture.Gen(3, 9)
	man, chunks := manifest(a, slot(0), g, replica.Digest{})
	want := func(s Standing) {
		t.Helper()
		if got := a.Standing(shm.Slot, g, man.Root); got != s {
			t.Errorf("it is %v, want %v", got, s)
		}
	}
	none := func() []shm.Place { return nil }
	want(Absent)
	p, s, err := a.TakeFor(man, none)
	if err != nil {
		t.Fatal(err)
	}
	want(Coming)
	if got := a.Unwanted(shm.Slot, func(w replica.Generation) bool { return w == g }); len(got) != 0 {
		t.Errorf("unwanted: %d", len(got))
	}
	idle := a.Unwanted(shm.Slot, func(replica.Generation) bool { return false })
	if len(idle) != 1 || idle[0] != s {
		t.Fatalf("unwanted: %v", idle)
	}
	s.Abort()
	want(Absent)
	if err := s.Put(0, chunks[0]); !errors.Is(err, shm.ErrState) {
		t.Errorf("a chunk that comes late: %v", err)
	}
	again, next, err := a.TakeFor(man, none)
	if err != nil || again != p {
		t.Fatalf("took %v, %v", again, err)
	}
	a.Unstage(p, s) // of the one that was broken off: the next one's place is not its
	want(Coming)
	for i, b := range chunks {
		if err := next.Put(i, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := next.Seal(); err != nil {
		t.Fatal(err)
	}
	a.Unstage(p, next)
	want(Sealed)
	if _, _, err := a.TakeFor(man, none); !errors.Is(err, ErrBrought) {
		t.Errorf("brought once more: %v", err)
	}
	if got := a.Standing(shm.Slot, g, replica.Digest{1}); got != Absent {
		t.Errorf("another root is %v", got)
	}
}

// A transfer that comes again goes on in the place where it broke off, though another one is free before it: what has come stays there.
func TestATransferGoesOnInItsPlace(t *testing.T) {
	a, _ := hold(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 3, Mirror: true})
	older, _ := manifest(a, slot(0), fixture.Gen(3, 8), replica.Digest{})
	man, chunks := manifest(a, slot(0), fixture.Gen(3, 9), replica.Digest{})
	none := func() []shm.Place { return nil }
	first, s, err := a.TakeFor(older, none)
	if err != nil {
		t.Fatal(err)
	}
	p, broken, err := a.TakeFor(man, none)
	if err != nil || p == first {
		t.Fatalf("took %v, %v", p, err)
	}
	if err := errors.Join(broken.Reuse(), broken.Put(0, chunks[0])); err != nil {
		t.Fatal(err)
	}
	broken.Abort()
	s.Abort()
	again, next, err := a.TakeFor(man, none)
	if err != nil || again != p {
		t.Fatalf("took %v, %v; want %v, where it broke off", again, err, p)
	}
	if err := next.Reuse(); err != nil || !next.Have(0) {
		t.Errorf("chunk 0 is there: %v, %v", next.Have(0), err)
	}
}

// A daemon dies behind each single store into an arena of two slots: while it takes a part into a mirror or restores one into a rank's,
// beside the committed part. Whoever adopts the arena finds the committed part, and a place for the next one, at once.
func TestADaemonDiesAtEachStore(t *testing.T) {
	for _, mirror := range []bool{true, false} {
		deaths := 0
		for at := 0; ; at++ {
			a, _ := hold(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 2, Mirror: mirror})
			committed := seal(t, a, slot(0), fixture.Gen(3, 5), replica.Digest{})
			man, chunks := manifest(a, slot(1), fixture.Gen(3, 6), replica.Digest{})
			var left *Arena
			stores := 0
			a.OnStore(func() {
				if stores++; stores == at+1 {
					left = adopted(t, a)
				}
			})
			p, s, err := a.TakeFor(man, func() []shm.Place { return nil })
			if err == nil {
				err = s.Reuse()
			}
			for i := 0; err == nil && i < len(chunks); i++ {
				err = s.Put(i, chunks[i])
			}
			if err == nil {
				err = s.Seal()
			}
			if err != nil {
				t.Fatal(err)
			}
			a.Unstage(p, s)
			a.Pin(p, 9, 1)
			if left == nil {
				break // it outlived them all
			}
			deaths++
			what := fmt.Sprintf("mirror %v, behind store %d", mirror, at)
			for _, p := range left.GiveUpLeft() {
				if mirror {
					t.Errorf("%s: %v is to be finished, though the part is brought again", what, p)
				}
				if err := left.Finish(p); err != nil {
					left.GiveUp(p) // whole, but its rank has never said that the step is good: it is fetched again
				}
			}
			if _, info, ok := left.At(shm.Slot, fixture.Gen(3, 5)); !ok || info.Root != committed.Root || left.Verify(slot(0)) != nil {
				t.Errorf("%s: the committed part is lost", what)
			}
			switch st := left.Word(slot(1)).State(); st {
			case replica.SlotSealed:
				if err := left.Verify(slot(1)); err != nil {
					t.Errorf("%s: sealed with %v", what, err)
				}
			case replica.SlotFree:
				if _, _, err := left.TakeFor(man, func() []shm.Place { return nil }); err != nil {
					t.Errorf("%s: no place for the part that comes again: %v", what, err)
				}
			default:
				t.Errorf("%s: slot 1 stays %v", what, st)
			}
		}
		if deaths < len([]string{"COPYING", "digests", "chunk", "meta", "COPIED", "SEALED", "pin"}) {
			t.Errorf("mirror %v: the daemon died %d times only", mirror, deaths)
		}
	}
}

// A rank lives on while its daemon dies, which was restoring into its arena. Once the rank has joined its captures the next daemon gives up
// what that one left, and not what the rank has begun to capture since.
func TestJoinedAfterADaemonDied(t *testing.T) {
	a, _ := hold(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 4})
	seal(t, a, slot(0), fixture.Gen(3, 5), replica.Digest{})
	man, _ := manifest(a, slot(1), fixture.Gen(3, 6), replica.Digest{})
	if _, _, err := a.TakeFor(man, func() []shm.Place { return nil }); err != nil {
		t.Fatal(err)
	}
	setState(t, a, slot(2), replica.SlotCopied) // by the rank, or by the daemon: nobody knows yet
	next := adopted(t, a)
	left := next.HalfDone()
	setState(t, next, slot(2), replica.SlotSealed) // the rank's, then
	setState(t, next, slot(3), replica.SlotCopying)
	next.Joined(left)
	if got, want := states(next, shm.Slot), []replica.SlotState{replica.SlotSealed, replica.SlotFree, replica.SlotSealed, replica.SlotCopying}; !slices.Equal(got, want) {
		t.Errorf("slots %v, want %v", got, want)
	}
	next.Joined(left)
	if got := next.Word(slot(3)).State(); got != replica.SlotCopying {
		t.Errorf("a capture under way is %v", got)
	}
}

// adopted is what the next daemon gets of an arena whose daemon dies now.
func adopted(t *testing.T, a *Arena) *Arena {
	t.Helper()
	f, err := shm.NewMemfd("left")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(a.File(), 0, int64(a.Header().ArenaBytes)))
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = shm.SealSize(f)
	}
	if err != nil {
		t.Fatal(err)
	}
	left, err := shm.Adopt(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { left.Close() })
	return New(left, "left", func(*shm.Arena) {})
}

// Of two daemons' arenas of one part the one with the newer whole part is known by its newest seal.
func TestNewestSealed(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	var got []replica.Generation
	for i, g := range []replica.Generation{{}, fixture.Gen(3, 5), fixture.Gen(2, 9), fixture.Gen(3, 6)} {
		if !g.IsZero() {
			seal(t, a, slot(i-1), g, replica.Digest{})
		}
		got = append(got, a.NewestSealed(shm.Slot))
	}
	if want := []replica.Generation{{}, fixture.Gen(3, 5), fixture.Gen(3, 5), fixture.Gen(3, 6)}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
