package holding

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Where a rank writes the words of its places, as libreplicad's layout.h has them.
const (
	atSlot   = 1536
	atRing   = 2048
	wordStep = 64
)

func slot(i int) shm.Place { return shm.Place{Kind: shm.Slot, Index: i} }
func ring(i int) shm.Place { return shm.Place{Kind: shm.Ring, Index: i} }

var frozen = shm.Place{Kind: shm.Frozen}

// hold makes an arena and holds it. unmapped counts how often its memory is given back.
func hold(t *testing.T, spec shm.Spec) (a *Arena, unmapped *int) {
	t.Helper()
	spec.Cluster, spec.Era, spec.Job, spec.ChunkBytes, spec.Margin = fixture.Cluster, 1, fixture.JobID, 4096, 1<<20
	made, err := shm.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	unmapped = new(int)
	return New(made, "key", func(*shm.Arena) { *unmapped++ }), unmapped
}

func ofRank(t *testing.T, rank replica.Rank) shm.Spec {
	return shm.Spec{Rank: rank, Geometry: fixture.Geometry(t, false)}
}

// manifest describes random bytes as a part that lies in p, and gives them in chunks.
func manifest(a *Arena, p shm.Place, g replica.Generation, binds replica.Digest) (replica.Manifest, [][]byte) {
	h, rank := a.Header(), a.Spec().Rank
	man := replica.Manifest{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Part: PartIn(p.Kind, 0, rank), Generation: g, Rank: rank, Incarnation: 4, FrozenRoot: binds,
		Geometry: h.Geometry[p.PartKind()], Bytes: [...]uint64{h.ReplicatedBytes, h.PrivateBytes, h.FrozenBytes}[p.PartKind()], ChunkBytes: h.ChunkBytes}
	rng := rand.New(rand.NewPCG(uint64(g.Step), uint64(p.Kind)))
	var chunks [][]byte
	for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
		_, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		b := make([]byte, n)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		chunks, man.Chunks = append(chunks, b), append(man.Chunks, shm.Hash(b))
	}
	man.Root = shm.Root(&man)
	return man, chunks
}

// seal does what a rank does to seal a part. binds is the root of the frozen part that a slot's part binds.
func seal(t *testing.T, a *Arena, p shm.Place, g replica.Generation, binds replica.Digest) shm.Info {
	t.Helper()
	man, chunks := manifest(a, p, g, binds)
	return sealAs(t, a, p, man, chunks)
}

