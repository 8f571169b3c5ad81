package restore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

const (
	lookEvery  = 200 * time.Millisecond // between two looks at what is still to be restored
	retry      = 200 * time.Millisecond // after a restore that failed
	maxFailing = 256                    // bytes of why a rank's parts have not come
)

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	Jobs() []room.JobView
	// Job is false where the node does not know it any more.
	Job(replica.JobID) (room.JobView, bool)
}

// Log takes what an operator should know of.
type Log interface {
	// Retried takes what may fail many times a second.
	Retried(what, subject, why string)
}

type (
	// Ended is the end of a Restore: where the rank's parts lie, and the farthest tier that was needed.
	Ended struct {
		Of         *Restore
		Slot, Ring shm.Place
		Tier       replica.Tier
		Missed     room.Missed
		Err        error
	}
)

func (Ended) IsEvent() {}

type (
	// Restore makes the parts of a plan lie sealed in a rank's arena, beside the owner.
	Restore struct {
		Job  *replica.Job
		Plan *replica.Plan
		Rank room.Rank
		stop context.CancelFunc
	}
	// Failed says that a restore has failed, and is tried again.
	Failed struct {
		Job  replica.JobID
		Rank replica.Rank
		Err  error
	}
)

func (*Restore) IsEffect() {}
func (Failed) IsEffect()   {}
func (*Reading) IsEffect() {}

// Begin is the context of the restore, which Stop ends.
func (q *Restore) Begin(ctx context.Context) context.Context {
	ctx, q.stop = context.WithCancel(ctx)
	return ctx
}

// Stop ends what Begin began.
func (q *Restore) Stop() { q.stop() }

// Done is what a restore has brought.
type Done struct {
	Slot, Ring shm.Place
	Tier       replica.Tier
	Took       time.Duration // from the plan
}

// Room is a node's restores. It belongs to one goroutine.
type Room struct {
	owner   Owner
	log     Log
	jobs    map[replica.JobID]*job
	looked  time.Time
	waits   bool         // a job has not ended, as of that look
	effects []act.Effect // since the last Step
}

// job is what the room knows of a job.
type job struct {
	ranks    map[replica.Rank]*progress
	fenced   replica.Epoch // since which the readings are
	readings map[arenaPlace]*Reading
}

// progress is how far a rank's parts of the newest plan are.
type progress struct {
	epoch       replica.Epoch
	incarnation replica.Incarnation
	began       time.Time
	running     *Restore // nil: none is
	done        bool
	is          Done
	retryAt     time.Time
	tries       int    // that failed
	failing     string // why, by the first of the tries that were worth saying
}

// New returns a room that restores nothing.
func New(owner Owner, log Log) *Room {
	return &Room{owner: owner, log: log, jobs: map[replica.JobID]*job{}}
}

func (r *Room) job(id replica.JobID) *job {
	j := r.jobs[id]
	if j == nil {
		j = &job{ranks: map[replica.Rank]*progress{}, readings: map[arenaPlace]*Reading{}}
		r.jobs[id] = j
	}
	return j
}

// of is the progress of a rank with the plan of an epoch; nil: there is none.
func (r *Room) of(id replica.JobID, e replica.Epoch, rank replica.Rank) *progress {
	if j := r.jobs[id]; j != nil {
		if p := j.ranks[rank]; p != nil && p.epoch == e {
			return p
		}
	}
	return nil
}

// Done tells where a rank's parts of the plan of an epoch lie; false: they have not come.
func (r *Room) Done(id replica.JobID, e replica.Epoch, rank replica.Rank) (is Done, ok bool) {
	if p := r.of(id, e, rank); p != nil && p.done {
		return p.is, true
	}
	return is, false
}

// Brought is the farthest tier that ranks here needed for the plan of an epoch, and how long the slowest of them took; 0: none has its parts.
func (r *Room) Brought(id replica.JobID, e replica.Epoch) (farthest replica.Tier, took time.Duration) {
	if j := r.jobs[id]; j != nil {
		for _, p := range j.ranks {
			if p.epoch == e {
				farthest, took = max(farthest, p.is.Tier), max(took, p.is.Took)
			}
		}
	}
	return farthest, took
}

