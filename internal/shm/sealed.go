package shm

import (
	"fmt"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
)

// Sealed describes a place that is SEALED, and was before and after its meta was copied; the root is recomputed from the digests.
// ErrNotSealed, ErrChanged and ErrCorrupt tell what else it is.
func (a *Arena) Sealed(p Place) (Info, error) {
	if !a.Has(p) {
		return Info{}, a.fail(p, ErrNoPlace)
	}
	w := a.Word(p)
	if w.State() != replica.SlotSealed {
		return Info{}, a.fail(p, notSealed(w.State()))
	}
	m, err := a.readMeta(p, w.Count())
	if a.Word(p) != w {
		return Info{}, a.fail(p, ErrChanged)
	}
	if err != nil {
		return Info{}, a.fail(p, err)
	}
	man := a.manifest(replica.Part{Kind: p.PartKind()}, m)
	if got := Root(&man); got != m.Root {
		return Info{}, a.fail(p, fmt.Errorf("root %v, its digests make %v (%w)", m.Root, got, ErrCorrupt))
	}
	return m, nil
}

// Manifest describes a sealed place as a part of the job, without lineage.
func (a *Arena) Manifest(p Place, part replica.Part) (replica.Manifest, error) {
	if part.Kind != p.PartKind() {
		return replica.Manifest{}, a.fail(p, fmt.Errorf("can't hold the part %v", part))
	}
	m, err := a.Sealed(p)
	if err != nil {
		return replica.Manifest{}, err
	}
	return a.manifest(part, m), nil
}

// ReadChunk copies chunk i out, into dst if it has room. The place must be SEALED in its use count both before and after;
// whether the bytes are those of the digest is the receiver's to check.
func (a *Arena) ReadChunk(p Place, count uint64, i int, dst []byte) ([]byte, error) {
	if !a.Has(p) {
		return nil, a.fail(p, ErrNoPlace)
	}
	off, n := a.span(p)
	if i < 0 || i >= replica.ChunkCount(n, a.spec.ChunkBytes) {
		return nil, a.fail(p, fmt.Errorf("no chunk %d in %d bytes", i, n))
	}
	want := replica.PackSlot(count, replica.SlotSealed)
	if w := a.Word(p); w != want {
		return nil, a.fail(p, fmt.Errorf("use %d is %w", count, ErrNotSealed))
	}
	at, size := replica.ChunkSpan(i, n, a.spec.ChunkBytes)
	dst = slices.Grow(dst[:0], int(size))[:size]
	if _, err := a.file.ReadAt(dst, int64(off+at)); err != nil {
		return nil, a.fail(p, fmt.Errorf("chunk %d: %w", i, err))
	}
	if a.Word(p) != want {
		return nil, a.fail(p, ErrChanged)
	}
	return dst, nil
}

// Verify hashes everything a sealed place holds again.
func (a *Arena) Verify(p Place) error {
	m, err := a.Sealed(p)
	if err != nil {
		return err
	}
	return a.VerifyChunks(p, m, 0, len(m.Digests))
}

// VerifyChunks hashes chunks [from, to) of a place again that was found sealed as of says. ErrChanged: it is not sealed in that use any more.
func (a *Arena) VerifyChunks(p Place, of Info, from, to int) error {
	if !a.Has(p) {
		return a.fail(p, ErrNoPlace)
	}
	err := a.rehash(p, of.Digests, from, to)
	if a.Word(p) != replica.PackSlot(of.Count, replica.SlotSealed) {
		return a.fail(p, ErrChanged)
	}
	if err != nil {
		return a.fail(p, err)
	}
	return nil
}

