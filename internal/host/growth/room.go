package growth

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	Job(replica.JobID) (room.JobView, bool)
	// Spec is what arenas for a rank's parts have in common here.
	Spec(*replica.Job, replica.Rank) shm.Spec
	// Lacks is why an arena can't be had here; nil: it can.
	Lacks(shm.Spec) error
}

type (
	// Asked is a rank's call. Ask is random: answers name it.
	Asked struct {
		Job         replica.JobID
		Rank        replica.Rank
		Incarnation replica.Incarnation
		Peer        session.Peer
		Request     uint32
		Ask         uint64
		Epoch       replica.Epoch
		Step        replica.Step
		Geometry    replica.Geometry
		Recipe      []byte
	}
	// Refused is the leader's answer.
	Refused struct {
		Job  replica.JobID
		Rank replica.Rank
		Ask  uint64
		Why  string
	}
)

func (Asked) IsEvent()   {}
func (Refused) IsEvent() {}

type (
	// HandOut makes an arena that of the rank, in place of the one that it has, and answers the rank with it. A nil Arena: it has the grown one by the
	// node's account, and has not got the answer.
	HandOut struct {
		Job     replica.JobID
		Rank    replica.Rank
		Peer    session.Peer
		Request uint32
		Arena   *shm.Arena
	}
	// Refuse answers the rank that nothing has changed.
	Refuse struct {
		Peer    session.Peer
		Request uint32
		Code    int32
		Text    string
	}
	// Waits says that the rank stands still on purpose from now on, or no longer.
	Waits struct {
		Job  replica.JobID
		Rank replica.Rank
		Is   bool
	}
)

func (HandOut) IsEffect() {}
func (Refuse) IsEffect()  {}
func (Waits) IsEffect()   {}

// Making is an arena on its way. Its rank may have given it up meanwhile.
type Making struct{ of *ask }

// place is a rank of a job.
type place struct {
	job  replica.JobID
	rank replica.Rank
}

// ask is one rank's, until it is answered.
type ask struct {
	Asked
	making  *Making
	arena   *shm.Arena // made
	refusal string     // why this node can't
	what    string     // it grows by
	differs string     // by name
}

// Room is the asks of a node's ranks. It belongs to one goroutine.
type Room struct {
	owner   Owner
	asks    map[place]*ask
	effects []act.Effect
}

// New returns a room in which nobody asks.
func New(owner Owner) *Room { return &Room{owner: owner, asks: map[place]*ask{}} }

// Learn takes an event. Step is to follow.
func (r *Room) Learn(_ time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case Asked:
		r.asked(ev)
	case act.Changed:
		r.changed(ev.Job)
	case act.Made:
		r.made(ev)
	case Refused:
		if a := r.asks[place{ev.Job, ev.Rank}]; a != nil && a.Ask == ev.Ask && !r.decided(a) {
			r.refuse(a, wire.CodeRefused, ev.Why)
		}
	case act.Gone:
		for _, a := range r.asks {
			if a.Peer == ev.Peer {
				a.Peer = nil
			}
		}
	}
}

// Step returns what is to be done now.
func (r *Room) Step(time.Time) []act.Effect {
	r.check()
	effects := r.effects
	r.effects = nil
	return effects
}

// Next is when to call Step again, whatever happens: nobody reports that a rank trains on.
func (r *Room) Next() (at time.Time, ok bool) { return at, false }

// Of is what a rank asks for, for the leader; nil: it does not ask.
func (r *Room) Of(job replica.JobID, rank replica.Rank) *replica.RankGrowth {
	a := r.asks[place{job, rank}]
	if a == nil {
		return nil
	}
	g := &replica.RankGrowth{Ask: a.Ask, Epoch: a.Epoch, Step: a.Asked.Step, Geometry: shm.GeometryDigest(a.Geometry, replica.ReplicatedPart), Recipe: shm.Hash(a.Recipe),
		Prepared: a.arena != nil, Refused: a.refusal, Bytes: total(a.Geometry), What: a.what, Differs: a.differs}
	if rank == 0 {
		g.RecipeBytes = a.Recipe
	}
	return g
}

// Asks tells whether any rank of a job here asks.
func (r *Room) Asks(job replica.JobID) bool {
	for p := range r.asks {
		if p.job == job {
			return true
		}
	}
	return false
}

// asked takes a rank's call. One that asks again for the same keeps its arena.
func (r *Room) asked(ev Asked) {
	at := place{ev.Job, ev.Rank}
	if old := r.asks[at]; old != nil {
		if old.same(ev) {
			old.Peer, old.Request = ev.Peer, ev.Request
			r.advance(old)
			return
		}
		r.end(old)
	}
	a := &ask{Asked: ev}
	r.asks[at] = a
	if v, ok := r.owner.Job(ev.Job); ok {
		if is, here := v.Rank(ev.Rank); here {
			a.what, a.differs = describe(is.Arena.Geometry(), ev.Geometry)
		}
	}
	r.effects = append(r.effects, Waits{ev.Job, ev.Rank, true})
	r.advance(a)
	r.effects = append(r.effects, act.Wake{Job: ev.Job, Depth: act.Report})
}

