package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/replica"
)

// dup is another descriptor of an arena, as the keeper or a rank would hand it back.
func dup(t *testing.T, a *Arena) *os.File {
	t.Helper()
	f, err := unixsock.Duplicate(a.File())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSizeIsSealed(t *testing.T) {
	a := newArena(t, testSpec(t))
	fd := int(a.File().Fd())
	for _, size := range []int64{0, 4096, int64(a.Header().ArenaBytes) + 4096} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE); err == nil {
		t.Error("a rank could forbid writing")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || uint64(st.Size) != a.Header().ArenaBytes {
		t.Errorf("size %d, want %d: %v", st.Size, a.Header().ArenaBytes, err)
	}
	slots := uint64(a.Header().Slots) * a.Header().SlotStride
	if lacks, err := missing(a.File(), a.Header().ArenaBytes); err != nil || lacks != slots || a.owed.Load() != slots {
		t.Errorf("a new arena lacks %d bytes, promised %d, want its slots' %d: %v", lacks, a.owed.Load(), slots, err)
	}
	if err := a.Reserve(t.Context()); err != nil || a.owed.Load() != 0 {
		t.Errorf("reserved: %v; %d bytes are still promised", err, a.owed.Load())
	}
	if lacks, err := missing(a.File(), a.Header().ArenaBytes); err != nil || lacks != 0 {
		t.Errorf("a reserved arena lacks %d bytes: %v", lacks, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x: %v", flags, err)
	}
}

func TestWords(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	a.RaiseFence(7)
	a.RaiseFence(5)
	r.set(wordFence, 1<<40)
	if a.Fence() != 7 {
		t.Errorf("fence %d, want 7 whatever the rank wrote and whatever came late", a.Fence())
	}
	a.RaiseFence(8)
	if got := a.load(wordFence); got != 8 {
		t.Errorf("fence word %d, want 8", got)
	}
	a.SetCommitted(replica.Position{Epoch: 3, Step: 4})
	a.SetCandidate(replica.Position{Epoch: 3, Step: 5})
	a.SetOwner(12, 4711, 99)
	r.setGood(testGen)
	inc, pid, start := a.Owner()
	if a.Committed() != replica.PackWord(3, 4, 0) || a.Candidate() != replica.PackWord(3, 5, 0) || inc != 12 || pid != 4711 || start != 99 || a.Good() != testGen.Word() || le64(r.mem[wordCadence:]) != 1 {
		t.Errorf("committed %v candidate %v owner %d %d %d good %v", a.Committed(), a.Candidate(), inc, pid, start, a.Good())
	}
}

// Words of live state are those of the process that owns the arena, and of no other that had it.
func TestWordsAreTheirOwners(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	live := uint64(replica.PackWord(3, 4, replica.Updated))
	r.set(wordStep, live)
	r.set(wordGood, live)
	if a.Step() != 0 || a.Good() != 0 {
		t.Errorf("step %v, good %v of an arena that nobody owns", a.Step(), a.Good())
	}
	a.SetOwner(12, 4711, 99)
	if a.Step() != 0 || a.Good() != 0 {
		t.Errorf("step %v, good %v before the owner has said that they are its own", a.Step(), a.Good())
	}
	r.set(wordHolder, 12)
	if a.Step() != replica.Word(live) || a.Good() != replica.Word(live) {
		t.Errorf("step %v, good %v of the owner", a.Step(), a.Good())
	}
	a.SetOwner(13, 4712, 100)
	if a.Step() != 0 || a.Good() != 0 {
		t.Errorf("step %v, good %v of the owner before", a.Step(), a.Good())
	}
}

func TestClosedArenaReadsAsEmpty(t *testing.T) {
	a := newArena(t, testSpec(t))
	m := newRank(t, a).capture(Place{Slot, 0}, testGen, 1, replica.SlotSealed)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ReadChunk(Place{Slot, 0}, m.Count, 0, nil); !errors.Is(err, ErrNotSealed) {
		t.Errorf("chunk of a closed arena: %v", err)
	}
	if _, err := a.Sealed(Place{Slot, 0}); !errors.Is(err, ErrNotSealed) || a.Step() != 0 {
		t.Errorf("closed arena: %v, step %v", err, a.Step())
	}
	a.RaiseFence(9)
	if err := a.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestAdopt(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	want := r.capture(Place{Slot, 1}, testGen, 1, replica.SlotSealed)
	a.RaiseFence(2)
	a.Pin(Place{Slot, 1}, 5, 6)
	b, err := Adopt(dup(t, a))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got, err := b.Sealed(Place{Slot, 1})
	if err != nil || got.Root != want.Root || got.PinTerm != 5 || got.PinN != 6 || b.Fence() != 2 {
		t.Errorf("%+v, fence %d: %v", got, b.Fence(), err)
	}
	if err := b.Verify(Place{Slot, 1}); err != nil {
		t.Error(err)
	}
	spec := a.Spec()
	spec.Margin = 0
	if got := b.Spec(); got.Job != spec.Job || got.Slots != spec.Slots || got.Ring != spec.Ring || got.Geometry.ReplicatedBytes != spec.Geometry.ReplicatedBytes {
		t.Errorf("spec %+v, want %+v", got, spec)
	}
}

// No byte of the header or of the region records may differ from what the daemon would have written.
func TestAdoptRefusesEveryChangedByte(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	h := a.Header()
	free := []int{72, 73, 74, 75} // bytes that may make another arena, consistent in itself: chunk size, cluster, job, era, rank
	for i := 16; i < 56; i++ {
		free = append(free, i)
	}
	for i := range int(h.RegionsOffset) + int(h.RegionCount)*replica.RegionRecordBytes {
		if i >= headerBytes && i < pageBytes {
			continue
		}
		r.mem[i] ^= 0x10
		b, err := Adopt(dup(t, a))
		if err == nil {
			_ = b.Close()
			if !slices.Contains(free, i) {
				t.Errorf("byte %d changed from %#x: adopted", i, r.mem[i]^0x10)
			}
		}
		r.mem[i] ^= 0x10
	}
	if b, err := Adopt(dup(t, a)); err != nil {
		t.Error(err)
	} else {
		_ = b.Close()
	}
}

func TestAdoptRefusesOtherFiles(t *testing.T) {
	a := newArena(t, testSpec(t))
	whole := make([]byte, a.Header().ArenaBytes)
	if _, err := a.File().ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	for what, make := range map[string]func() (*os.File, error){
		"a file":     func() (*os.File, error) { return os.CreateTemp(t.TempDir(), "x") },
		"a pipe":     func() (*os.File, error) { r, w, err := os.Pipe(); _ = w.Close(); return r, err },
		"unsealed":   func() (*os.File, error) { return memfdOf(whole, 0) },
		"shrinkable": func() (*os.File, error) { return memfdOf(whole, unix.F_SEAL_GROW|unix.F_SEAL_SEAL) },
		"read-only":  func() (*os.File, error) { return memfdOf(whole, arenaSeals|unix.F_SEAL_FUTURE_WRITE) },
		"too short":  func() (*os.File, error) { return memfdOf(whole[:len(whole)-pageBytes], arenaSeals) },
		"too long":   func() (*os.File, error) { return memfdOf(append(bytes.Clone(whole), 0), arenaSeals) },
		"empty":      func() (*os.File, error) { return memfdOf(nil, arenaSeals) },
	} {
		f, err := make()
		if err != nil {
			t.Fatal(what, err)
		}
		if b, err := Adopt(f); err == nil {
			_ = b.Close()
			t.Errorf("%s: adopted", what)
		}
		_ = f.Close()
	}
}

func memfdOf(b []byte, seals int) (*os.File, error) {
	f, err := NewMemfd("test")
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err == nil {
		err = addSeals(f, seals)
	}
	return f, err
}

// A rank that scribbles over header, region records and words of other places while the daemon reads changes nothing for it.
func TestHeaderRewrittenDuringReads(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	p := Place{Slot, 2}
	m := r.capture(p, testGen, 1, replica.SlotSealed)
	want := bytes.Clone(r.bytes(p))
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	wg.Go(func() {
		for i := uint64(0); !stop.Load(); i++ {
			for off := 0; off < headerBytes; off += 8 {
				r.set(off, i*0x9e3779b97f4a7c15)
			}
		}
	})
	for range 200 {
		if err := a.Verify(p); err != nil {
			t.Fatal(err)
		}
		for i := range m.Digests {
			b, err := a.ReadChunk(p, m.Count, i, nil)
			off, n := replica.ChunkSpan(i, m.Bytes, testChunk)
			if err != nil || !bytes.Equal(b, want[off:off+n]) {
				t.Fatalf("chunk %d: %v", i, err)
			}
		}
	}
}

// Each chunk is judged by itself, and a place that is used again is not taken for bad.
func TestVerifyChunks(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	p := Place{Slot, 1}
	r.capture(p, testGen, 1, replica.SlotSealed)
	of, err := a.Sealed(p)
	if err != nil || len(of.Digests) < 3 {
		t.Fatalf("%v: want three chunks, have %d", err, len(of.Digests))
	}
	r.bytes(p)[testChunk] ^= 0x10 // in chunk 1
	for i := range of.Digests {
		if err := a.VerifyChunks(p, of, i, i+1); errors.Is(err, ErrCorrupt) != (i == 1) || (err == nil) != (i != 1) {
			t.Errorf("chunk %d: %v", i, err)
		}
	}
	if err := a.VerifyChunks(Place{Slot, 99}, of, 0, 1); !errors.Is(err, ErrNoPlace) {
		t.Errorf("a place that is not there: %v", err)
	}
	a.Free(p)
	if err := a.VerifyChunks(p, of, 0, len(of.Digests)); !errors.Is(err, ErrChanged) || errors.Is(err, ErrCorrupt) {
		t.Errorf("freed: %v", err)
	}
}

func TestMetaGarbage(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	for _, p := range []Place{{Slot, 0}, {Ring, 3}, {Frozen, 0}} {
		m := r.capture(p, testGen, 1, replica.SlotSealed)
		if _, err := a.Sealed(p); err != nil {
			t.Fatal(err)
		}
		good := bytes.Clone(r.meta(p))
		for what, change := range map[string]func(b []byte){
			"digest table":  func(b []byte) { fill(b[metaBytes:], 5) },
			"one digest":    func(b []byte) { b[metaBytes] ^= 1 },
			"root":          func(b []byte) { b[metaRoot] ^= 1 },
			"frozen root":   func(b []byte) { b[48] ^= 1 },
			"chunks":        func(b []byte) { b[12]++ },
			"huge chunks":   func(b []byte) { b[15] = 0xff },
			"bytes":         func(b []byte) { b[16]-- },
			"huge bytes":    func(b []byte) { b[23] = 0xff },
			"use count":     func(b []byte) { b[metaUseCount]++ },
			"phase":         func(b []byte) { b[0] |= 2 },
			"epoch 0":       func(b []byte) { clear(b[:8]) },
			"unknown flags": func(b []byte) { b[9] = 1 },
			"no update":     func(b []byte) { b[8] ^= byte(replica.NoUpdate) },
			"producer":      func(b []byte) { b[91] = 0xff },
			"all":           func(b []byte) { fill(b, 6) },
		} {
			change(r.meta(p))
			if _, err := a.Sealed(p); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v: %s: %v, want ErrCorrupt", p, what, err)
			}
			copy(r.meta(p), good)
		}
		r.bytes(p)[m.Bytes-1] ^= 1
		if err := a.Verify(p); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v: changed byte: %v, want ErrCorrupt", p, err)
		}
		if _, err := a.Manifest(p, replica.Part{Kind: 9}); err == nil {
			t.Errorf("%v: holds a part of another kind", p)
		}
	}
	for _, p := range []Place{{Slot, 4}, {Slot, -1}, {Ring, 11}, {Frozen, 1}, {9, 0}} {
		if _, err := a.Sealed(p); !errors.Is(err, ErrNoPlace) || a.Tear(p) || a.Free(p) || a.Word(p) != invalidWord {
			t.Errorf("%v: %v", p, err)
		}
		if _, err := a.ReadChunk(p, 0, 0, nil); !errors.Is(err, ErrNoPlace) {
			t.Errorf("%v: %v", p, err)
		}
	}
}

// The place goes round under the reader: what ReadChunk returns without an error is of the use it was asked for.
func TestReadChunkAcrossUses(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	p := Place{Ring, 0}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for count := uint64(0); !stop.Load(); count++ {
			r.setWord(p, count, replica.SlotCopying)
			b := r.bytes(p)
			for i := 0; i < len(b); i += 8 {
				r.set(int(a.head.RingOffset)+i, count)
			}
			r.setWord(p, count, replica.SlotSealed)
			a.Free(p)
		}
	})
	read := 0
	var buf []byte
	for range 20000 {
		w := a.Word(p)
		b, err := a.ReadChunk(p, w.Count(), 0, buf)
		if err != nil {
			if !errors.Is(err, ErrNotSealed) && !errors.Is(err, ErrChanged) {
				t.Error(err)
				break
			}
			continue
		}
		read++
		buf = b
		for i := 0; i < len(b); i += 8 {
			if le64(b[i:]) != w.Count() {
				t.Errorf("use %d: bytes of use %d at %d", w.Count(), le64(b[i:]), i)
				stop.Store(true)
				break
			}
		}
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d of 20000 reads found the place sealed throughout", read)
}

