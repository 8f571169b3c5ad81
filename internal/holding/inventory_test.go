package holding

import (
	"bytes"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

func TestPartsAndTheirPlaces(t *testing.T) {
	for k, want := range map[shm.PlaceKind]replica.Part{shm.Slot: replica.OfGroup(2), shm.Ring: replica.OfRank(5), shm.Frozen: replica.FrozenOf(2)} {
		if got := PartIn(k, 2, 5); got != want || KindFor(got) != k {
			t.Errorf("in place kind %d lies %v, which goes to %d; want %v", k, got, KindFor(got), want)
		}
	}
}

// Every sealed place is told of, by its part, and nothing else; a mirror's as a mirror's.
func TestInventory(t *testing.T) {
	own, _ := hold(t, ofRank(t, 1))
	weights, rng := seal(t, own, slot(0), fixture.Gen(3, 5), replica.Digest{}), seal(t, own, ring(2), fixture.Gen(3, 6), replica.Digest{})
	setState(t, own, slot(1), replica.SlotCopied)
	man, chunks := manifest(own, slot(2), fixture.Gen(3, 6), replica.Digest{})
	man.Rank, man.Incarnation, man.Flags = 0, 9, replica.DaemonMade // fetched from another rank of the group
	man.Root = shm.Root(&man)
	fetched := sealAs(t, own, slot(2), man, chunks)
	spec := ofRank(t, 1)
	spec.Mirror = true
	mirror, _ := hold(t, spec)
	seal(t, mirror, ring(0), fixture.Gen(3, 6), replica.Digest{})
	got := mirror.AppendCopies(own.AppendCopies(nil, 2), 2)
	want := []replica.Held{
		{Part: replica.OfGroup(2), Generation: fixture.Gen(3, 5), Root: weights.Root, Rank: 1, Producer: 4},
		{Part: replica.OfGroup(2), Generation: fixture.Gen(3, 6), Root: fetched.Root, Rank: 1, Producer: 9, Fetched: true, DaemonMade: true},
		{Part: replica.OfRank(1), Generation: fixture.Gen(3, 6), Root: rng.Root, Rank: 1, Producer: 4},
		{Part: replica.OfRank(1), Generation: fixture.Gen(3, 6), Root: rng.Root, Rank: 1, Producer: 4, Mirror: true},
	}
	var held []replica.Held
	for _, c := range got {
		held = append(held, c.Held)
	}
	if !slices.Equal(held, want) {
		t.Errorf("holds %+v\nwant %+v", held, want)
	}
	if c, ok := Find(got, nil, replica.OfRank(1), fixture.Gen(3, 6), rng.Root); !ok || c.Arena != own {
		t.Errorf("found %+v (%v), want the first", c, ok)
	}
	if c, ok := Find(got, mirror, replica.OfRank(1), fixture.Gen(3, 6), rng.Root); !ok || c.Arena != mirror {
		t.Errorf("found %+v (%v), want the preferred arena's", c, ok)
	}
	for what, ask := range map[string]replica.Held{
		"another part":       {Part: replica.OfRank(2), Generation: fixture.Gen(3, 6), Root: rng.Root},
		"another generation": {Part: replica.OfRank(1), Generation: fixture.Gen(3, 5), Root: rng.Root},
		"another root":       {Part: replica.OfRank(1), Generation: fixture.Gen(3, 6), Root: weights.Root},
	} {
		if c, ok := Find(got, nil, ask.Part, ask.Generation, ask.Root); ok {
			t.Errorf("%s: found %+v", what, c)
		}
	}
}

// A replicated part that binds a frozen one is whole in a mirror only beside it. One that binds none, in an arena that has a frozen area, is whole nowhere.
func TestWhole(t *testing.T) {
	for what, c := range map[string]struct {
		mirror, binds, beside, want bool
	}{
		"a rank's":                           {binds: true, want: true},
		"a rank's that binds nothing":        {beside: true},
		"a mirror's without the frozen part": {mirror: true, binds: true},
		"a mirror's with it":                 {mirror: true, binds: true, beside: true, want: true},
	} {
		spec := shm.Spec{Geometry: fixture.Geometry(t, true), Mirror: c.mirror, Slots: 2}
		a, _ := hold(t, spec)
		base, _ := manifest(a, frozen, fixture.Gen(1, 0), replica.Digest{})
		var binds replica.Digest
		if c.binds {
			binds = base.Root
		}
		seal(t, a, slot(0), fixture.Gen(3, 5), binds)
		if c.beside {
			seal(t, a, frozen, fixture.Gen(1, 0), replica.Digest{})
		}
		copies := a.AppendCopies(nil, 0)
		if got := copies[0].Whole(); got != c.want {
			t.Errorf("%s: whole %v", what, got)
		}
		if n := len(copies[0].Bound()); n == 2 != (c.binds && c.beside) {
			t.Errorf("%s: bound to %d parts beside it", what, n-1)
		}
		if c.beside {
			if f, ok := Find(copies, nil, replica.FrozenOf(0), fixture.Gen(9, 9), base.Root); !ok || f.Place != frozen {
				t.Errorf("%s: the frozen part is not found by its root alone", what)
			}
		}
	}
}

// What one arena has of generations: whole ones, one that is missed for good, one that is still needed.
func TestGenerationsOfAnArena(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	for i, g := range []replica.Generation{fixture.Gen(3, 6), fixture.Gen(3, 5)} {
		seal(t, a, slot(i), g, replica.Digest{})
	}
	if a.Captured(3) {
		t.Error("an epoch is captured without its private part")
	}
	for i, s := range []replica.Step{4, 5, 6} {
		seal(t, a, ring(i), fixture.Gen(3, s), replica.Digest{})
	}
	seal(t, a, slot(3), fixture.Gen(3, 8), replica.Digest{}) // without its private part
	if got, want := a.Holds(), []replica.Generation{fixture.Gen(3, 5), fixture.Gen(3, 6)}; !slices.Equal(got, want) {
		t.Errorf("holds %v, want %v", got, want)
	}
	if !a.Captured(3) || a.Captured(2) {
		t.Errorf("captured in epoch 3: %v, in epoch 2: %v", a.Captured(3), a.Captured(2))
	}
	at := func(s replica.Step) func(replica.Generation) bool {
		return func(g replica.Generation) bool { return g == fixture.Gen(3, s) }
	}
	for s, want := range map[replica.Step][2]bool{4: {true, true}, 5: {false, true}, 6: {false, true}, 7: {true, false}} {
		if misses, needed := a.Misses(fixture.Gen(3, s)), a.Needed(at(s)); misses != want[0] || needed != want[1] {
			t.Errorf("step %d: missed %v, needed %v; want %v", s, misses, needed, want)
		}
	}
	setState(t, a, slot(2), replica.SlotCopied)
	if a.Misses(fixture.Gen(3, 7)) {
		t.Error("step 7 is missed while a slot is being hashed that may be it")
	}
	man, _ := manifest(a, ring(3), fixture.Gen(3, 7), replica.Digest{})
	if _, err := a.Take(ring(3), man); err != nil {
		t.Fatal(err)
	}
	if !a.Needed(at(9)) {
		t.Error("an arena that the daemon writes to is not needed")
	}
}

// A reader gives the bytes and the job's lineage, and holds the place until it is closed, once.
func TestReader(t *testing.T) {
	for what, drop := range map[string]bool{"closed elsewhere": false, "by the owner": true} {
		a, _ := hold(t, ofRank(t, 0))
		seal(t, a, slot(1), fixture.Gen(3, 5), replica.Digest{})
		man, chunks := manifest(a, slot(1), fixture.Gen(3, 5), replica.Digest{})
		job := fixture.Job()
		var later []shm.Place
		r, err := a.AppendCopies(nil, 0)[0].Open(job, func(_ *Arena, p shm.Place) { later = append(later, p) })
		if err != nil {
			t.Fatal(err)
		}
		got := r.Manifest()
		if got.Root != man.Root || !slices.Equal(got.Lineage, job.Lineage) || len(got.Regions) == 0 || a.Readers(slot(1)) != 1 {
			t.Errorf("%s: reads %+v, held by %d", what, got, a.Readers(slot(1)))
		}
		for i, want := range chunks {
			if b, err := r.ReadChunk(i, nil); err != nil || !bytes.Equal(b, want) {
				t.Errorf("%s: chunk %d: %v", what, i, err)
			}
		}
		if drop {
			r.Drop()
		}
		for range 2 {
			r.Close()
		}
		if len(later) > 1 || drop != (len(later) == 0) {
			t.Fatalf("%s: let go %d times", what, len(later))
		}
		for _, p := range later {
			if a.Readers(slot(1)) != 1 {
				t.Errorf("%s: let go on another goroutine than the owner's", what)
			}
			a.Release(p)
		}
		if a.Readers(slot(1)) != 0 {
			t.Errorf("%s: %d readers stay", what, a.Readers(slot(1)))
		}
	}
	a, _ := hold(t, ofRank(t, 0))
	if _, err := (Copy{Arena: a, Place: slot(0), Held: replica.Held{Part: replica.OfGroup(0)}}).Open(fixture.Job(), nil); err == nil || a.Readers(slot(0)) != 0 {
		t.Errorf("a free place is opened: %v", err)
	}
}

func TestRegionDigestsOfACopy(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	seal(t, a, ring(0), fixture.Gen(3, 5), replica.Digest{})
	_, chunks := manifest(a, ring(0), fixture.Gen(3, 5), replica.Digest{})
	got, err := a.AppendCopies(nil, 0)[0].RegionDigests()
	if err != nil || len(got) != 1 || got[0].Digest != shm.Hash(slices.Concat(chunks...)[:a.Geometry().Of(replica.PrivatePart)[0].Bytes]) {
		t.Errorf("%+v, %v", got, err)
	}
}