func (a *ask) same(ev Asked) bool {
	return a.Incarnation == ev.Incarnation && a.Epoch == ev.Epoch && a.Asked.Step == ev.Step && bytes.Equal(a.Recipe, ev.Recipe) && sameGeometry(a.Geometry, ev.Geometry)
}

func sameGeometry(a, b replica.Geometry) bool {
	for _, k := range []replica.PartKind{replica.ReplicatedPart, replica.PrivatePart} {
		if shm.GeometryDigest(a, k) != shm.GeometryDigest(b, k) {
			return false
		}
	}
	return true
}

// changed looks at the asks of a job again, and for ranks that a decided growth can't take along.
func (r *Room) changed(job replica.JobID) {
	var list []*ask
	for p, a := range r.asks {
		if p.job == job {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b *ask) int { return cmp.Compare(a.Rank, b.Rank) })
	for _, a := range list {
		r.advance(a)
	}
	v, known := r.owner.Job(job)
	if !known || v.Job.Growth == nil || v.Job.Phase != replica.Opening {
		return
	}
	for _, is := range v.Ranks {
		if is.Waits && is.Arena.Grown() != v.Job.Epoch {
			r.blame(v.Job, is.Rank, is.Incarnation, fmt.Sprintf("the growth at step %d was decided, and the rank went on without waiting for its arena", v.Job.Growth.Step))
		}
	}
}

// decided tells whether the job's state has the growth that a rank asks for.
func (r *Room) decided(a *ask) bool {
	v, known := r.owner.Job(a.Job)
	return known && v.Job.Growth != nil && v.Job.Epoch == a.Epoch+1 && v.Job.Growth.Step == a.Asked.Step
}

// advance takes an ask as far as the job's state allows now.
func (r *Room) advance(a *ask) {
	v, known := r.owner.Job(a.Job)
	is, here := v.Rank(a.Rank)
	switch {
	case !known, !here, !is.Alive, is.Incarnation != a.Incarnation:
		r.end(a)
	case r.decided(a) && v.Job.Phase == replica.Opening:
		r.handOut(a, v.Job, is)
	case v.Job.Phase != replica.Open || v.Job.Epoch != a.Epoch:
		r.refuse(a, wire.CodeFenced, fmt.Sprintf("epoch %d was closed before the growth was decided: rp_join", a.Epoch))
	case is.Waits || is.Arena.Step() != replica.PackWord(a.Epoch, a.Asked.Step, replica.Idle):
		r.end(a) // it has not waited for the answer, and goes on
	default:
		r.prepare(a, v.Job, is)
	}
}

// prepare has the arena made.
func (r *Room) prepare(a *ask, job *replica.Job, is room.Rank) {
	if a.making != nil || a.arena != nil || a.refusal != "" {
		return
	}
	if limit := room.PrivateCap(job); a.Geometry.PrivateBytes > limit {
		a.refusal = fmt.Sprintf("its private regions would have %d bytes, the cap is %d: make them replicated if they are equal across the group, or give `replicad run --private-cap-mb` more when the job is created", a.Geometry.PrivateBytes, limit)
		return
	}
	spec := r.spec(a, job)
	if err := r.owner.Lacks(spec); err != nil {
		a.refusal = r.tooLarge(a, is, spec, err)
		return
	}
	r.make(a, spec)
}

func (r *Room) spec(a *ask, job *replica.Job) shm.Spec {
	spec := r.owner.Spec(job, a.Rank)
	spec.Geometry = a.Geometry
	return spec
}

func (r *Room) make(a *ask, spec shm.Spec) {
	a.making = &Making{a}
	r.effects = append(r.effects, act.Make{Of: a.making, Spec: spec})
}

// tooLarge is the sum that a node can't pay: the grown arena lies beside the present one until it has taken its place.
func (r *Room) tooLarge(a *ask, is room.Rank, spec shm.Spec, why error) string {
	need, _ := spec.Bytes()
	text := fmt.Sprintf("growing by %s takes an arena of %s (%d slots of %s, and what is kept once or is the rank's own) beside the present one of %s until the job has grown",
		a.what, size(need), spec.Slots, size(a.Geometry.ReplicatedBytes), size(is.Arena.Header().ArenaBytes))
	if short := new(shm.TooLittleMemory); errors.As(why, &short) {
		text += fmt.Sprintf(", and %s of this node's memory are free", size(short.Have))
	}
	return fmt.Sprintf("%s: %v", text, why)
}