func TestChangedBetweenReads(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	p := Place{Slot, 0}
	m := r.capture(p, testGen, 1, replica.SlotSealed)
	if _, err := a.ReadChunk(p, m.Count, len(m.Digests), nil); err == nil {
		t.Error("read a chunk beyond the last")
	}
	if !a.Free(p) || a.Free(p) {
		t.Fatal("freed not exactly once")
	}
	r.capture(p, testGen, 2, replica.SlotSealed)
	if _, err := a.ReadChunk(p, m.Count, 0, nil); !errors.Is(err, ErrNotSealed) {
		t.Errorf("chunk of an earlier use: %v", err)
	}
	if got := a.Word(p); got != replica.PackSlot(m.Count+1, replica.SlotSealed) {
		t.Errorf("word %v %d", got.State(), got.Count())
	}
}

// A look at a place that is not sealed makes no text: there are dozens a step.
func TestPlaceErrorsAreTextWhenRead(t *testing.T) {
	a := newArena(t, testSpec(t))
	p := Place{Slot, 1}
	_, err := a.Sealed(p)
	if want := fmt.Sprintf("arena of rank %d of job %v: slot 1: not sealed but FREE", a.Spec().Rank, a.Spec().Job); !errors.Is(err, ErrNotSealed) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if n := testing.AllocsPerRun(100, func() { _, err = a.Sealed(p) }); n > 1 {
		t.Errorf("%v allocations for a place that is free, want 1", n)
	}
	if n := testing.AllocsPerRun(100, func() { a.Places() }); n > 0 {
		t.Errorf("%v allocations to list the places", n)
	}
}
