package writer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

const (
	// stuck is how long a write must have moved nothing for people to be told so: the disk takes what is synced at once in half of that.
	stuck = time.Second
	// lateEvery is how often the leader hears of a write that moves and holds up a commit.
	lateEvery = time.Second
	// returns is how soon a write that the leader has ended returns, unless its file system hangs.
	returns = time.Second
	// silent is for how long a store may take nothing of a write, and not return: people hear of it within half a minute.
	silent = 30 * time.Second
	// lookEvery is how often the room looks at writes that hold a slot.
	lookEvery = 200 * time.Millisecond
)

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	Self() replica.Holder
	Cluster() replica.ClusterID
	Jobs() []room.JobView
	// Job is false where the node does not know it any more.
	Job(replica.JobID) (room.JobView, bool)
	// Open holds a copy, to be read as a part of the job.
	Open(*replica.Job, holding.Copy) (*holding.Reader, error)
	// Lacking is what a generation of the job lacks, by the word of the ranks here.
	Lacking(replica.JobID, replica.Generation) []replica.Lacking
	// Undurable says why this node can write nothing that lasts; nil: it can.
	Undurable() error
	// Hangs says which call to the store was given up and has not returned; nil: none.
	Hangs() error
	// Store names the store, for people: what ails it is to be seen to.
	Store() string
}

type (
	// Ailing says that a request to the store does not succeed, of a write or of its commit, and what is done about it.
	Ailing struct {
		tier.Attempt
		What string
	}
	// Ordered is the leader's order to write a commit marker.
	Ordered struct{ control.MarkerOrder }
	// Marked is what became of a Mark: the generation exists, or why it does not.
	Marked struct {
		Mark   Mark
		Failed string
		Fenced bool
	}
	// Turned says that this node may give the store its part of a durable write.
	Turned struct{ control.WriteTurn }
)

func (Ailing) IsEvent()  {}
func (Ordered) IsEvent() {}
func (Marked) IsEvent()  {}
func (Turned) IsEvent()  {}

type (
	// Mark has a commit marker written, beside the owner: the write that makes the generation exist.
	Mark struct {
		tier.Attempt
		Said    tier.Said
		Keep    string // why the generation is to be pinned; empty: it is not
		Roots   map[replica.Part]replica.Digest
		Objects []replica.Stored
	}
	// Discard has removed, beside the owner, what this node has written of a generation and no marker names.
	Discard struct {
		tier.Attempt
		Objects []string
	}
)

func (*Write) IsEffect()  {}
func (Mark) IsEffect()    {}
func (Discard) IsEffect() {}

// Room is a node's durable writes. It belongs to one goroutine.
type Room struct {
	owner   Owner
	jobs    map[replica.JobID]*job
	running map[*Write]bool // that have not returned
	ailedAt time.Time       // when the leader was last told of what ails the store
	looked  time.Time
	effects []act.Effect // since the last Step
}

// job is the durable write of a job, as far as this node does it. It lasts for as long as the node knows the job.
type job struct {
	writes   map[string]*Write              // by object, that were begun, those too that have ended
	turn     uint64                         // the newest durable write that it was this node's turn to write
	said     map[string]control.ShardReport // how they ended
	discards discards
}

// New returns a room that has written nothing.
func New(owner Owner) *Room {
	return &Room{owner: owner, jobs: map[replica.JobID]*job{}, running: map[*Write]bool{}}
}

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case act.Changed:
		if v, ok := r.owner.Job(ev.Job); ok {
			r.follow(now, v)
		}
	case Ailing:
		r.ails(now, ev)
	case act.Ended: // of a Write that was given up too
		r.over(now, ev)
	case Turned:
		r.turn(now, ev)
	case Ordered:
		r.mark(ev.MarkerOrder)
	case Marked:
		r.answer(ev.Mark, ev.Failed, ev.Fenced)
	case act.Linked:
		for _, j := range r.jobs {
			for _, s := range j.said {
				r.report(s)
			}
		}
	}
}

// over follows the end of a Write or a Discard.
func (r *Room) over(now time.Time, ev act.Ended) {
	switch of := ev.Of.(type) {
	case *Write:
		delete(r.running, of)
		r.ended(of, ev.Err)
		if v, ok := r.owner.Job(of.Job); ok {
			r.discard(v, r.job(of.Job))
		}
	case Discard:
		if v, ok := r.owner.Job(of.Job); ok {
			delete(r.job(of.Job).discards, of.Number)
			r.follow(now, v)
		}
	}
}

