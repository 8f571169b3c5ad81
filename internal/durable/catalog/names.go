package catalog

import (
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
)

// What is found.
type (
	Run     = find.Run
	Found   = find.Found
	Skipped = find.Skipped
	Listed  = find.Listed
	State   = find.State
)

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

// ErrNone marks a job, run or generation that is not there; ErrLocked what is encrypted, and no key of it was given.
var (
	ErrNone   = find.ErrNone
	ErrLocked = find.ErrLocked
)

// KeptBy is what pins of a generation say: whether it is kept for good, until when people keep it, and whether somebody reads it.
func KeptBy(pins []format.Pin) (kept bool, until time.Time, open bool) { return find.KeptBy(pins) }

// Plain says in a few words, for people, why a read failed.
func Plain(err error) string { return damage.Plain(err) }

// IsDamage reports whether an error says that bytes are not those that were written. A store that does not answer, or refuses, says nothing
// of them.
func IsDamage(err error) bool { return damage.Is(err) }
