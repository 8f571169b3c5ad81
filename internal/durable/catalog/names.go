package catalog

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/diff"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/move"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// What is found.
type (
	Run     = find.Run
	Found   = find.Found
	Skipped = find.Skipped
	Listed  = find.Listed
	State   = find.State
)

// What is read.
type (
	ShardReader = read.ShardReader
	Fault       = read.Fault
	How         = read.How
)

// Difference is one line of what two generations differ in.
type Difference = diff.Difference

// Diff compares two generations, tensor by tensor and group by group, each byte of both checked as it is read.
func Diff(ctx context.Context, catA *Catalog, a Found, catB *Catalog, b Found) ([]Difference, error) {
	return diff.Generations(ctx, catA, a, catB, b)
}

// What is written, kept and moved.
type (
	Attempt = write.Attempt
	Part    = write.Part
	Fleet   = write.Fleet
	Lease   = keep.Lease
)

// LeaseTime is how long a lease keeps a generation whose reader died. LeastGrace is longer than a write and any request of it take.
const (
	LeaseTime  = keep.LeaseTime
	LeastGrace = keep.LeastGrace
)

// NodeObject is the name of the object that the private parts of a node's ranks are packed in.
func NodeObject(node replica.NodeName) string { return write.NodeObject(node) }

// The states of a generation.
const (
	Good       = find.Good
	Unread     = find.Unread
	Damaged    = find.Damaged
	Unfinished = find.Unfinished
	Unreadable = find.Unreadable
	Deleting   = find.Deleting
	Stripped   = find.Stripped
	Encrypted  = find.Encrypted
)

// What callers tell apart.
var (
	ErrNone    = find.ErrNone    // there is no such job, run or generation
	ErrLocked  = find.ErrLocked  // it is encrypted, and no key of it was given
	ErrFenced  = write.ErrFenced // another fleet claimed the epoch, or a later one
	ErrPinned  = keep.ErrPinned  // somebody keeps the generation, or reads it
	ErrNothing = move.ErrNothing // the generation has no optimizer state
)

// KeptBy is what pins of a generation say: whether it is kept for good, until when people keep it, and whether somebody reads it.
func KeptBy(pins []format.Pin) (kept bool, until time.Time, open bool) { return find.KeptBy(pins) }

// Regions reads the regions of a part that are asked for, by name, each checked.
func Regions(sh ShardReader, want func(replica.Region) bool) (map[string][]byte, error) {
	return read.Regions(sh, want)
}

// Plain says in a few words, for people, why a read failed.
func Plain(err error) string { return damage.Plain(err) }

// IsDamage reports whether an error says that bytes are not those that were written. A store that does not answer, or refuses, says nothing
// of them.
func IsDamage(err error) bool { return damage.Is(err) }
