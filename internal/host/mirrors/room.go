package mirrors

import (
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// lookEvery is between two looks at what is still to be fetched.
const lookEvery = 200 * time.Millisecond

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	Jobs() []room.JobView
	// Job is false where the node does not know it any more.
	Job(replica.JobID) (room.JobView, bool)
	// Spec is what arenas for a rank's parts have in common here.
	Spec(*replica.Job, replica.Rank) shm.Spec
	// Hold makes an arena of the node of its memory, under the key that the keeper knows it by.
	Hold(*shm.Arena, string) *holding.Arena
}

// Log takes what an operator should know of.
type Log interface {
	Failed(what, subject, why string)
	// Retried is Failed for what may fail many times a second.
	Retried(what, subject, why string)
}

type (
	// Parked says that the keeper and the list have an arena.
	Parked struct{ Of *Making }
	// Short says that the memory of an arena, which is in use already, is not to be had.
	Short struct {
		Arena *holding.Arena
		Err   error
	}
	// Relay is the leader's word that a node fetches a part for another one.
	Relay struct{ control.RelayOrder }
)

func (Parked) IsEvent() {}
func (Short) IsEvent()  {}
func (Relay) IsEvent()  {}

type (
	// Fetch brings a part of a plan, and what it binds, into the arena that Find names, beside the owner.
	Fetch struct {
		Job    *replica.Job
		Plan   *replica.Plan
		Source replica.Source
		Rank   replica.Rank // for whom
		Missed room.Missed  // once it has ended
	}
)

func (*Fetch) IsEffect() {}

// Room is what a node mirrors. It belongs to one goroutine.
type Room struct {
	owner   Owner
	log     Log
	self    replica.NodeName
	jobs    map[replica.JobID]*Held
	looked  time.Time
	waits   bool         // a job has not ended, as of that look
	effects []act.Effect // since the last Step
}

// New returns a room that mirrors nothing.
func New(owner Owner, log Log, self replica.NodeName) *Room {
	return &Room{owner: owner, log: log, self: self, jobs: map[replica.JobID]*Held{}}
}

// Of is what is mirrored of a job.
func (r *Room) Of(id replica.JobID) *Held {
	if r.jobs[id] == nil {
		r.jobs[id] = newHeld()
	}
	return r.jobs[id]
}

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case act.Changed:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.release(v.Job)
			r.fetchAll(now, v)
		}
	case act.Committed:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.release(v.Job)
		}
	case act.Made:
		r.made(ev)
	case Parked:
		r.parked(ev.Of)
	case Short:
		r.short(ev)
	case Relay:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.Of(ev.Job).relays.add(ev.RelayOrder)
			r.fetchAll(now, v)
		}
	case act.Ended:
		if of, is := ev.Of.(*Fetch); is {
			r.fetched(now, of, ev.Err)
		}
	}
}

// Step returns what is to be done now.
func (r *Room) Step(now time.Time) []act.Effect {
	if now.Sub(r.looked) >= lookEvery {
		r.looked = now
		views := r.owner.Jobs()
		r.waits = room.Waits(views)
		for _, v := range views {
			r.fetchAll(now, v)
		}
		r.forgetJobs()
	}
	r.check()
	effects := r.effects
	r.effects = nil
	return effects
}

// Next is when to call Step again, whatever happens. False: no job is there that time could change.
func (r *Room) Next() (at time.Time, ok bool) { return r.looked.Add(lookEvery), r.waits }

// forgetJobs drops what is known of jobs that the node does not know any more.
func (r *Room) forgetJobs() {
	for id, held := range r.jobs {
		if _, known := r.owner.Job(id); !known && len(held.arenas)+len(held.making) == 0 {
			delete(r.jobs, id)
		}
	}
}

// Adopt puts a mirror's arena in its place that an earlier daemon has left, which wrote to it and is dead: only what is sealed there counts. Of
// two arenas of one part the one with the newer whole part stays. The other one is returned: it is a holder until the next commit.
func (r *Room) Adopt(job replica.JobID, part replica.Part, a *holding.Arena) (other *holding.Arena) {
	if !planted.Left {
		a.GiveUpLeft()
	}
	held, kind := r.Of(job), holding.KindFor(part)
	if other = held.Arena(part); other != nil && other.NewestSealed(kind).Compare(a.NewestSealed(kind)) >= 0 {
		return a
	}
	held.arenas[part] = room.Mirror{Part: part, Rank: a.Spec().Rank, Arena: a}
	r.effects = append(r.effects, act.Reserve{Arena: a}) // the daemon before may have died while it did
	return other
}

// release gives up the arenas that nobody needs: of a job that has ended all of them; of an open one those whose part this node is not to
// mirror any more, once they hold nothing that the job may go back to. Their memory is somebody else's then.
func (r *Room) release(job *replica.Job) {
	held := r.Of(job.ID)
	for _, m := range held.All() {
		open := job.Phase == replica.Open && !slices.Contains(room.MirrorsFor(job, m.Part), r.self) && !held.fetching[m.Part].running && !room.Useful(job, m.Arena)
		if open || job.Phase == replica.Ended {
			delete(held.arenas, m.Part)
			r.effects = append(r.effects, act.Forget{Arena: m.Arena})
		}
	}
}

// short gives up a mirror without memory: the next push is told that there is no room.
func (r *Room) short(ev Short) {
	for id, held := range r.jobs {
		for _, m := range held.All() {
			if m.Arena == ev.Arena {
				r.log.Failed("reserve", m.Arena.Key(), ev.Err.Error())
				delete(held.arenas, m.Part)
				r.effects = append(r.effects, act.Forget{Arena: m.Arena}, act.Wake{Job: id, Depth: act.Reconcile})
			}
		}
	}
}