func sealAs(t *testing.T, a *Arena, p shm.Place, man replica.Manifest, chunks [][]byte) shm.Info {
	t.Helper()
	s, err := a.Stage(p, man)
	for i := 0; err == nil && i < len(chunks); i++ {
		err = s.Put(i, chunks[i])
	}
	if err == nil {
		err = s.Seal()
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := a.Sealed(p)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func write(t *testing.T, a *Arena, off int64, v uint64) {
	t.Helper()
	if _, err := a.File().WriteAt(binary.LittleEndian.AppendUint64(nil, v), off); err != nil {
		t.Fatal(err)
	}
}

// setState writes a place's state, as its rank may.
func setState(t *testing.T, a *Arena, p shm.Place, s replica.SlotState) {
	t.Helper()
	off := map[shm.PlaceKind]int64{shm.Slot: atSlot, shm.Ring: atRing}[p.Kind] + int64(wordStep*p.Index)
	write(t, a, off, uint64(replica.PackSlot(a.Word(p).Count(), s)))
	if got := a.Word(p).State(); got != s {
		t.Fatalf("%v is %v after %v was written: the layout has moved", p, got, s)
	}
}

// states lists the states of the places of one kind.
func states(a *Arena, k shm.PlaceKind) (out []replica.SlotState) {
	for _, p := range a.Places() {
		if p.Kind == k {
			out = append(out, a.Word(p).State())
		}
	}
	return out
}

// The memory is given back once, and by the last of those who use it.
func TestDropWaitsForReaders(t *testing.T) {
	for what, readers := range map[string]int{"nobody reads": 0, "two read": 2} {
		a, unmapped := hold(t, ofRank(t, 0))
		a.Hold(slot(0))
		a.Release(slot(0))
		for i := range readers {
			a.Hold(slot(i))
		}
		if *unmapped != 0 {
			t.Errorf("%s: unmapped before it is given up", what)
		}
		for range 2 {
			a.Drop()
		}
		for i := range readers {
			if *unmapped != 0 || a.Readers(slot(i)) != 1 || !a.Dropped() {
				t.Errorf("%s: unmapped %d times under reader %d of %d", what, *unmapped, i, readers)
			}
			a.Release(slot(i))
		}
		if *unmapped != 1 || a.Readers(slot(0)) != 0 {
			t.Errorf("%s: unmapped %d times, want once", what, *unmapped)
		}
		a.Drop()
		if *unmapped != 1 {
			t.Errorf("%s: unmapped again", what)
		}
	}
}

// A reader that holds no place keeps the arena mapped, and lets its places be freed.
func TestEnterHoldsNoPlace(t *testing.T) {
	a, unmapped := hold(t, ofRank(t, 0))
	seal(t, a, slot(0), fixture.Gen(3, 5), replica.Digest{})
	a.Enter()
	if a.Readers(slot(0)) != 0 || !a.Free(slot(0)) {
		t.Error("a place is held")
	}
	a.Drop()
	if *unmapped != 0 {
		t.Error("unmapped under a reader")
	}
	if a.Leave(); *unmapped != 1 {
		t.Errorf("unmapped %d times, want once", *unmapped)
	}
}

// A process with other regions gets an arena of its own.
func TestFits(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	if !a.Fits(fixture.Geometry(t, false)) {
		t.Error("it does not fit its own geometry")
	}
	for i := range a.Geometry().Regions {
		regions := slices.Clone(fixture.Geometry(t, false).Regions)
		regions[i].Name += "2"
		g, err := replica.NewGeometry(regions)
		if err != nil {
			t.Fatal(err)
		}
		if a.Fits(g) {
			t.Errorf("it fits one with region %q", regions[i].Name)
		}
	}
}

func TestHoldSealed(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	seal(t, a, slot(1), fixture.Gen(3, 5), replica.Digest{})
	for i, want := range []bool{false, true} {
		if got := a.HoldSealed(slot(i)); got != want || a.Readers(slot(i)) != map[bool]int{true: 1}[want] {
			t.Errorf("slot %d: held %v by %d readers, want %v", i, got, a.Readers(slot(i)), want)
		}
	}
}

// What is remembered of a sealed place is as good as what lies there: it goes with the place's word, and a pin changes both.
func TestInfoIsWhatLiesThere(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	same := func(what string) {
		t.Helper()
		for range 2 {
			got, err := a.Info(slot(0))
			want, wrong := a.Sealed(slot(0))
			if (err == nil) != (wrong == nil) || err == nil && (got.Root != want.Root || got.Generation != want.Generation || got.PinTerm != want.PinTerm || got.PinN != want.PinN) {
				t.Errorf("%s: %+v (%v), there lies %+v (%v)", what, got, err, want, wrong)
			}
		}
	}
	same("free")
	a.Pin(slot(0), 1, 1)
	seal(t, a, slot(0), fixture.Gen(3, 5), replica.Digest{})
	same("sealed")
	a.Pin(slot(0), 9, 4)
	if info, _ := a.Info(slot(0)); info.PinTerm != 9 || info.PinN != 4 {
		t.Errorf("pinned: %+v", info)
	}
	same("pinned")
	a.Pin(slot(0), 0, 0)
	same("pinned no more")
	a.Free(slot(0))
	same("freed")
	seal(t, a, slot(0), fixture.Gen(3, 6), replica.Digest{})
	same("sealed again")
	a.Free(slot(0))
	seal(t, a, slot(0), fixture.Gen(3, 7), replica.Digest{})
	same("sealed again since the last look")
}

// A rank that dies leaves places in every state. Those that the daemon itself writes are none of its.
func TestGiveUpLeft(t *testing.T) {
	a, _ := hold(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 4})
	seal(t, a, slot(0), fixture.Gen(3, 4), replica.Digest{})
	setState(t, a, slot(1), replica.SlotCopying)
	setState(t, a, slot(2), replica.SlotCopied)
	man, _ := manifest(a, slot(3), fixture.Gen(3, 6), replica.Digest{})
	staging, err := a.Take(slot(3), man)
	if err != nil {
		t.Fatal(err)
	}
	setState(t, a, ring(0), replica.SlotTorn)
	setState(t, a, ring(1), replica.SlotCopied)
	if !a.Unsealed() {
		t.Error("nothing is said to be on its way")
	}
	if got, want := a.GiveUpLeft(), []shm.Place{slot(2), ring(1)}; !slices.Equal(got, want) {
		t.Errorf("to be finished: %v, want %v", got, want)
	}
	if got, want := states(a, shm.Slot), []replica.SlotState{replica.SlotSealed, replica.SlotFree, replica.SlotCopied, replica.SlotCopying}; !slices.Equal(got, want) {
		t.Errorf("slots %v, want %v", got, want)
	}
	if got := a.Word(ring(0)).State(); got != replica.SlotFree {
		t.Errorf("a torn place is %v", got)
	}
	a.GiveUp(slot(2))
	a.GiveUp(ring(1))
	staging.Abort()
	a.Unstage(slot(3), staging)
	if a.Unsealed() || a.Staged(slot(3)) || a.Word(slot(3)).State() != replica.SlotFree {
		t.Errorf("at the end: slots %v", states(a, shm.Slot))
	}
}

// A rank that does not finish in time has what it copies torn; it gets the places back when it says that it has stopped.
func TestTornAndFreed(t *testing.T) {
	a, _ := hold(t, ofRank(t, 0))
	seal(t, a, slot(0), fixture.Gen(3, 4), replica.Digest{})
	setState(t, a, slot(1), replica.SlotCopying)
	a.TearAll()
	if got := states(a, shm.Slot)[:2]; !slices.Equal(got, []replica.SlotState{replica.SlotSealed, replica.SlotTorn}) {
		t.Errorf("torn: %v", got)
	}
	a.Joined(nil)
	if got := states(a, shm.Slot)[:2]; !slices.Equal(got, []replica.SlotState{replica.SlotSealed, replica.SlotFree}) {
		t.Errorf("freed: %v", got)
	}
}

// Where no place is free those that may give way are freed; where none may, nothing is staged.
func TestTakeFor(t *testing.T) {
	a, _ := hold(t, shm.Spec{Geometry: fixture.Geometry(t, true), Slots: 2})
	man, _ := manifest(a, slot(0), fixture.Gen(3, 9), replica.Digest{})
	var gave []shm.Place
	other := func(p shm.Place) replica.Manifest { // of the same generation, with another root
		m, _ := manifest(a, p, fixture.Gen(3, 9), replica.Digest{byte(len(gave) + 1)})
		return m
	}
	take := func(m replica.Manifest) (shm.Place, error) {
		p, s, err := a.TakeFor(m, func() []shm.Place { return gave })
		if err == nil && (s == nil || !a.Staged(p)) {
			t.Errorf("%v is taken and not staged", p)
		}
		return p, err
	}
	seal(t, a, slot(0), fixture.Gen(3, 5), replica.Digest{})
	if p, err := take(man); err != nil || p != slot(1) {
		t.Errorf("took %v, %v; want the free one", p, err)
	}
	if p, err := take(man); !errors.Is(err, ErrBrought) {
		t.Errorf("took %v, %v for what is on its way", p, err)
	}
	if p, err := take(other(slot(0))); !errors.Is(err, ErrNoPlace) {
		t.Errorf("took %v, %v; want none", p, err)
	}
	gave = []shm.Place{slot(0)}
	if p, err := take(other(slot(0))); err != nil || p != slot(0) {
		t.Errorf("took %v, %v; want the one that gives way", p, err)
	}
	base := seal(t, a, frozen, fixture.Gen(1, 0), replica.Digest{})
	man, _ = manifest(a, frozen, base.Generation, replica.Digest{})
	if p, err := take(man); !errors.Is(err, ErrBrought) {
		t.Errorf("took %v, %v for the frozen part that lies there", p, err)
	}
	man, _ = manifest(a, frozen, fixture.Gen(1, 7), replica.Digest{})
	if p, err := take(man); err != nil || p != frozen {
		t.Errorf("took %v, %v; want the frozen area for another part", p, err)
	}
	a.Drop()
	if _, err := take(man); err == nil || !strings.Contains(err.Error(), "was given up") {
		t.Errorf("of an arena that was given up: %v", err)
	}
}

// The list says who has an arena; its page does only where the list is lost, and proves nothing.
func TestIdentify(t *testing.T) {
	for what, c := range map[string]struct {
		entry  Entry
		listed bool
		mirror bool
		want   Process
		odd    string
	}{
		"listed":                {Entry{PID: 7, Start: 70}, true, false, Process{7, 70, true}, ""},
		"listed, the page lies": {Entry{PID: 8, Start: 70}, true, false, Process{8, 70, true}, "the list counts"},
		"a later process":       {Entry{PID: 7, Start: 71}, true, false, Process{7, 71, true}, "the list counts"},
		"retired":               {Entry{}, true, false, Process{0, 0, true}, ""},
		"the list is lost":      {Entry{}, false, false, Process{7, 70, false}, "not in the list"},
		"a mirror":              {Entry{}, false, true, Process{}, ""},
	} {
		spec := ofRank(t, 0)
		spec.Mirror = c.mirror
		a, _ := hold(t, spec)
		a.SetOwner(4, 7, 70)
		odd := a.Identify(c.entry, c.listed)
		if a.Process != c.want || (odd == "") != (c.odd == "") || !strings.Contains(odd, c.odd) {
			t.Errorf("%s: %+v, %q; want %+v, %q", what, a.Process, odd, c.want, c.odd)
		}
	}
}

// The keys tell incarnations apart, and a mirror's arenas from those of daemons before.
func TestKeys(t *testing.T) {
	keys := map[string]bool{}
	for i := range replica.Incarnation(3) {
		keys[RankKey(fixture.JobID, 1, i)] = true
		keys[RankKey(fixture.JobID, 2, i)] = true
		keys[MirrorKey(fixture.JobID, 1)] = true
	}
	if len(keys) != 9 {
		t.Errorf("nine arenas have the keys %v", keys)
	}
	if got, want := RankKey(fixture.JobID, 1, 2), fmt.Sprintf("%s-rank-1-2", fixture.JobID); got != want {
		t.Errorf("%s, want %s: the keeper holds arenas of the release before under such keys", got, want)
	}
}
