package durable

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Owner is the leader around a Room. Its methods do not wait.
type Owner interface {
	// Linked tells whether a node has a link to the leader.
	Linked(replica.NodeName) bool
	// Parted tells whether all ranks of the job have left and nothing more will be committed.
	Parted() bool
	// Unattended tells whether nobody works at the job: neither a launcher nor a process of it is there.
	Unattended() bool
	// Clocks are the job's.
	Clocks() *recovery.Clocks
	// Lacks is what the copies of a generation lack, by the nodes' words.
	Lacks(replica.Generation) []replica.Lacking
}

// Event is something that a Room learns.
type Event interface{ event() }

type (
	// Changed is the job's record, as it was applied last.
	Changed struct{ Job *replica.Job }
	// Ask wants what is committed now written at once, and kept where Keep says why.
	Ask struct{ Keep string }
	// Shard is what a node reports of a part that it writes.
	Shard struct {
		From replica.NodeName
		control.ShardReport
	}
	// Marked is what a node reports of the commit marker.
	Marked struct {
		From replica.NodeName
		control.MarkedReport
	}
	// Said is what the ranks and launchers of a node say of the generation that is being written.
	Said struct{ control.SaidReport }
	// Unknown says that nobody knows whether the end of a write was applied.
	Unknown struct{ End replica.EndDurable }
	// Unread is what of the job's run was written, and waits to be read back, the oldest first. Listing: the store is being asked what there is.
	Unread struct {
		Generations []replica.Generation
		Listing     bool
	}
	// Seen is the end of a Look; Why is nil where the generation is there.
	Seen struct {
		Generation replica.Generation
		Since      time.Time // when it was written, by the store's clock; zero: nobody knows
		Why        error
	}
)

func (Changed) event() {}
func (Ask) event()     {}
func (Shard) event()   {}
func (Marked) event()  {}
func (Said) event()    {}
func (Unknown) event() {}
func (Unread) event()  {}
func (Seen) event()    {}

// Effect is something that the owner has to do.
type Effect interface{ effect() }

type (
	// Propose puts a command into the log. Where its outcome stays unknown the Room learns that.
	Propose struct{ Command replica.Command }
	// Mark has a node write the commit marker.
	Mark struct {
		Node  replica.NodeName
		Order control.MarkerOrder
	}
	// Turn has a node give the store its parts of the write under way.
	Turn struct {
		Node  replica.NodeName
		Order control.WriteTurn
	}
	// Pin has a generation kept that is written already.
	Pin struct {
		Generation replica.Generation
		Why        string
	}
	// Look has the path looked at for a generation; Seen is its end.
	Look struct{ Generation replica.Generation }
	// Tell has the job's launchers print something.
	Tell struct{ Text string }
	// Log is a line of the log about something that failed.
	Log struct{ Subject, Why string }
	// Late says that a write which moves holds the slot that a commit lacks.
	Late struct{ recovery.Writing }
	// Over: nothing of the job is written any more.
	Over struct{}
)

func (Propose) effect() {}
func (Mark) effect()    {}
func (Turn) effect()    {}
func (Pin) effect()     {}
func (Look) effect()    {}
func (Tell) effect()    {}
func (Log) effect()     {}
func (Over) effect()    {}
func (Late) effect()    {}

// Room drives the durable writes of one job. It belongs to one goroutine.
type Room struct {
	owner   Owner
	looks   time.Duration // between two looks at the durable tier; zero: the leader's node has none
	writers int           // nodes that write at once
	job     *replica.Job
	write   write
	path    path
	pace    pace
	back    back

	triedAt    time.Duration      // when a write was last proposed, failed, or was found to be gone
	asked      replica.Generation // is to be written at once; zero: nothing was asked for, or it is done
	keep       string             // why what was asked for is to be kept; empty: it is not
	kept       replica.Generation // that its writer pins
	overfull   bool               // people know that there is no room for all that ranks say
	fenced     bool               // another fleet has claimed the run
	saidPassed bool               // people know that multiples of durable_every may be passed
	crowded    replica.Generation // was committed when a write had to give its slot up to the next commit
	ailing     bool               // people know that a write is held up
	failed     int                // writes in a row
	failing    time.Duration      // how long after a write that failed the next one begins; zero: the last one succeeded
	why        string             // the newest write failed, or what an earlier one wrote is gone
	effects    []Effect
}

