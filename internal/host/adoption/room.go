package adoption

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	// Job is false where the node does not know it.
	Job(replica.JobID) (room.JobView, bool)
	// Informed is false until a leader has sent all jobs: a job that the node does not know may exist before that.
	Informed() bool
	Alive(pid int, start uint64) bool
	// Halted tells whether a signal has stopped the process.
	Halted(pid int, start uint64) bool
}

// Log takes what an operator should know of.
type Log interface {
	Failed(what, subject, why string)
	Note2(job *replica.Job, code, text string)
}

type (
	// Kept is what the keeper holds, and the list on disk: what a Room learns first.
	Kept struct {
		Arenas []*holding.Arena
		Listed []holding.Entry
	}
	// Offered is an arena that its rank's process has brought back. Key has named it.
	Offered struct {
		Arena *holding.Arena
		Peer  session.Peer
	}
	// Asked says that a process asks for a new arena.
	Asked struct {
		Peer session.Peer
		Job  string
		Rank replica.Rank
	}
	// Sent is what a rank has sent which no job here has.
	Sent struct {
		Peer  session.Peer
		Event session.Event
	}
)

func (Kept) IsEvent()    {}
func (Offered) IsEvent() {}
func (Asked) IsEvent()   {}
func (Sent) IsEvent()    {}

type (
	// Place puts an arena in the place of its rank.
	Place struct {
		Job         replica.JobID
		Rank        replica.Rank
		Incarnation replica.Incarnation
		Arena       *holding.Arena
		Peer        session.Peer  // nil: the process has not come back
		Finished    bool          // the rank has left the job, as the job's record says
		Loaded      replica.Epoch // whose state the rank has loaded; 0: the rank is to report that again
	}
	// Mirror puts an arena in the place of a part that this node mirrors.
	Mirror struct {
		Job   replica.JobID
		Part  replica.Part
		Arena *holding.Arena
	}
	// GiveUp frees an arena: keeper, list, memory. A Peer is to stop: its job is not known.
	GiveUp struct {
		Arena *holding.Arena
		Peer  session.Peer
	}
	// Placed says that all arenas are where the list on disk is made from.
	Placed struct{}
	// Settle follows for each Place. The owner hears what the rank has sent, and then looks whether its process lives: the rank may have left.
	Settle struct {
		Job   replica.JobID
		Rank  replica.Rank
		Arena *holding.Arena
		Sent  []session.Event
	}
)

func (Place) IsEffect()  {}
func (Mirror) IsEffect() {}
func (GiveUp) IsEffect() {}
func (Placed) IsEffect() {}
func (Settle) IsEffect() {}

// orphan is an arena whose job is not known yet.
type orphan struct {
	*holding.Arena
	peer session.Peer // of its rank; nil: the process has not come back
	sent []session.Event
}

// Room is the arenas of a node that have no place yet. It belongs to one goroutine.
type Room struct {
	owner     Owner
	log       Log
	boot      replica.BootID
	hangFirst time.Duration

	orphans []*orphan
	awaited []holding.Entry // arenas that only a live process can bring back
	since   time.Time       // when the daemon began to await them
	looked  time.Time
	claim   bool // an arena may have its place now
}

// New returns a room without arenas. A process that does not bring its arena within hangFirst is killed.
func New(owner Owner, log Log, boot replica.BootID, hangFirst time.Duration) *Room {
	return &Room{owner: owner, log: log, boot: boot, hangFirst: hangFirst}
}

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case Kept:
		r.since = now
		r.kept(ev)
	case act.Changed:
		r.claim = true
	case Offered:
		r.offered(ev)
	case Asked:
		r.asked(ev)
	case Sent:
		if o := r.of(ev.Peer); o != nil {
			o.keep(ev.Event)
		}
	case act.Gone:
		for _, o := range r.orphans {
			if o.peer == ev.Peer {
				o.peer = nil
			}
		}
	}
}

// Step returns what is to be done now.
func (r *Room) Step(now time.Time) (effects []act.Effect) {
	if r.claim {
		r.claim = false
		effects = r.place()
	}
	r.looked = now
	return append(effects, r.overdue(now)...)
}

