package shm

import (
	"errors"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// Spec says what an arena is for and how large its parts are.
type Spec struct {
	Cluster  replica.ClusterID
	Era      replica.Era
	Job      replica.JobID
	Rank     replica.Rank // for a mirror of a group's part: the rank whose copy it was made from
	Geometry replica.Geometry

	ChunkBytes uint32 // 0: replica.DefaultChunkBytes
	// Slots for replicated parts: 2 to 4, 0: 4. A mirror has as many as are asked for, 0 where it holds private parts alone.
	Slots int
	// Ring places for private parts: 0: one for each replicated slot (a mirror's producer may have 4), the newest four, and the committed,
	// candidate and planned ones, at most 16. Negative in a mirror: none.
	Ring   int
	Mirror bool

	// Margin is the memory in bytes that must stay free beside the arena: memory_margin of the configuration. Too little risks that the host's
	// OOM killer answers instead of TooLittleMemory. It is not kept in the arena.
	Margin uint64
}

// MirrorOf is the arena that mirrors a part of the one that s describes, on another node, from the regions that the part's manifest names.
func (s Spec) MirrorOf(part replica.PartKind, regions []replica.Region) (Spec, error) {
	var err error
	if s.Geometry, err = laidOut(regions); err != nil {
		return s, err
	}
	if s.Mirror, s.Ring = true, -1; part == replica.PrivatePart {
		s.Slots, s.Ring = 0, 0
	}
	return s, nil
}

// laidOut lays regions out. The mirror of a private part has none where its rank has no private regions: that part is empty, and yet each
// copy of it counts.
func laidOut(regions []replica.Region) (replica.Geometry, error) {
	if len(regions) == 0 {
		return replica.Geometry{}, nil
	}
	return replica.NewGeometry(regions)
}

func (s Spec) withDefaults() Spec {
	if s.ChunkBytes == 0 {
		s.ChunkBytes = replica.DefaultChunkBytes
	}
	if s.Slots == 0 && !s.Mirror {
		s.Slots = MaxSlots
	}
	switch {
	case s.Ring == 0 && s.Mirror:
		s.Ring = MaxSlots + 4 + 3
	case s.Ring == 0:
		s.Ring = min(s.Slots+4+3, MaxRing)
	case s.Ring < 0 && s.Mirror:
		s.Ring = 0
	}
	return s
}

// check looks at a spec whose defaults were filled in, or that was read from a header.
func (s Spec) check() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Job == (replica.JobID{}) || s.Cluster == (replica.ClusterID{}) {
		fault("no job or cluster id")
	}
	if s.Rank >= replica.MaxRanks {
		fault("rank %d, want below %d", s.Rank, replica.MaxRanks)
	}
	if s.ChunkBytes == 0 || s.ChunkBytes > 1<<30 {
		fault("chunks of %d bytes, want 1 to %d", s.ChunkBytes, 1<<30)
	}
	low := 2
	if s.Mirror {
		low = 0
	}
	if s.Slots < low || s.Slots > MaxSlots {
		fault("%d slots, want %d to %d", s.Slots, low, MaxSlots)
	}
	if s.Ring < 0 || s.Ring > MaxRing || s.Ring == 0 && !s.Mirror {
		fault("a private ring of %d places, want 1 to %d", s.Ring, MaxRing)
	}
	if n := len(s.Geometry.Regions); n == 0 && !s.Mirror || n > replica.MaxRegions {
		fault("%d regions, want 1 to %d", n, replica.MaxRegions)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("arena of rank %d of job %v: %w", s.Rank, s.Job, err)
	}
	return nil
}