// New returns a room that knows nothing yet. It looks for what was written so often; zero: the leader can't. At most so many nodes write at once.
func New(owner Owner, looks time.Duration, writers int) *Room {
	return &Room{owner: owner, looks: looks, writers: writers, pace: pace{clocks: owner.Clocks}, triedAt: -backoffMax}
}

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Duration, ev Event) {
	switch ev := ev.(type) {
	case Changed:
		r.changed(now, ev.Job)
	case Ask:
		if r.job != nil {
			r.asked, r.keep = r.job.Committed, cmp.Or(ev.Keep, r.keep)
			r.fulfil()
		}
	case Shard:
		r.shard(now, ev)
	case Marked:
		r.marked(ev)
	case Said:
		r.said(ev)
	case Unknown:
		r.write.unended = &ev.End
	case Unread:
		r.back.unread, r.back.listing = ev.Generations, ev.Listing
		r.followBack(now)
	case Seen:
		r.seen(now, ev)
	}
}

// Step returns what is to be done now.
func (r *Room) Step(now time.Duration) []Effect {
	if r.job != nil {
		r.look(now)
		if r.job.Writer == nil {
			r.sayBack(now)
			r.begin(now)
		} else {
			r.writing(now)
		}
	}
	effects := r.effects
	r.effects = nil
	return effects
}

// Next is when to call Step again, whatever happens.
func (r *Room) Next() (at time.Duration, ok bool) {
	if r.job == nil {
		return 0, false
	}
	at, ok = r.path.next(r)
	sooner := func(t time.Duration) {
		if !ok || t < at {
			at, ok = t, true
		}
	}
	switch {
	case r.job.Writer != nil:
		sooner(r.write.movedAt + absence)
		if t, ok := r.nextTurn(); ok {
			sooner(t)
		}
	case r.putOff(r.beginAt()):
		if r.back.full() {
			sooner(r.owner.Clocks().NextUnread(r.beginAt()))
		}
	case r.wanted(r.beginAt()):
		sooner(r.beginAt())
	case r.byTime() && r.job.Undurable():
		sooner(r.dueAt(r.pace.last(0)))
	}
	return at, ok
}

// Durable is the newest durable generation, zero where it is known to be gone from the path.
func (r *Room) Durable() replica.Generation {
	if r.job == nil || r.path.absent == r.job.Durable {
		return replica.Generation{}
	}
	return r.job.Durable
}

// Since is when the newest durable generation was written, by its store's clock; zero: nobody has looked yet, or it is gone.
func (r *Room) Since() time.Time {
	if r.job == nil || r.path.found != r.job.Durable || r.path.absent == r.job.Durable {
		return time.Time{}
	}
	return r.path.since
}

// Why is why the newest write failed, or why what an earlier one wrote is gone. Empty: neither, or this leader saw none.
func (r *Room) Why() string { return r.why }

// Fenced tells whether another fleet has claimed the run: nothing more is written.
func (r *Room) Fenced() bool { return r.fenced }

// Pace is how often writes are due, and why.
func (r *Room) Pace(now time.Duration) string {
	if r.job == nil || r.job.Options.DurableEvery == 0 || r.job.Phase == replica.Ended {
		return ""
	}
	return r.pace.text(now, r.job.Options) + r.waitText(now)
}

// Failures is how many writes in a row have failed. Of a job whose writes have ended for good there are more than anybody waits for.
func (r *Room) Failures() int {
	if r.fenced {
		return math.MaxInt
	}
	return r.failed
}

func (r *Room) do(e Effect) { r.effects = append(r.effects, e) }

func (r *Room) tell(format string, args ...any) { r.do(Tell{fmt.Sprintf(format, args...)}) }
