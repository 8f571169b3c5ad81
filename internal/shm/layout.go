package shm

import (
	"encoding/binary"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// The numbers of layout.h.
const (
	arenaMagic   = 0x31414e4552415052 // "RPARENA1"
	arenaVersion = 1
	pageBytes    = 4096
	headerBytes  = 512 // of the control page, before the words
	metaBytes    = 128
	staging      = 2
	flagMirror   = 1

	// MaxSlots and MaxRing are how many slots and ring places the control page has words for.
	MaxSlots = 4
	MaxRing  = 16

	wordStep        = 512
	wordGood        = 576
	wordFence       = 640
	wordCommitted   = 704
	wordCandidate   = 768
	wordCadence     = 832
	wordIncarnation = 896
	wordPID         = 960
	wordStart       = 1024
	wordSkipped     = 1088
	wordCaptured    = 1152
	wordHolder      = 1216
	wordSlot        = 1536
	wordPlace       = 2048
	wordFrozen      = 3072
	wordStride      = 64
)

// maxArenaBytes bounds an arena so that no sum of its parts overflows.
const maxArenaBytes = 1 << 50

// Header is what stands at the beginning of the control page: constant from the moment the arena is handed out. It is always
// computed from a Spec, never taken from shared memory.
type Header struct {
	ArenaBytes      uint64
	ChunkBytes      uint32
	Slots, Ring     uint32
	Staging         uint32
	MetaOffset      uint64
	SlotMetaStride  uint64
	RingMetaStride  uint64
	FrozenOffset    uint64
	FrozenBytes     uint64
	SlotOffset      uint64
	SlotStride      uint64
	ReplicatedBytes uint64
	RingOffset      uint64
	RingStride      uint64
	PrivateBytes    uint64
	StagingOffset   uint64
	StagingStride   uint64
	VolatileBytes   uint64
	Geometry        [3]replica.Digest // by replica.PartKind
	RegionsOffset   uint64
	RegionCount     uint32
	Flags           uint32
}

// layOut computes where everything lies. A mirror without slots holds no frozen area, and no mirror has a staging area.
func layOut(s Spec) (Header, error) {
	g := s.Geometry
	h := Header{ChunkBytes: s.ChunkBytes, Slots: uint32(s.Slots), Ring: uint32(s.Ring), Staging: staging,
		FrozenBytes: g.FrozenBytes, ReplicatedBytes: g.ReplicatedBytes, PrivateBytes: g.PrivateBytes, VolatileBytes: g.VolatileBytes,
		RegionsOffset: pageBytes, RegionCount: uint32(len(g.Regions))}
	if s.Mirror {
		h.Flags, h.Staging, h.VolatileBytes = flagMirror, 0, 0
		if s.Slots == 0 {
			h.FrozenBytes = 0
		}
	}
	for _, n := range []uint64{g.FrozenBytes, g.ReplicatedBytes, g.PrivateBytes} {
		if n > maxArenaBytes/32 {
			return Header{}, fmt.Errorf("arena of rank %d: a part of %d bytes, at most %d", s.Rank, n, uint64(maxArenaBytes/32))
		}
	}
	for k := range h.Geometry {
		h.Geometry[k] = GeometryDigest(g, replica.PartKind(k))
	}
	chunks := max(replica.ChunkCount(h.ReplicatedBytes, s.ChunkBytes), replica.ChunkCount(h.FrozenBytes, s.ChunkBytes))
	h.SlotMetaStride = pages(metaBytes + 16*uint64(chunks))
	h.RingMetaStride = pages(metaBytes + 16*uint64(replica.ChunkCount(h.PrivateBytes, s.ChunkBytes)))
	h.SlotStride, h.RingStride, h.StagingStride = pages(h.ReplicatedBytes), pages(h.PrivateBytes), pages(h.VolatileBytes)

	h.MetaOffset = h.RegionsOffset + pages(uint64(h.RegionCount)*replica.RegionRecordBytes)
	h.FrozenOffset = h.MetaOffset + uint64(1+h.Slots)*h.SlotMetaStride + uint64(h.Ring)*h.RingMetaStride
	h.SlotOffset = h.FrozenOffset + pages(h.FrozenBytes)
	h.RingOffset = h.SlotOffset + uint64(h.Slots)*h.SlotStride
	h.StagingOffset = h.RingOffset + uint64(h.Ring)*h.RingStride
	h.ArenaBytes = h.StagingOffset + uint64(h.Staging)*h.StagingStride
	if h.ArenaBytes > maxArenaBytes {
		return Header{}, fmt.Errorf("arena of rank %d: %d bytes, at most %d", s.Rank, h.ArenaBytes, uint64(maxArenaBytes))
	}
	return h, nil
}

// Layout is where everything will lie in the arena.
func (s Spec) Layout() (Header, error) { return layOut(s.withDefaults()) }

// Bytes is how much memory the arena will take.
func (s Spec) Bytes() (uint64, error) {
	h, err := s.Layout()
	return h.ArenaBytes, err
}

func pages(n uint64) uint64 { return (n + pageBytes - 1) &^ (pageBytes - 1) }

// marshal writes the first 512 bytes of the control page.
func (h Header) marshal(s Spec) []byte {
	b := make([]byte, 0, headerBytes)
	u64 := func(v ...uint64) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	u32 := func(v ...uint32) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	u64(arenaMagic)
	u32(arenaVersion, pageBytes)
	b = append(append(b, s.Cluster[:]...), s.Job[:]...)
	u32(uint32(s.Era), uint32(s.Rank))
	u64(0, h.ArenaBytes)
	u32(h.ChunkBytes, h.Slots, h.Ring, h.Staging)
	u64(h.MetaOffset, h.SlotMetaStride, h.RingMetaStride, h.FrozenOffset, h.FrozenBytes, h.SlotOffset, h.SlotStride, h.ReplicatedBytes,
		h.RingOffset, h.RingStride, h.PrivateBytes, h.StagingOffset, h.StagingStride, h.VolatileBytes)
	for _, d := range h.Geometry {
		b = append(b, d[:]...)
	}
	u64(h.RegionsOffset)
	u32(h.RegionCount, h.Flags)
	return b[:headerBytes]
}

// parseHeader reads what of the header a Spec is made of, and where the region records lie. The rest is recomputed and
// compared by the caller.
func parseHeader(b []byte) (s Spec, regions uint32, err error) {
	if len(b) < headerBytes {
		return s, 0, fmt.Errorf("arena header of %d bytes, want %d", len(b), headerBytes)
	}
	le := binary.LittleEndian
	if m := le.Uint64(b); m != arenaMagic {
		return s, 0, fmt.Errorf("arena header: magic %#x, want %#x: not an arena", m, uint64(arenaMagic))
	}
	if v := le.Uint32(b[8:]); v != arenaVersion {
		return s, 0, fmt.Errorf("arena header: version %d, this daemon knows %d: finish the job with the daemon that began it", v, arenaVersion)
	}
	copy(s.Cluster[:], b[16:])
	copy(s.Job[:], b[32:])
	s.Era, s.Rank = replica.Era(le.Uint32(b[48:])), replica.Rank(le.Uint32(b[52:]))
	s.ChunkBytes = le.Uint32(b[72:])
	slots, ring, flags := le.Uint32(b[76:]), le.Uint32(b[80:]), le.Uint32(b[260:])
	regions = le.Uint32(b[256:])
	none := regions == 0 && flags&flagMirror == 0
	if slots > MaxSlots || ring > MaxRing || flags > flagMirror || none || regions > replica.MaxRegions || le.Uint64(b[248:]) != pageBytes {
		return Spec{}, 0, fmt.Errorf("arena header: %d slots, ring of %d, flags %d, %d regions at %d: out of range", slots, ring, flags, regions, le.Uint64(b[248:]))
	}
	s.Slots, s.Ring, s.Mirror = int(slots), int(ring), flags == flagMirror
	return s, regions, nil
}