// Finish seals what a dead rank had COPIED, in its name, marked DaemonMade. A replicated part needs the rank's good word at or
// beyond its generation, of the same epoch: only that vouches for the device. The caller knows that the rank is dead.
func (a *Arena) Finish(p Place) error {
	if !a.Has(p) {
		return a.fail(p, ErrNoPlace)
	}
	w := a.Word(p)
	if w.State() != replica.SlotCopied {
		return a.fail(p, fmt.Errorf("%w: %v, want COPIED", ErrState, w.State()))
	}
	m, err := a.readMeta(p, w.Count())
	if err != nil {
		return a.fail(p, err)
	}
	if good := a.Good(); p.Kind == Slot && (good.Epoch() != m.Generation.Epoch || good.Step() < m.Generation.Step) {
		return a.fail(p, fmt.Errorf("%w: generation %v is beyond the good word %v", ErrState, m.Generation, good.Generation()))
	}
	if err := a.rehash(p, m.Digests, 0, len(m.Digests)); err != nil {
		return a.fail(p, err)
	}
	m.Flags |= replica.DaemonMade
	m.PinTerm, m.PinN = 0, 0
	man := a.manifest(replica.Part{Kind: p.PartKind()}, m)
	m.Root = Root(&man)
	if err := a.writeMeta(p, m); err != nil {
		return a.fail(p, err)
	}
	if !a.swap(p, w, replica.PackSlot(w.Count(), replica.SlotSealed)) {
		return a.fail(p, ErrChanged)
	}
	return nil
}

// rehash compares chunks [from, to) of a place with their digests.
func (a *Arena) rehash(p Place, digests []replica.Digest, from, to int) error {
	off, n := a.span(p)
	for i := from; i < to; i++ {
		at, size := replica.ChunkSpan(i, n, a.spec.ChunkBytes)
		got, err := a.hashAt(off+at, size)
		if err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		if want := digests[i]; got != want {
			return fmt.Errorf("chunk %d has digest %v, want %v: %w", i, got, want, ErrCorrupt)
		}
	}
	return nil
}

// RegionDigests hashes each region of a sealed place by itself, in order of registration. The place must be SEALED in its use
// count both before and after.
func (a *Arena) RegionDigests(p Place, count uint64) ([]replica.RegionDigest, error) {
	if !a.Has(p) {
		return nil, a.fail(p, ErrNoPlace)
	}
	want := replica.PackSlot(count, replica.SlotSealed)
	if w := a.Word(p); w != want {
		return nil, a.fail(p, fmt.Errorf("use %d is %w", count, ErrNotSealed))
	}
	off, _ := a.span(p)
	var out []replica.RegionDigest
	for _, r := range a.spec.Geometry.Of(p.PartKind()) {
		if p.Kind == Slot && r.Class == replica.Frozen {
			continue // covered by the part's geometry, but it lies in the frozen area
		}
		d, err := a.hashAt(off+r.Offset, r.Bytes)
		if err != nil {
			return nil, a.fail(p, fmt.Errorf("region %q: %w", r.Name, err))
		}
		out = append(out, replica.RegionDigest{Name: r.Name, Digest: d})
	}
	if a.Word(p) != want {
		return nil, a.fail(p, ErrChanged)
	}
	return out, nil
}

// hashPiece is how much is copied at a time for hashing: it stays in the cache.
const hashPiece = 256 << 10

var pieces = sync.Pool{New: func() any { return new([hashPiece]byte) }}

func (a *Arena) hashAt(off, n uint64) (replica.Digest, error) {
	return a.eachPiece(off, n, func(uint64, []byte) error { return nil })
}

// eachPiece hashes n bytes at off, and gives each piece to take with how far it is behind off.
func (a *Arena) eachPiece(off, n uint64, take func(at uint64, b []byte) error) (replica.Digest, error) {
	buf := pieces.Get().(*[hashPiece]byte)
	defer pieces.Put(buf)
	h := xxh3.New128()
	for at := uint64(0); at < n; {
		b := buf[:min(n-at, hashPiece)]
		if _, err := a.file.ReadAt(b, int64(off+at)); err != nil {
			return replica.Digest{}, err
		}
		_, _ = h.Write(b)
		if err := take(at, b); err != nil {
			return replica.Digest{}, err
		}
		at += uint64(len(b))
	}
	return h.Sum128().Bytes(), nil
}
