package push

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const (
	pushAgain   = 150 * time.Millisecond // a mirror's answer may take so long before the candidate's part is sent again
	lookEvery   = 200 * time.Millisecond // between two looks at what is still to be sent
	scarceAgain = time.Second            // what a closed job is to resume at is sent again after it; twice as long each time
	scarceMost  = 32 * scarceAgain       // at most: a mirror's node may be dead, or without room, for as long as the job waits
)

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	Jobs() []room.JobView
	// Job is false where the node does not know it any more.
	Job(replica.JobID) (room.JobView, bool)
	// Moving tells how far the pushes of a generation's parts are.
	Moving(replica.JobID, replica.Generation) []mover.Moving
}

// Log takes what an operator should know of.
type Log interface {
	Pushed(part replica.Part, g replica.Generation, to replica.NodeName, took time.Duration, err error)
	PushFailed(part replica.Part, g replica.Generation, to replica.NodeName, err error)
}

type (
	// Sealed says that a rank here has sealed a part.
	Sealed struct {
		Job   replica.JobID
		Rank  replica.Rank
		Place shm.Place
		Info  shm.Info
	}
	// Named says that the leader has named a newer candidate: replicated parts that were sealed before were not sent yet.
	Named struct{ Job replica.JobID }
	// Asked is the leader's order to mirror what the closed job is to resume at.
	Asked struct{ control.MirrorOrder }
	// Handed is the mover's answer to a Send: the keys of the pushes that it dropped, which may be the Send's own.
	Handed struct {
		Send    *Send
		Dropped []transfer.Key
	}
	// Ended is the end of a push.
	Ended struct{ mover.Pushed }
)

func (Sealed) IsEvent() {}
func (Named) IsEvent()  {}
func (Asked) IsEvent()  {}
func (Handed) IsEvent() {}
func (Ended) IsEvent()  {}

type (
	// Send has the mover push a copy over a line. The owner tells what came of that by Handed.
	Send struct {
		Line    mover.Line
		Key     transfer.Key
		Copy    holding.Copy
		Class   manners.Class
		Awaited func(transfer.Key) bool // whether a commit or a recovery waits for a part of the line; for now
		was     state
		sent    bool // before
	}
	// Prune ends the pushes of a job that are not wanted any more.
	Prune struct {
		Job    replica.JobID
		Wanted func(mover.Line, transfer.Key) bool
	}
)

func (*Send) IsEffect() {}
func (Prune) IsEffect() {}

// Room is a node's pushes. It belongs to one goroutine.
type Room struct {
	owner   Owner
	log     Log
	cluster replica.ClusterID
	self    replica.NodeName
	jobs    map[replica.JobID]*job
	looked  time.Time
	waits   bool         // a job has not ended, as of that look
	effects []act.Effect // since the last Step
}

// job is what the room knows of the pushes of a job.
type job struct {
	scarce  scarce
	ranks   map[replica.Rank]*rank
	strains map[strainKey]strain
	said    time.Time // when the leader was told last how far pushes are
}

// scarce is what a closed job is to resume at and has too few copies of.
type scarce struct {
	order control.MirrorOrder
	at    time.Time // when what the mirrors did not take is sent again
	wait  time.Duration
}

// rank is what was sent of one process of a rank.
type rank struct {
	incarnation replica.Incarnation
	sent        map[key]state
}

// key is one part sent to one mirror; state is what is known of it there.
type key struct {
	node       replica.NodeName
	part       replica.Part
	generation replica.Generation
}

type state struct {
	sent time.Time // when it was given to the mover
	done bool
}

// New returns a room that has sent nothing.
func New(owner Owner, log Log, cluster replica.ClusterID, self replica.NodeName) *Room {
	return &Room{owner: owner, log: log, cluster: cluster, self: self, jobs: map[replica.JobID]*job{}}
}

// job is the account of a job. It lasts for as long as the node knows the job.
func (r *Room) job(id replica.JobID) *job {
	j := r.jobs[id]
	if j == nil {
		j = &job{ranks: map[replica.Rank]*rank{}, strains: map[strainKey]strain{}}
		r.jobs[id] = j
	}
	return j
}

// rank is the account of a rank's present process.
func (j *job) rank(is room.Rank) *rank {
	rk := j.ranks[is.Rank]
	if rk == nil || rk.incarnation != is.Incarnation {
		rk = &rank{is.Incarnation, map[key]state{}}
		j.ranks[is.Rank] = rk
	}
	return rk
}

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case Sealed:
		if v, ok := r.owner.Job(ev.Job); ok {
			if is, ok := v.Rank(ev.Rank); ok {
				r.send(now, v, is, ev.Place, ev.Info, false)
			}
		}
	case Named:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.pruneOld(v)
			r.sendAll(now, v, v.Candidate.Generation, false)
		}
	case act.Committed:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.pruneOld(v)
		}
	case Asked:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.job(ev.Job).scarce.order = ev.MirrorOrder
			r.sendScarce(now, v, true)
		}
	case Handed:
		r.handed(ev)
	case Ended:
		r.ended(now, ev.Pushed)
	case act.Changed:
		if v, ok := r.owner.Job(ev.Job); ok && ev.Was != nil {
			r.prune(v.Job, ev.Was)
		}
	}
}

