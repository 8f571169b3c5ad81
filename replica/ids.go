package replica

import (
	"encoding/hex"
	"fmt"
	"math"
)

// ClusterID is the UUID minted by `replicad pki init`; it is in every certificate of the cluster.
type ClusterID [16]byte

// JobID is the UUID minted when a job is created. A job name may be used again, its JobID never.
type JobID [16]byte

// BootID is the kernel's boot id (/proc/sys/kernel/random/boot_id): another one proves that a node's memory is gone.
type BootID [16]byte

// Digest is an XXH3-128 in canonical (big-endian) byte order. It detects corruption, not forgery.
type Digest [16]byte

// Era counts operator recoveries of a lost quorum; 1 is the first.
type Era uint32

// Epoch is the job-wide fencing number; 0 means "none yet". At most MaxEpoch.
type Epoch uint64

// Step counts optimizer steps; the state before the first one is step 0. At most MaxStep.
type Step uint64

// Rank is the index of a training process slot in its job, from 0.
type Rank uint32

// Incarnation is the number that Raft hands out with each claim of a rank, rising within a job; 0 means "unclaimed".
type Incarnation uint64

// GroupID is the index of a replica group in its job, from 0.
type GroupID uint32

// NoGroup stands for the group of a rank that has not named one: of a job whose ranks name their groups (CreateJob.NameGroups), and
// of a process that learns it from its model, after it has said hello.
const NoGroup = ^GroupID(0)

// NodeName names a node; it is in the node's certificate.
type NodeName string

// NodeIncarnation is minted at random by a node's keeper when it starts, so a restarted daemon keeps it; a keeper that takes another's place beside a
// daemon has it from that one. 0 means "unknown".
type NodeIncarnation uint64

// Session is the number of a daemon's start under one keeper, from 1.
type Session uint64

// Limits of the packed words that ranks and daemons share (24 bits of epoch, 38 of step, 2 of state).
const (
	MaxEpoch Epoch = 1<<24 - 1
	MaxStep  Step  = 1<<38 - 1
)

// Limits of a job; commands and messages beyond them are refused before anything is allocated.
const (
	MaxRanks        = 1 << 20
	MaxLabels       = 16 // of a node; they are registered in the log
	MaxAddrs        = 8  // of a node beside its first; each is probed by every other node
	MaxLabelBytes   = 63 // of a label, and of its value
	MaxNameBytes    = 63
	MaxRegions      = 1 << 16
	MaxRegionName   = 127
	MaxDims         = 8
	MaxPrivateBytes = 64 << 20 // default cap of one rank's private part, in bytes
)

func (c ClusterID) String() string { return formatUUID(c) }
func (j JobID) String() string     { return formatUUID(j) }
func (b BootID) String() string    { return formatUUID(b) }
func (d Digest) String() string    { return hex.EncodeToString(d[:]) }

// IsZero tells whether the digest was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

func formatUUID(b [16]byte) string {
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// ParseUUID reads the 8-4-4-4-12 form, or 32 hex digits.
func ParseUUID(s string) (id [16]byte, err error) {
	plain := make([]byte, 0, 32)
	for i := range len(s) {
		if s[i] == '-' && (i == 8 || i == 13 || i == 18 || i == 23) && len(s) == 36 {
			continue
		}
		plain = append(plain, s[i])
	}
	if len(plain) != 32 {
		return id, fmt.Errorf("uuid %q: want 32 hex digits", s)
	}
	if _, err := hex.Decode(id[:], plain); err != nil {
		return [16]byte{}, fmt.Errorf("uuid %q: %w", s, err)
	}
	return id, nil
}

func (c ClusterID) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
func (j JobID) MarshalText() ([]byte, error)     { return []byte(j.String()), nil }
func (b BootID) MarshalText() ([]byte, error)    { return []byte(b.String()), nil }
func (d Digest) MarshalText() ([]byte, error)    { return []byte(d.String()), nil }

func (c *ClusterID) UnmarshalText(t []byte) error {
	id, err := ParseUUID(string(t))
	*c = id
	return err
}

func (j *JobID) UnmarshalText(t []byte) error {
	id, err := ParseUUID(string(t))
	*j = id
	return err
}

func (b *BootID) UnmarshalText(t []byte) error {
	id, err := ParseUUID(string(t))
	*b = id
	return err
}

func (d *Digest) UnmarshalText(t []byte) error {
	id, err := ParseUUID(string(t))
	*d = id
	return err
}

// Generation names the job's state after Step of Epoch. A restored copy keeps its origin's name.
type Generation struct {
	Epoch Epoch `json:"epoch" cbor:"1,keyasint"`
	Step  Step  `json:"step" cbor:"2,keyasint"`
}

func (g Generation) String() string { return fmt.Sprintf("(%d,%d)", g.Epoch, g.Step) }

// Compare orders by epoch, then step: the order of good words, not of history (that is Position's and Lineage's).
func (g Generation) Compare(o Generation) int {
	switch {
	case g == o:
		return 0
	case g.Epoch < o.Epoch, g.Epoch == o.Epoch && g.Step < o.Step:
		return -1
	}
	return 1
}

// IsZero tells whether g names nothing: epochs start at 1.
func (g Generation) IsZero() bool { return g == Generation{} }

// Position is where the job is. The state machine records which generation it names.
type Position struct {
	Epoch Epoch `json:"epoch" cbor:"1,keyasint"`
	Step  Step  `json:"step" cbor:"2,keyasint"`
}

func (p Position) String() string { return fmt.Sprintf("%d/%d", p.Epoch, p.Step) }

// CheckName tells whether a node's or another name follows the grammar: 1 to 63 of [a-z0-9-_.], first and last a letter or
// digit. Names become file names and certificate fields, so nothing else is let in.
func CheckName(s string) error { return checkName(s, "a-z", false) }

// CheckJobName tells whether a job's name follows the grammar: that of [CheckName], and capitals, as people name models. Names that differ in case alone are
// those of two jobs.
func CheckJobName(s string) error { return checkName(s, "a-z, A-Z", true) }

func checkName(s, letters string, capitals bool) error {
	if len(s) == 0 || len(s) > MaxNameBytes {
		return fmt.Errorf("name %q: want 1 to %d characters", s, MaxNameBytes)
	}
	alnum := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || capitals && c >= 'A' && c <= 'Z'
	}
	for i, c := range s {
		if !alnum(c) && (c != '-' && c != '_' && c != '.' || i == 0 || i == len(s)-1) {
			return fmt.Errorf("name %q: character %q at %d: want %s, 0-9 and, inside, '-', '_', '.'", s, c, i, letters)
		}
	}
	return nil
}

// addBytes adds sizes found in foreign input; ok is false on overflow.
func addBytes(a, b uint64) (sum uint64, ok bool) { return a + b, a <= math.MaxUint64-b }