// Step returns what is to be done now.
func (r *Room) Step(now time.Time) []act.Effect {
	if now.Sub(r.looked) >= lookEvery {
		r.looked = now
		r.look(now)
	}
	r.check()
	effects := r.effects
	r.effects = nil
	return effects
}

// Next is when to call Step again, whatever happens; false: after the next event, since nothing is written here.
func (r *Room) Next() (at time.Time, ok bool) {
	for _, j := range r.jobs {
		if len(j.writes) > 0 {
			return r.looked.Add(lookEvery), true
		}
	}
	return time.Time{}, false
}

// job is the account of a job.
func (r *Room) job(id replica.JobID) *job {
	j := r.jobs[id]
	if j == nil {
		j = &job{writes: map[string]*Write{}, said: map[string]control.ShardReport{}, discards: discards{}}
		r.jobs[id] = j
	}
	return j
}

// current is the account of the job whose present durable write a Write is of; nil: that one is past.
func (r *Room) current(w *Write) *job {
	v, ok := r.owner.Job(w.Job)
	if !ok || v.Job.Writer == nil || v.Job.Writer.Number != w.Number {
		return nil
	}
	return r.job(w.Job)
}

// follow begins the shards that the durable write under way wants from this node, and ends what it does not want.
func (r *Room) follow(now time.Time, v room.JobView) {
	j, is := r.job(v.Job.ID), v.Job.Writer
	if is == nil {
		clear(j.said)
		r.leave(now, v, j, 0)
		r.discard(v, j)
		return
	}
	r.leave(now, v, j, is.Number)
	r.discard(v, j)
	// The view between two writes may have passed this node by: what it did for the earlier one says nothing of this one.
	maps.DeleteFunc(j.said, func(_ string, s control.ShardReport) bool { return s.Number != is.Number })
	for _, o := range r.objects(is) {
		if j.writes[o.name] == nil {
			r.begin(now, v, j, o)
		}
	}
}

// object is what this node writes as one.
type object struct {
	name   string
	shards []replica.Shard
}

// objects are those that a durable write wants from this node: each group's part is one, and its ranks' private parts are one together.
func (r *Room) objects(w *replica.DurableWrite) (list []object) {
	node := r.owner.Self().Node
	for _, s := range w.Shards {
		if s.Node != node {
			continue
		}
		name := tier.ObjectOf(node, s.Part)
		i := slices.IndexFunc(list, func(o object) bool { return o.name == name })
		if i < 0 {
			i, list = len(list), append(list, object{name: name})
		}
		list[i].shards = append(list[i].shards, s)
	}
	return list
}

// begin begins one object.
func (r *Room) begin(now time.Time, v room.JobView, j *job, o object) {
	w := &Write{Attempt: tier.AttemptOf(v.Job, r.owner.Cluster()), Object: o.name, store: r.owner.Store(), seen: mark{at: now}, told: mark{at: now}, stop: make(chan struct{}), turn: make(chan struct{})}
	for _, s := range o.shards {
		w.Parts = append(w.Parts, s.Part)
	}
	j.writes[o.name] = w
	err := r.owner.Undurable()
	if err == nil {
		err = r.complaint(now)
	}
	for _, s := range o.shards {
		if err == nil {
			err = w.hold(now, r.owner, v, s)
		}
	}
	if err != nil {
		w.end(now)
		r.failed(j, w, func(s *control.ShardReport) { s.Failed = err.Error() })
		return
	}
	w.note = w.noteOf(r.owner, v)
	w.begun, r.running[w] = true, true
	if !v.Job.Writer.Turns || j.turn == w.Number {
		w.turns(now)
	}
	r.effects = append(r.effects, w)
}

// turn has this node's objects of a durable write be given to the store.
func (r *Room) turn(now time.Time, ev Turned) {
	if _, ok := r.owner.Job(ev.Job); !ok {
		return
	}
	j := r.job(ev.Job)
	j.turn = ev.Number
	for _, w := range j.writes {
		if w.Number == ev.Number {
			w.turns(now)
		}
	}
}