// Failing is why a rank's parts of the plan of an epoch have not come, once that is worth saying.
func (r *Room) Failing(id replica.JobID, e replica.Epoch, rank replica.Rank) string {
	if p := r.of(id, e, rank); p != nil && !p.done && p.tries >= room.TriesSaid {
		return p.failing
	}
	return ""
}

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case act.Changed:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.cancel(v)
			r.readAhead(v)
			r.restoreAll(now, v)
		}
	case Ended:
		r.ended(now, ev)
	case act.Ended:
		if of, is := ev.Of.(*Reading); is {
			if v, ok := r.owner.Job(of.Job); ok {
				r.readAhead(v)
			}
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
			r.restoreAll(now, v)
		}
		for id := range r.jobs {
			if _, known := r.owner.Job(id); !known {
				delete(r.jobs, id)
			}
		}
	}
	r.check()
	effects := r.effects
	r.effects = nil
	return effects
}

// Next is when to call Step again, whatever happens. False: no job is there that time could change.
func (r *Room) Next() (at time.Time, ok bool) { return r.looked.Add(lookEvery), r.waits }

// cancel ends what is of a closed epoch, or of a process that has ended.
func (r *Room) cancel(v room.JobView) {
	j := r.job(v.Job.ID)
	for rank, p := range j.ranks {
		is, here := v.Rank(rank)
		if here && is.Alive && is.Incarnation == p.incarnation && p.epoch > v.Fenced {
			continue
		}
		if p.running != nil {
			r.effects = append(r.effects, act.Cancel{Of: p.running})
		}
		delete(j.ranks, rank)
	}
}

// restoreAll begins what the plan needs and what has not begun. What failed is tried again: its sources may be back, and a source that is dead
// brings a new plan.
func (r *Room) restoreAll(now time.Time, v room.JobView) {
	plan := v.Job.Plan
	if v.Job.Phase != replica.Planned || plan == nil || plan.Epoch != v.Job.Epoch {
		return
	}
	j := r.job(v.Job.ID)
	for _, is := range v.Ranks {
		p := j.ranks[is.Rank]
		same := p != nil && p.epoch == plan.Epoch && p.incarnation == is.Incarnation
		if !is.Waits || same && (p.running != nil || p.done || now.Before(p.retryAt)) {
			continue
		}
		if !same {
			p = &progress{epoch: plan.Epoch, incarnation: is.Incarnation, began: now}
			j.ranks[is.Rank] = p
		}
		p.running = &Restore{Job: v.Job, Plan: plan, Rank: is}
		r.effects = append(r.effects, p.running)
	}
}

// ended follows the end of a restore.
func (r *Room) ended(now time.Time, ev Ended) {
	id, epoch, rank := ev.Of.Job.ID, ev.Of.Plan.Epoch, ev.Of.Rank.Rank
	p := r.of(id, epoch, rank)
	if _, known := r.owner.Job(id); !known || p == nil || p.running != ev.Of {
		return // it was cancelled
	}
	p.running = nil
	if ev.Err == nil {
		p.done, p.is = true, Done{ev.Slot, ev.Ring, ev.Tier, now.Sub(p.began)}
		r.effects = append(r.effects, act.Wake{Job: id, Depth: act.Reconcile})
		return
	}
	p.retryAt = now.Add(retry)
	if errors.Is(ev.Err, context.Canceled) || errors.Is(ev.Err, holding.ErrBrought) {
		return
	}
	p.tries++
	r.log.Retried("restore", fmt.Sprintf("rank %d, epoch %d", rank, epoch), ev.Err.Error())
	r.effects = append(r.effects, Failed{id, rank, ev.Err})
	if p.tries == room.TriesSaid {
		p.failing = replica.Cut(ev.Err.Error(), maxFailing)
	}
	if said, due := ev.Missed.Unreached(id, epoch, rank, p.tries, ev.Err); due {
		r.effects = append(r.effects, act.Send{Msg: said})
	}
}