// Next is when to call Step again, whatever happens: nobody reports the end of a process that is awaited.
func (r *Room) Next() (at time.Time, ok bool) { return r.looked.Add(lookEvery), len(r.awaited) > 0 }

// kept takes what the keeper has. Of the rest of the list the room awaits what a live process can still bring.
func (r *Room) kept(ev Kept) {
	listed := map[string]holding.Entry{}
	for _, e := range ev.Listed {
		listed[e.Key] = e
	}
	for _, a := range ev.Arenas {
		e, known := listed[a.Key()]
		if odd := a.Identify(e, known); odd != "" {
			r.log.Failed("adopt", a.Key(), odd)
		}
		r.orphans = append(r.orphans, &orphan{Arena: a})
		delete(listed, a.Key())
	}
	for _, e := range ev.Listed {
		switch _, missing := listed[e.Key]; {
		case !missing:
		case e.PID != 0 && e.Boot == r.boot && r.owner.Alive(e.PID, e.Start):
			r.awaited = append(r.awaited, e)
		default:
			r.log.Note2(nil, "arena_lost", fmt.Sprintf("arena %s came back neither from the keeper nor from a live process", e.Key))
		}
	}
}

// Back finds the arena of a rank whose process has come back before its job is known. A live rank goes on without a leader (P7). False: the room
// has no arena of that process.
func (r *Room) Back(p session.Peer, rank replica.Rank) (*holding.Arena, bool) {
	var is *orphan
	for _, o := range r.orphans {
		if o.Process.PID == p.PID() && o.Process.Start == p.StartTime() && o.Spec().Rank == rank && (is == nil || o.Grown() > is.Grown()) {
			is = o // of two the one that a growth has brought
		}
	}
	if is == nil {
		return nil, false
	}
	is.peer, is.Process.Proven = p, true
	return is.Arena, true
}

// offered takes an arena into the room.
func (r *Room) offered(ev Offered) {
	r.awaited = slices.DeleteFunc(r.awaited, func(e holding.Entry) bool { return e.Key == ev.Arena.Key() })
	r.orphans = append(r.orphans, &orphan{Arena: ev.Arena, peer: ev.Peer})
	r.claim = true
}

// of is the arena of a session.
func (r *Room) of(p session.Peer) *orphan {
	for _, o := range r.orphans {
		if o.peer == p {
			return o
		}
	}
	return nil
}

// keep remembers the newest event of each kind, and of seals the newest one of each place, so that there is a bound. An earlier one means nothing
// beside a later one: the words and places of the arena are the truth.
func (o *orphan) keep(ev session.Event) {
	s, seal := ev.(session.Sealed)
	if seal && !o.Has(shm.Place{Kind: shm.PlaceKind(s.Sealed.Kind), Index: int(s.Sealed.Index)}) {
		return
	}
	o.sent = append(slices.DeleteFunc(o.sent, func(old session.Event) bool { return replaces(ev, old) }), ev)
}

// Arenas are those without a place.
func (r *Room) Arenas() (list []*holding.Arena) {
	for _, o := range r.orphans {
		list = append(list, o.Arena)
	}
	return list
}

// Awaited are the arenas that only a live process can bring back.
func (r *Room) Awaited() []holding.Entry { return slices.Clone(r.awaited) }

// Listed is what the list on disk says of the arenas without a place. An unproven process stays off the list, which would prove it.
func (r *Room) Listed() []holding.Entry {
	list := r.Awaited()
	for _, o := range r.orphans {
		if s := o.Spec(); s.Mirror || o.Process.Proven {
			list = append(list, holding.Entry{Key: o.Key(), Job: s.Job, Rank: s.Rank, Mirror: s.Mirror, PID: o.Process.PID, Start: o.Process.Start})
		}
	}
	return list
}

// Running are the claims whose process lives, by the kernel's word and not the rank's own, and whose job is not known yet.
func (r *Room) Running() (claims []replica.Running) {
	for _, o := range r.orphans {
		if p := o.Process; !o.Spec().Mirror && p.Proven && r.owner.Alive(p.PID, p.Start) {
			inc, _, _ := o.Owner()
			claims = append(claims, replica.Running{Job: o.Spec().Job, Rank: o.Spec().Rank, Incarnation: inc})
		}
	}
	return claims
}