// Text is an error as one line: people hear what failed, what failed after it, and what is done, together.
func Text(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// skip ends a write that has not returned. The shard has failed. crowded: it held the slot that a commit lacked.
func (r *Room) skip(now time.Time, j *job, w *Write, why string, crowded bool) {
	held := w.holds()
	w.end(now)
	w.given = true
	r.failed(j, w, func(s *control.ShardReport) { s.Failed, s.Crowded = why, crowded })
	if held {
		r.effects = append(r.effects, act.Wake{Job: w.Job, Depth: act.Retain})
	}
}

func (r *Room) failed(j *job, w *Write, how func(*control.ShardReport)) {
	j.said[w.Object] = w.report(how)
	r.report(j.said[w.Object])
}

func (r *Room) report(s control.ShardReport) { r.effects = append(r.effects, act.Send{Msg: s}) }

// ended takes the end of a write. One that was given up has been reported.
func (r *Room) ended(w *Write, err error) {
	j := r.current(w)
	if j == nil || j.writes[w.Object] != w || w.given {
		return
	}
	if err != nil {
		r.failed(j, w, func(s *control.ShardReport) { s.Failed, s.Fenced = Text(err), errors.Is(err, tier.ErrFenced) })
		return
	}
	j.said[w.Object] = w.report(func(s *control.ShardReport) { s.Info = w.Info })
	r.report(j.said[w.Object])
}

// look lets go of what was read whole, and judges the writes that hold a slot.
func (r *Room) look(now time.Time) {
	for id, j := range r.jobs {
		v, known := r.owner.Job(id)
		if !known {
			j.endBut(now, 0)
			delete(r.jobs, id)
			continue
		}
		for _, w := range j.writes {
			if w.look(now); r.running[w] && !w.over && now.Sub(w.seen.at) >= silent {
				r.skip(now, j, w, fmt.Sprintf("no byte of it was taken for %v: see what ails %s", silent, w.store), false)
			}
			r.grows(now, w)
			r.judge(now, v, j, w)
		}
	}
}

// grows tells the leader now and then how far a write is that moves: much more often than it gives one up.
func (r *Room) grows(now time.Time, w *Write) {
	if r.running[w] && !w.over && w.seen.n != w.told.n && now.Sub(w.told.at) >= growsEvery {
		w.told = mark{w.seen.n, now}
		r.report(w.report(func(s *control.ShardReport) { s.Written = uint64(w.seen.n) }))
	}
}

// ails tells the leader of a store that does not do what it is asked, now and then while that lasts.
func (r *Room) ails(now time.Time, ev Ailing) {
	v, ok := r.owner.Job(ev.Job)
	if !ok || v.Job.Writer == nil || v.Job.Writer.Number != ev.Number || now.Sub(r.ailedAt) < growsEvery {
		return
	}
	node := r.owner.Self().Node
	i := slices.IndexFunc(v.Job.Writer.Shards, func(s replica.Shard) bool { return s.Node == node })
	if i < 0 {
		return
	}
	r.ailedAt = now
	r.report(control.ShardReport{Job: ev.Job, Generation: ev.Generation, Number: ev.Number, Part: v.Job.Writer.Shards[i].Part, Written: 1, Ails: ev.What})
}

// endBut ends and forgets all writes but those of one number: the leader has given theirs up, or they are through.
func (j *job) endBut(now time.Time, number uint64) {
	for name, w := range j.writes {
		if w.Number != number {
			w.end(now)
			delete(j.writes, name)
		}
	}
}

// complaint says why no write is begun: one that was ended has not returned, or a call of it that its store has given up. Another would hang as well,
// and each keep a slot from a commit. nil: nothing speaks against one.
func (r *Room) complaint(now time.Time) error {
	if err := r.owner.Hangs(); err != nil {
		return fmt.Errorf("see what ails %s: %w", r.owner.Store(), err)
	}
	var first *Write
	for w := range r.running {
		hangs := w.over && (w.given || now.Sub(w.endedAt) >= returns)
		if hangs && (first == nil || w.endedAt.Before(first.endedAt)) {
			first = w
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("the write of generation %v was given up %v ago and has not returned: see what ails %s", first.Generation, now.Sub(first.endedAt).Round(time.Second), first.store)
}
