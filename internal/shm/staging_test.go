package shm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// part makes bytes and a manifest for a place, as another node would send them.
func part(a *Arena, p Place, seed uint64) ([]byte, replica.Manifest) {
	_, n := a.span(p)
	b := make([]byte, n)
	fill(b, seed)
	m := describe(a, p, b, testGen)
	m.Rank, m.Incarnation = 7, 8
	man := a.manifest(replica.Part{Kind: p.PartKind(), Index: 1}, m)
	man.Root = Root(&man)
	return b, man
}

func chunkOf(m replica.Manifest, b []byte, i int) []byte {
	off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	return b[off : off+n]
}

// A rank need not have private regions. The mirror of its private part is empty, and yet seals, serves and outlives its daemon. No step of
// such a rank was ever committed on several nodes.
func TestMirrorOfAPartWithoutRegions(t *testing.T) {
	spec, err := testSpec(t).MirrorOf(replica.PrivatePart, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := newArena(t, spec)
	p := Place{Ring, 0}
	_, m := part(a, p, 3)
	s, err := a.Stage(p, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	b, err := Adopt(dup(t, a))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if is, err := b.Sealed(p); err != nil || is.Root != m.Root {
		t.Errorf("adopted: %+v, %v", is, err)
	}
	if err := b.Verify(p); err != nil {
		t.Error(err)
	}
	spec.Mirror = false
	if none, err := Create(spec); err == nil {
		none.Close()
		t.Error("a rank's arena without regions")
	}
}

func TestStage(t *testing.T) {
	mirror := testSpec(t)
	mirror.Mirror, mirror.Slots = true, 2
	for _, spec := range []Spec{testSpec(t), mirror} {
		a := newArena(t, spec)
		for _, p := range []Place{{Slot, 1}, {Ring, 2}, {Frozen, 0}} {
			b, m := part(a, p, 3)
			s, err := a.Stage(p, m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Stage(p, m); !errors.Is(err, ErrState) {
				t.Errorf("staged twice: %v", err)
			}
			if _, err := a.Sealed(p); !errors.Is(err, ErrNotSealed) {
				t.Errorf("served while staging: %v", err)
			}
			for _, i := range rand.Perm(len(m.Chunks)) {
				if s.Have(i) {
					t.Errorf("%v: chunk %d before it came", p, i)
				}
				if err := s.Put(i, chunkOf(m, b, i)[1:]); !errors.Is(err, ErrCorrupt) || s.Have(i) {
					t.Errorf("%v: short chunk %d: %v", p, i, err)
				}
				if _, err := s.ReadChunk(i, nil); !errors.Is(err, ErrState) {
					t.Errorf("%v: chunk %d was read before it came: %v", p, i, err)
				}
				if err := s.Seal(); !errors.Is(err, ErrState) {
					t.Errorf("%v: sealed without chunk %d: %v", p, i, err)
				}
				if err := s.Put(i, chunkOf(m, b, i)); err != nil || !s.Have(i) {
					t.Fatal(err)
				}
				if got, err := s.ReadChunk(i, nil); err != nil || !bytes.Equal(got, chunkOf(m, b, i)) {
					t.Errorf("%v: chunk %d is served on wrong: %v", p, i, err)
				}
			}
			if err := s.Seal(); err != nil {
				t.Fatal(err)
			}
			got, err := a.Manifest(p, m.Part)
			if err != nil || got.Root != m.Root || got.Generation != m.Generation || got.Rank != 7 || got.Incarnation != 8 || a.Verify(p) != nil {
				t.Errorf("%v: sealed as %+v: %v", p, got, err)
			}
			s.Abort()
			if err := s.Put(0, chunkOf(m, b, 0)); !errors.Is(err, ErrState) || a.Word(p).State() != replica.SlotSealed {
				t.Errorf("%v: after the seal: %v, %v", p, err, a.Word(p).State())
			}
		}
	}
}

func TestStageRefuses(t *testing.T) {
	a := newArena(t, testSpec(t))
	p := Place{Slot, 0}
	for what, change := range map[string]func(m *replica.Manifest){
		"job":         func(m *replica.Manifest) { m.Job[3]++ },
		"cluster":     func(m *replica.Manifest) { m.Cluster[3]++ },
		"kind":        func(m *replica.Manifest) { m.Part.Kind = replica.PrivatePart },
		"bytes":       func(m *replica.Manifest) { m.Bytes-- },
		"huge bytes":  func(m *replica.Manifest) { m.Bytes = 1 << 60 },
		"chunk size":  func(m *replica.Manifest) { m.ChunkBytes *= 2; m.Chunks = m.Chunks[:(len(m.Chunks)+1)/2] },
		"no chunks":   func(m *replica.Manifest) { m.Chunks = nil },
		"a digest":    func(m *replica.Manifest) { m.Chunks[0][0]++ },
		"root":        func(m *replica.Manifest) { m.Root[0]++ },
		"geometry":    func(m *replica.Manifest) { m.Geometry[0]++; m.Root = Root(m) },
		"generation":  func(m *replica.Manifest) { m.Generation = replica.Generation{} },
		"frozen root": func(m *replica.Manifest) { m.FrozenRoot[0]++ },
	} {
		_, m := part(a, p, 3)
		change(&m)
		if _, err := a.Stage(p, m); err == nil || a.Word(p) != replica.PackSlot(0, replica.SlotFree) {
			t.Errorf("%s: %v, place %v", what, err, a.Word(p).State())
		}
	}
}

// What arrived before an interruption counts, if it still hashes to what is wanted; what another sealed place has is not fetched.
func TestStageReusesBytes(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	p := Place{Slot, 0}
	b, m := part(a, p, 3)
	s, err := a.Stage(p, m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := s.Put(i, chunkOf(m, b, i)); err != nil {
			t.Fatal(err)
		}
	}
	s.Abort()
	if got := a.Word(p); got != replica.PackSlot(1, replica.SlotFree) {
		t.Fatalf("after abort: %v in use %d", got.State(), got.Count())
	}
	r.bytes(p)[testChunk] ^= 1 // chunk 1 is not what it was
	if s, err = a.Stage(p, m); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, true, false} {
		if s.Have(i) != want {
			t.Errorf("chunk %d: have %v, want %v", i, !want, want)
		}
	}
	for i := range m.Chunks {
		if err := s.Put(i, chunkOf(m, b, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	other := Place{Slot, 3}
	r.bytes(p)[2*testChunk] ^= 1 // a sealed chunk that lies is not taken over
	if s, err = a.Stage(other, m); err != nil {
		t.Fatal(err)
	}
	for i := range m.Chunks {
		if s.Have(i) != (i != 2) {
			t.Errorf("chunk %d from another slot: have %v", i, s.Have(i))
		}
	}
	s.Abort()
}

func TestStageTornUnderneath(t *testing.T) {
	a := newArena(t, testSpec(t))
	p := Place{Ring, 0}
	b, m := part(a, p, 3)
	s, err := a.Stage(p, m)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(0, chunkOf(m, b, 0)); err != nil {
		t.Fatal(err)
	}
	a.Tear(p)
	if err := s.Put(1, chunkOf(m, b, 1)); !errors.Is(err, ErrState) {
		t.Errorf("put into a torn place: %v", err)
	}
	if err := s.Seal(); err == nil {
		t.Error("sealed a torn place")
	}
	s.Abort()
	if a.Word(p).State() != replica.SlotTorn {
		t.Errorf("%v: abort freed what another tore", a.Word(p).State())
	}
}

// A chunk that came twice, over two lanes, may still be written when all chunks have come: nothing is sealed, and the place not used again, before
// that write has ended.
func TestCopiedWaitsForALateWrite(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for end, ends := range map[string]func(s *Staging) error{"copied": (*Staging).Copied, "abort": func(s *Staging) error { s.Abort(); return nil }} {
			a := newArena(t, testSpec(t))
			p := Place{Slot, 0}
			b, m := part(a, p, 3)
			s, err := a.Stage(p, m)
			for i := 0; err == nil && i < len(m.Chunks); i++ {
				err = s.Put(i, chunkOf(m, b, i))
			}
			if err != nil {
				t.Fatal(err)
			}
			s.writes.Add(1) // as a Put does that found the chunk missing
			ended := make(chan error, 1)
			go func() { ended <- ends(s) }()
			synctest.Wait()
			if w := a.Word(p); len(ended) != 0 || w.State() != replica.SlotCopying || w.Count() != s.count {
				t.Errorf("%s: ended %d times with a write under way, the place is %v", end, len(ended), w.State())
			}
			s.writes.Done()
			if err := <-ended; err != nil {
				t.Errorf("%s: %v", end, err)
			}
		}
	})
}

func TestStageFromManySources(t *testing.T) {
	a := newArena(t, testSpec(t))
	p := Place{Slot, 0}
	b, m := part(a, p, 3)
	s, err := a.Stage(p, m)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, i := range rand.Perm(len(m.Chunks)) {
				if err := s.Put(i, chunkOf(m, b, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := s.Seal(); err != nil || a.Verify(p) != nil {
		t.Fatal(err)
	}
}