// Step returns what is to be done now.
func (r *Room) Step(now time.Time) []act.Effect {
	if next, _ := r.Next(); !now.Before(next) {
		r.look(now, now.Sub(r.looked) >= lookEvery)
	}
	r.check()
	effects := r.effects
	r.effects = nil
	return effects
}

// Next is when to call Step again, whatever happens. False: no job is there that time could change.
func (r *Room) Next() (at time.Time, ok bool) {
	at, ok = r.looked.Add(lookEvery), r.waits
	for _, j := range r.jobs {
		if !j.scarce.at.IsZero() && j.scarce.at.Before(at) {
			at, ok = j.scarce.at, true
		}
	}
	return at, ok
}

// look sends what no event announces: again, what is on its way to no mirror though it should be.
func (r *Room) look(now time.Time, whole bool) {
	views := r.owner.Jobs()
	r.waits = room.Waits(views)
	for _, v := range views {
		r.sendScarce(now, v, false)
		if whole && v.Job.Phase == replica.Open {
			r.sendAgain(now, v)
			r.refill(now, v)
		}
		if whole {
			r.tellMoving(now, v)
		}
	}
	if !whole {
		return
	}
	r.looked = now
	for id, j := range r.jobs {
		at := slices.IndexFunc(views, func(v room.JobView) bool { return v.Job.ID == id })
		if at < 0 || views[at].Job.Phase == replica.Ended {
			delete(r.jobs, id)
			continue
		}
		for rank := range j.ranks {
			if _, here := views[at].Rank(rank); !here {
				delete(j.ranks, rank)
			}
		}
	}
}

// ended follows the end of a push.
func (r *Room) ended(now time.Time, ev mover.Pushed) {
	if ev.Err != nil && !errors.Is(ev.Err, context.Canceled) && !errors.Is(ev.Err, mover.ErrSuperseded) {
		r.log.PushFailed(ev.Key.Part, ev.Key.Generation, ev.Line.Node, ev.Err)
	}
	v, known := r.owner.Job(ev.Key.Job)
	is, here := v.Rank(ev.Key.Rank)
	if !known || !here {
		return
	}
	j := r.job(v.Job.ID)
	rk, k := j.rank(is), key{ev.Line.Node, ev.Key.Part, ev.Key.Generation}
	began := rk.sent[k].sent
	r.log.Pushed(k.part, k.generation, k.node, now.Sub(began), ev.Err)
	if said, due := j.strained(now, k, began, ev.Err); due {
		said.Job, said.Epoch = v.Job.ID, v.Job.Epoch
		r.effects = append(r.effects, act.Send{Msg: said})
	}
	switch {
	case ev.Err == nil:
		rk.sent[k] = state{began, true}
	case errors.Is(ev.Err, mover.ErrSuperseded):
		delete(rk.sent, k)
		if g, is := r.ResumesAt(v.Job); is && g == k.generation { // it gave way to another part, and is to follow that
			if soon := now.Add(pushAgain); soon.Before(j.scarce.at) {
				j.scarce.at = soon
			}
		}
	}
	for k := range rk.sent {
		if k.generation.Step < v.Job.Committed.Step && k.part.Kind != replica.FrozenPart {
			delete(rk.sent, k)
		}
	}
}

// handed takes back what the mover did not take.
func (r *Room) handed(ev Handed) {
	s := ev.Send
	j := r.jobs[s.Line.Job]
	if j == nil || j.ranks[s.Line.Rank] == nil {
		return
	}
	sent := j.ranks[s.Line.Rank].sent
	for _, k := range ev.Dropped {
		switch {
		case k != s.Key:
			delete(sent, key{s.Line.Node, k.Part, k.Generation}) // should it be the candidate later
		case s.sent:
			sent[key{s.Line.Node, k.Part, k.Generation}] = s.was // it is on its way since then
		}
	}
}

// prune ends what is on its way to nodes that are not to mirror it any more: they would refuse it for half a minute, in which the slot that it
// holds is lacking for what is to be committed.
func (r *Room) prune(job, was *replica.Job) {
	same := func(a, b [][]replica.NodeName) bool { return slices.EqualFunc(a, b, slices.Equal) }
	if same(was.Mirrors, job.Mirrors) && same(was.GroupMirrors, job.GroupMirrors) {
		return
	}
	wanted := func(l mover.Line, k transfer.Key) bool {
		return slices.Contains(room.MirrorsOfPart(job, k.Part, l.Rank), l.Node)
	}
	r.effects = append(r.effects, Prune{job.ID, wanted})
	for id, rk := range r.job(job.ID).ranks { // should such a node be a mirror again, it has freed what it had
		for k := range rk.sent {
			if !wanted(mover.Line{Node: k.node, Rank: id}, transfer.Key{Part: k.part}) {
				delete(rk.sent, k)
			}
		}
	}
}

// pruneOld ends pushes of replicated parts that nothing waits for any more. Each holds a slot, and of two there may be no other for the
// candidate.
func (r *Room) pruneOld(v room.JobView) {
	r.effects = append(r.effects, Prune{v.Job.ID, func(_ mover.Line, k transfer.Key) bool {
		return k.Part.Kind != replica.ReplicatedPart || lock.Needed(v.Job, v.Candidate.Generation, k.Generation)
	}})
}