// made takes an arena that is ready. Its rank may have given it up, or be in another growth.
func (r *Room) made(ev act.Made) {
	mk, mine := ev.Of.(*Making)
	if !mine {
		return
	}
	a := mk.of
	if a.making != mk || r.asks[place{a.Job, a.Rank}] != a {
		if ev.Err == nil {
			r.effects = append(r.effects, act.Unmap{Arena: ev.Arena})
		}
		return
	}
	a.making = nil
	if ev.Err != nil {
		a.refusal = fmt.Sprintf("growing by %s: %v", a.what, ev.Err)
	} else {
		a.arena = ev.Arena
	}
	r.effects = append(r.effects, act.Wake{Job: a.Job, Depth: act.Report})
	r.advance(a)
}

// handOut gives the rank its arena, once that is there and the rank is.
func (r *Room) handOut(a *ask, job *replica.Job, is room.Rank) {
	other := shm.GeometryDigest(a.Geometry, replica.ReplicatedPart) != job.GroupGeometry[room.Group(job, a.Rank)]
	switch grown := is.Arena.Grown() == job.Epoch; {
	case other || grown && !is.Arena.Fits(a.Geometry):
		r.fails(a, "it asks for other regions than those that the growth was decided for")
	case a.Peer == nil, a.making != nil:
	case grown:
		r.answered(a, nil)
	case a.arena != nil:
		arena := a.arena
		a.arena = nil
		r.answered(a, arena)
	case a.refusal != "":
		r.fails(a, a.refusal)
	default: // the daemon that had it has ended
		r.make(a, r.spec(a, job))
	}
}

// fails takes a rank out of a growth that is decided: the fault takes it back.
func (r *Room) fails(a *ask, why string) {
	if v, known := r.owner.Job(a.Job); known {
		r.blame(v.Job, a.Rank, a.Incarnation, fmt.Sprintf("growth at step %d: %s", a.Asked.Step, why))
	}
	r.refuse(a, wire.CodeFenced, why)
}

// blame reports a rank that can't take part in a growth which is decided.
func (r *Room) blame(job *replica.Job, rank replica.Rank, of replica.Incarnation, why string) {
	r.effects = append(r.effects, act.Send{Msg: control.Evidence{Job: job.ID, Fault: replica.Fault{Epoch: job.Epoch, Kind: replica.Exception, Rank: rank, Incarnation: of, Detail: why}}})
}

func (r *Room) answered(a *ask, arena *shm.Arena) {
	r.effects = append(r.effects, HandOut{a.Job, a.Rank, a.Peer, a.Request, arena})
	r.end(a)
}

func (r *Room) refuse(a *ask, code int32, text string) {
	if a.Peer != nil {
		r.effects = append(r.effects, Refuse{a.Peer, a.Request, code, text})
	}
	r.end(a)
}

// end forgets an ask, and what was made for it.
func (r *Room) end(a *ask) {
	delete(r.asks, place{a.Job, a.Rank})
	if a.arena != nil {
		r.effects = append(r.effects, act.Unmap{Arena: a.arena})
	}
	r.effects = append(r.effects, Waits{a.Job, a.Rank, false}, act.Wake{Job: a.Job, Depth: act.Report})
}

// Close returns the arenas that were not handed out.
func (r *Room) Close() (arenas []*shm.Arena) {
	for _, a := range r.asks {
		if a.arena != nil {
			arenas = append(arenas, a.arena)
		}
	}
	return arenas
}

// describe says what a growth adds: as a number, and by name.
func describe(was, is replica.Geometry) (what, differs string) {
	had := map[string]bool{}
	for _, r := range was.Regions {
		had[r.Name] = true
	}
	more, gone := 0, len(was.Regions)
	for _, r := range is.Regions {
		if had[r.Name] {
			gone--
		} else {
			more++
		}
	}
	sign, by := "", total(is)-total(was)
	if total(is) < total(was) {
		sign, by = "-", total(was)-total(is)
	}
	switch {
	case more > 0 && gone > 0:
		what = fmt.Sprintf("%d regions more and %d fewer (%s%s a rank)", more, gone, sign, size(by))
	case more > 0:
		what = fmt.Sprintf("%d regions more (%s%s a rank)", more, sign, size(by))
	case gone > 0:
		what = fmt.Sprintf("%d regions fewer (%s%s a rank)", gone, sign, size(by))
	default:
		what = fmt.Sprintf("the same regions, laid out anew (%s%s a rank)", sign, size(by))
	}
	for _, k := range []replica.PartKind{replica.ReplicatedPart, replica.PrivatePart} {
		if text := replica.DiffGeometry(was, is, k); text != "" && differs == "" {
			differs = text
		}
	}
	return what, cmp.Or(differs, "no region")
}

// total is how many bytes of state a rank has.
func total(g replica.Geometry) uint64 { return g.ReplicatedBytes + g.PrivateBytes + g.FrozenBytes }

// size is bytes for people.
func size(bytes uint64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
