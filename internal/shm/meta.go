package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// Info describes a sealed part, as it was found and checked. Its bytes were not looked at: that is Verify.
type Info struct {
	Generation  replica.Generation // the origin's name
	Flags       replica.PartFlags
	Root        replica.Digest
	Bytes       uint64
	Rank        replica.Rank        // the producer
	Incarnation replica.Incarnation // the producer's
	FrozenRoot  replica.Digest
	Digests     []replica.Digest
	PinTerm     uint64 // pinned for candidate (PinTerm, PinN); 0: not
	PinN        uint64
	Count       uint64 // use count of the place: pass it to ReadChunk
}

const (
	metaUseCount = 24
	metaRoot     = 32
	metaPin      = 72
)

// known are the flags that a part in a kind of place may have.
func known(k PlaceKind) replica.PartFlags {
	if k == Ring {
		return replica.NoUpdate | replica.DaemonMade | replica.SharedElsewhere
	}
	return replica.NoUpdate | replica.DaemonMade
}

// parseMeta reads a meta copied out of shared memory. n is the part's size by the geometry; whatever contradicts it is refused.
func parseMeta(b []byte, kind PlaceKind, n uint64, chunk uint32) (Info, error) {
	le := binary.LittleEndian
	chunks := replica.ChunkCount(n, chunk)
	if len(b) != metaBytes+16*chunks {
		return Info{}, fmt.Errorf("meta of %d bytes, want %d for %d chunks", len(b), metaBytes+16*chunks, chunks)
	}
	w := replica.Word(le.Uint64(b))
	m := Info{Generation: w.Generation(), Flags: replica.PartFlags(le.Uint32(b[8:])), Bytes: le.Uint64(b[16:]), Count: le.Uint64(b[metaUseCount:]),
		Incarnation: replica.Incarnation(le.Uint64(b[64:])), PinTerm: le.Uint64(b[metaPin:]), PinN: le.Uint64(b[metaPin+8:]), Rank: replica.Rank(le.Uint32(b[88:]))}
	copy(m.Root[:], b[metaRoot:])
	copy(m.FrozenRoot[:], b[48:])
	switch c := le.Uint32(b[12:]); {
	case w.Phase() != 0 || w.Epoch() == 0:
		return Info{}, fmt.Errorf("meta: generation word %#x", uint64(w))
	case m.Bytes != n || uint64(c) != uint64(chunks):
		return Info{}, fmt.Errorf("meta: %d bytes in %d chunks, the geometry has %d in %d", m.Bytes, c, n, chunks)
	case m.Flags&^known(kind) != 0:
		return Info{}, fmt.Errorf("meta: unknown flags %#x", uint32(m.Flags))
	case m.Rank >= replica.MaxRanks:
		return Info{}, fmt.Errorf("meta: producer rank %d", m.Rank)
	}
	m.Digests = make([]replica.Digest, chunks)
	for i := range m.Digests {
		copy(m.Digests[i][:], b[metaBytes+16*i:])
	}
	return m, nil
}

// marshal writes the meta that parseMeta reads.
func (m Info) marshal() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, metaBytes+16*len(m.Digests))
	b = le.AppendUint64(b, uint64(m.Generation.Word()))
	b = le.AppendUint32(b, uint32(m.Flags))
	b = le.AppendUint32(b, uint32(len(m.Digests)))
	b = le.AppendUint64(b, m.Bytes)
	b = le.AppendUint64(b, m.Count)
	b = append(append(b, m.Root[:]...), m.FrozenRoot[:]...)
	b = le.AppendUint64(b, uint64(m.Incarnation))
	b = le.AppendUint64(le.AppendUint64(b, m.PinTerm), m.PinN)
	b = le.AppendUint32(b, uint32(m.Rank))
	b = b[:metaBytes]
	for _, d := range m.Digests {
		b = append(b, d[:]...)
	}
	return b
}

// readMeta copies a place's meta out, once, and checks it against the geometry and the place's use count.
func (a *Arena) readMeta(p Place, count uint64) (Info, error) {
	_, n := a.span(p)
	b := make([]byte, metaBytes+16*replica.ChunkCount(n, a.spec.ChunkBytes))
	if _, err := a.file.ReadAt(b, int64(a.metaOf(p))); err != nil {
		return Info{}, fmt.Errorf("meta: %w", err)
	}
	m, err := parseMeta(b, p.Kind, n, a.spec.ChunkBytes)
	if err != nil {
		return Info{}, fmt.Errorf("%w (%w)", err, ErrCorrupt)
	}
	if m.Count != count {
		return Info{}, fmt.Errorf("meta of use %d, the word says %d (%w)", m.Count, count, ErrCorrupt)
	}
	return m, nil
}

func (a *Arena) writeMeta(p Place, m Info) error {
	_, err := a.file.WriteAt(m.marshal(), int64(a.metaOf(p)))
	a.hasStored()
	return err
}

// manifest is what m says of part, without lineage.
func (a *Arena) manifest(part replica.Part, m Info) replica.Manifest {
	return replica.Manifest{Cluster: a.spec.Cluster, Era: a.spec.Era, Job: a.spec.Job, Part: part, Generation: m.Generation, Rank: m.Rank, Incarnation: m.Incarnation,
		Flags: m.Flags &^ replica.SharedElsewhere, Geometry: a.head.Geometry[part.Kind], FrozenRoot: m.FrozenRoot, Bytes: m.Bytes, ChunkBytes: a.spec.ChunkBytes, Chunks: m.Digests, Root: m.Root}
}

// Pin records in the arena that a sealed part is pinned for candidate (term, n).
func (a *Arena) Pin(p Place, term, n uint64) {
	if a.Has(p) {
		b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, term), n)
		_, _ = a.file.WriteAt(b, int64(a.metaOf(p)+metaPin)) // can fail only on a closed arena, which holds no pins
		a.hasStored()
	}
}

// Unpin lets go of a pin.
func (a *Arena) Unpin(p Place) { a.Pin(p, 0, 0) }
