// Package act is the vocabulary of the rooms of a host: what any of them may learn, and what any of them may want done.
//
// A room returns effects as data, so that its tests need no host, and one place of the host carries them out. What only one room learns or
// wants is a type of that room's package. The package starts nothing and decides nothing.
package act

import (
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Room is the shape of a room with its own events and effects. It belongs to one goroutine.
type Room interface {
	Learn(now time.Time, ev Event)
	// Step returns the effects of what was learned, and of the time that has passed, in the order in which they are to be carried out.
	Step(now time.Time) []Effect
	// Next is when to call Step again, whatever happens; false: after the next event.
	Next() (at time.Time, ok bool)
}

// Event is something that a room learns. The mark keeps messages and effects from being passed as one.
type Event interface{ IsEvent() }

type (
	// Changed says that something about a job may be another: its state, its fence, its ranks, what lies here. A zero Job is any.
	Changed struct {
		Job replica.JobID
		Was *replica.Job // the record until now; nil: it is the same
	}
	// Committed says that a job has committed a further generation, and nothing else.
	Committed struct{ Job replica.JobID }
	// Linked says that a leader was reached, which has had no report from here.
	Linked struct{}
	// Gone is the end of a session.
	Gone struct{ Peer session.Peer }
	// Ended is the end of an effect that took time, beside the owner. What it has found is in the effect.
	Ended struct {
		Of  Effect
		Err error
	}
	// Made is the end of a Make. Who asked knows it by Of.
	Made struct {
		Of    any
		Arena *shm.Arena
		Err   error
	}
)

func (Changed) IsEvent()   {}
func (Committed) IsEvent() {}
func (Linked) IsEvent()    {}
func (Gone) IsEvent()      {}
func (Ended) IsEvent()     {}
func (Made) IsEvent()      {}

// Effect is something that a room wants done.
type Effect interface{ IsEffect() }

// Depth is how much of a job is looked at again.
type Depth uint8

// Each goes deeper than the one before.
const (
	Report    Depth = iota // the leader is to have a report
	Retain                 // places may be free for others
	Commit                 // a part may lie here which a commit or a plan waits for
	Reconcile              // anything may be different
)

type (
	// Send is for the leader. Without a link it is dropped: a room repeats what still matters when it learns Linked.
	Send struct{ Msg any }
	// Wake has a job looked at again.
	Wake struct {
		Job   replica.JobID
		Depth Depth
	}
	// Make has the memory of an arena reserved, beside the owner. Made follows.
	Make struct {
		Of   any
		Spec shm.Spec
	}
	// Park has the keeper and the list on disk hold an arena. Then follows once both do.
	Park struct {
		Arena *holding.Arena
		Then  Event
	}
	// Reserve has the memory of an arena in use touched, beside the owner.
	Reserve struct{ Arena *holding.Arena }
	// Forget gives an arena up: keeper, list, memory.
	Forget struct{ Arena *holding.Arena }
	// Retire keeps an arena as a holder until the next commit: another one has its place.
	Retire struct {
		Job   replica.JobID
		Arena *holding.Arena
	}
	// Save has the list of arenas on disk written anew.
	Save struct{}
	// Unmap gives memory back that no arena of the node is.
	Unmap struct{ Arena *shm.Arena }
	// Cancel ends an effect that nobody needs any more. Ended follows all the same.
	Cancel struct{ Of Effect }
	// Kill ends a process.
	Kill struct {
		Key   string // what it has, for the log
		PID   int
		Start uint64
	}
)

func (Send) IsEffect()    {}
func (Wake) IsEffect()    {}
func (Make) IsEffect()    {}
func (Park) IsEffect()    {}
func (Reserve) IsEffect() {}
func (Forget) IsEffect()  {}
func (Retire) IsEffect()  {}
func (Save) IsEffect()    {}
func (Unmap) IsEffect()   {}
func (Cancel) IsEffect()  {}
func (Kill) IsEffect()    {}
