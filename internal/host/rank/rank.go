package rank

import (
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/replica"
)

// Rank is a rank whose claim the node holds, or held.
type Rank struct {
	Rank        replica.Rank
	Incarnation replica.Incarnation
	Arena       *holding.Arena
	HalfDone    holding.Left // half done when this daemon got the arena; nil: its captures are joined since
	Peer        session.Peer // nil: not attached now
	Process
	Life      Life
	Finishing int       // places whose COPIED bytes are being hashed in the dead rank's name
	StoppedAt time.Time // since when it is stopped
	Epochs
	Watch
	Ending   uint64   // for how many milliseconds its process has said that it may be on its way out
	Progress uint64   // while it comes to rest: megabytes that it has in reach
	LeaveTo  uint32   // request to answer with BYE once the job has ended
	Ordered  OrderKey // the last order sent, so that orders can be derived again and again
	Still    Stillness
	SealedAt map[replica.Generation]time.Time
}

// Process is that of a rank. A process is named by its pid and its start time, because the kernel gives a pid out again.
type Process struct {
	PID      int
	Start    uint64
	Unproven bool   // both are the rank's own word: watched, never killed
	Killed   bool   // by this daemon
	Why      string // this daemon ends it, where the fault is to name that
}

// Epochs are the newest in which something was done with a rank.
type Epochs struct {
	Torn     replica.Epoch // closed epoch at whose settle timeout its unfinished places were torn
	Initial  replica.Epoch // sealed both parts as (initial, init)
	Gone     replica.Epoch // let go in this epoch
	Loaded   replica.Epoch // acknowledged its roots for the plan of this epoch
	Rejected replica.Epoch // reported as bad what it loaded in this epoch: it is not given it again
}

// New is a rank that has its arena, and has not come to rest yet.
func New(r replica.Rank, inc replica.Incarnation, a *holding.Arena, of Process) *Rank {
	return &Rank{Rank: r, Incarnation: inc, Arena: a, Process: of, SealedAt: map[replica.Generation]time.Time{}}
}

// Superseded reports whether a newer incarnation holds the rank, or nobody will.
func (lr *Rank) Superseded(job *replica.Job) bool {
	return room.Superseded(job, lr.Rank, lr.Incarnation)
}

// Outgrown tells whether the rank has the arena of a growth that a fault took back. Its process has given up what the job goes on from.
func (lr *Rank) Outgrown(job *replica.Job) bool {
	e := lr.Arena.Grown()
	return e > job.Grown && e <= job.ClosedEpoch
}

// Settled tells whether nothing of the rank can be sealed any more: it waits in rp_join with its captures joined, or what it
// had not finished in time was torn, or it is dead with every place sealed, torn or free. A process that has loaded nothing yet
// (it prefaults its arena, say) has nothing to finish: its node is not held for silent meanwhile.
func (lr *Rank) Settled() bool {
	if lr.Alive() {
		return lr.Stopped() || lr.Loaded == 0 || lr.Torn != 0 && lr.Torn >= lr.Arena.Fence()
	}
	return lr.Finishing == 0
}

// Stands tells whether the rank makes no further step for now: it has left, or has announced that it stands still.
func (lr *Rank) Stands() bool { return lr.Left() || lr.Pulse.Stands() }

// Takes has the rank begin anew in another arena, in which it has sealed and loaded nothing.
func (lr *Rank) Takes(ref *holding.Arena) {
	lr.Arena, lr.HalfDone = ref, nil
	lr.Initial, lr.Loaded, lr.Rejected, lr.Torn, lr.Finishing = 0, 0, 0, 0, 0
	lr.Ordered, lr.LeaveTo, lr.SealedAt = OrderKey{}, 0, map[replica.Generation]time.Time{}
	lr.Does(Grows)
}

// Stops takes in that the rank has stopped, in an open epoch under which it has loaded its state or in none. It has come back: who
// announced an end was a hook that the program called, for example.
func (lr *Rank) Stops(now time.Time, job *replica.Job) {
	if !lr.Stopped() {
		lr.StoppedAt = now
	}
	lr.Does(Stops)
	if job.Phase == replica.Open && lr.Loaded == job.Epoch {
		lr.Gone = job.Epoch // it was let go, by this daemon or the one before: it is not to be let go once more, but waits for the fault
	}
	lr.Ending = 0
	lr.Arena.Joined(lr.HalfDone)
	lr.HalfDone = nil
	lr.LeaveTo = 0 // a fault before all have left brings it back
	lr.Ordered = OrderKey{}
}

// Leaves takes in that the rank has finished. A rank waits in slices, and asks in each: an answer may have come between two of them.
func (lr *Rank) Leaves(request uint32, job *replica.Job) {
	if lr.Left() && job.Phase == replica.Ended {
		lr.Ordered = OrderKey{}
	}
	lr.Does(Leaves)
	lr.LeaveTo = request
}

// Returns takes in that the rank's process has attached again.
func (lr *Rank) Returns(p session.Peer) {
	lr.Peer, lr.Unproven, lr.Ordered = p, false, OrderKey{}
	lr.Does(Returns)
}

// Forgets drops what it remembers of captures up to a committed step.
func (lr *Rank) Forgets(committed replica.Step) {
	for g := range lr.SealedAt {
		if g.Step <= committed {
			delete(lr.SealedAt, g)
		}
	}
}
