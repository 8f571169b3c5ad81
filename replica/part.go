package replica

import (
	"encoding/binary"
	"fmt"
)

// PartKind tells whose part it is.
type PartKind uint8

// The kinds of parts. FrozenPart is the frozen area of a group: captured once, its root is bound into every replicated root.
const (
	ReplicatedPart PartKind = 0
	PrivatePart    PartKind = 1
	FrozenPart     PartKind = 2
)

// Part names a part of a generation: the replicated (or frozen) part of group Index, or the private part of rank Index.
type Part struct {
	Kind  PartKind `json:"kind" cbor:"1,keyasint"`
	Index uint32   `json:"index" cbor:"2,keyasint"`
}

// OfGroup is the replicated part of g.
func OfGroup(g GroupID) Part { return Part{ReplicatedPart, uint32(g)} }

// OfRank is the private part of r.
func OfRank(r Rank) Part { return Part{PrivatePart, uint32(r)} }

// FrozenOf is the frozen part of g.
func FrozenOf(g GroupID) Part { return Part{FrozenPart, uint32(g)} }

func (p Part) String() string {
	switch p.Kind {
	case ReplicatedPart:
		return fmt.Sprintf("group %d", p.Index)
	case PrivatePart:
		return fmt.Sprintf("private %d", p.Index)
	case FrozenPart:
	}
	return fmt.Sprintf("frozen %d", p.Index)
}

// PartFlags of a manifest.
type PartFlags uint32

// Flags of a sealed part.
const (
	NoUpdate   PartFlags = 1 // the step ran no update (overflow)
	DaemonMade PartFlags = 2 // hashed or sealed by the daemon in a dead rank's name: holds, never votes
	// SharedElsewhere, of a private part: what the group has in common is initialised by another rank of it. It stays in the arena of its rank: no
	// manifest has it.
	SharedElsewhere PartFlags = 4
)

// DefaultChunkBytes is the chunk size in bytes unless the job says otherwise. A chunk is read, sent, received, hashed and written as a whole, one
// after the other. Between these it stays in a core's second cache, which is 512 KiB at least. A larger one goes to memory and back each time:
// chunks of 4 MiB move at 0.8 of the rate (D91).
const DefaultChunkBytes = 512 << 10

// Manifest is the typed table of one sealed part.
type Manifest struct {
	Cluster     ClusterID    `json:"cluster" cbor:"1,keyasint"`
	Era         Era          `json:"era" cbor:"2,keyasint"`
	Job         JobID        `json:"job" cbor:"3,keyasint"`
	Part        Part         `json:"part" cbor:"4,keyasint"`
	Generation  Generation   `json:"generation" cbor:"5,keyasint"`
	Rank        Rank         `json:"rank" cbor:"6,keyasint"`        // the producer
	Incarnation Incarnation  `json:"incarnation" cbor:"7,keyasint"` // the producer's
	Flags       PartFlags    `json:"flags" cbor:"8,keyasint"`
	Geometry    Digest       `json:"geometry" cbor:"9,keyasint"` // of this kind of part
	FrozenRoot  Digest       `json:"frozen_root" cbor:"10,keyasint"`
	Bytes       uint64       `json:"bytes" cbor:"11,keyasint"`
	ChunkBytes  uint32       `json:"chunk_bytes" cbor:"12,keyasint"`
	Chunks      []Digest     `json:"chunks" cbor:"13,keyasint"`
	Root        Digest       `json:"root" cbor:"14,keyasint"`
	Lineage     Lineage      `json:"lineage" cbor:"15,keyasint"`
	Condemned   []Generation `json:"condemned" cbor:"16,keyasint"`
	// Regions are the part's: what Geometry is the digest of. A mirror lays its arena out by them.
	Regions []Region `json:"regions,omitempty" cbor:"17,keyasint,omitempty"`
}

// ChunkCount is the number of chunks of size chunk that bytes fill.
func ChunkCount(bytes uint64, chunk uint32) int {
	if chunk == 0 {
		return 0
	}
	return int((bytes + uint64(chunk) - 1) / uint64(chunk))
}

// ChunkSpan is the place of chunk i in a part: offset and length in bytes.
func ChunkSpan(i int, bytes uint64, chunk uint32) (off, n uint64) {
	off = uint64(i) * uint64(chunk)
	return off, min(uint64(chunk), bytes-off)
}

// RootInput is what the root digest is the XXH3-128 of: "RPROOT01", geometry[16], kind u32, chunk count u32, chunk bytes u32, flags&NoUpdate u32,
// bytes u64, frozen root[16], chunk digests; little-endian. Neither generation nor producer is in it: two replicas of one
// state have one root.
func (m *Manifest) RootInput() []byte {
	b := make([]byte, 0, 72+16*len(m.Chunks))
	b = append(b, "RPROOT01"...)
	b = append(b, m.Geometry[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Part.Kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Chunks)))
	b = binary.LittleEndian.AppendUint32(b, m.ChunkBytes)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Flags&NoUpdate))
	b = binary.LittleEndian.AppendUint64(b, m.Bytes)
	b = append(b, m.FrozenRoot[:]...)
	for _, c := range m.Chunks {
		b = append(b, c[:]...)
	}
	return b
}

// Check tells whether the manifest is consistent in itself; the caller compares Root with the hash of RootInput.
func (m *Manifest) Check() error {
	if m.Part.Kind > FrozenPart {
		return fmt.Errorf("manifest of %v: unknown kind of part %d", m.Part, m.Part.Kind)
	}
	if m.ChunkBytes == 0 || m.ChunkBytes > 1<<30 {
		return fmt.Errorf("manifest of %v: chunk size %d out of range", m.Part, m.ChunkBytes)
	}
	if m.Bytes > 1<<50 || ChunkCount(m.Bytes, m.ChunkBytes) != len(m.Chunks) {
		return fmt.Errorf("manifest of %v: %d chunks of %d bytes for %d bytes", m.Part, len(m.Chunks), m.ChunkBytes, m.Bytes)
	}
	return nil
}

// Held says that a node holds a sealed and verified part.
type Held struct {
	Part       Part       `json:"part" cbor:"1,keyasint"`
	Generation Generation `json:"generation" cbor:"2,keyasint"`
	Root       Digest     `json:"root" cbor:"3,keyasint"`
	Mirror     bool       `json:"mirror,omitempty" cbor:"4,keyasint,omitempty"`      // held for another node: never votes
	DaemonMade bool       `json:"daemon_made,omitempty" cbor:"5,keyasint,omitempty"` // sealed in a dead rank's name: never votes
	Rank       Rank       `json:"rank" cbor:"6,keyasint"`                            // whose arena it lies in, or, for a mirror, whose part it copies
	// Producer is the process that sealed the part from its own live state, wherever this copy lies; 0: not known.
	Producer Incarnation `json:"producer,omitempty" cbor:"7,keyasint,omitempty"`
	Fetched  bool        `json:"fetched,omitempty" cbor:"8,keyasint,omitempty"` // another rank produced it: never votes
}
