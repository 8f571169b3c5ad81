package scrub

import (
	"errors"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

const (
	slice = 4 << 20     // bytes, and at least one chunk, read at a time
	idle  = time.Second // until the next look, where there is nothing to read
)

// Owner is the node around a Room. Its methods do not wait.
type Owner interface {
	Self() replica.Holder
	// Holder is a node in its present life; its Node is empty where nobody knows it.
	Holder(replica.NodeName) replica.Holder
	Jobs() []room.JobView
	// Job is false where the node does not know it any more.
	Job(replica.JobID) (room.JobView, bool)
	// Coming tells whether a part is on its way into an arena already.
	Coming(a *holding.Arena, part replica.Part, g replica.Generation, root replica.Digest) bool
}

// Log takes what an operator should know of.
type Log interface {
	Failed(what, subject, why string)
}

type (
	// GivenUp says that a copy failed its digests, whoever read it, and that its place is free.
	GivenUp struct {
		Job  replica.JobID
		Copy holding.Copy
	}
)

type (
	// Read has chunks of a copy read again, beside the owner, and Rest kept before its end is said. The place is not held: a copy that is freed meanwhile
	// is none of the Room's any more.
	Read struct {
		Job      replica.JobID
		Copy     holding.Copy
		From, To int
		Rest     time.Duration
		of       readable
	}
	// GiveUp has a copy that failed a digest read once more, whole, and given up.
	GiveUp struct {
		Read *Read
		Why  error
	}
	// Fetch brings a part back into the arena that has lost it, beside the owner, from Source. Frozen: the frozen part that Source's root binds.
	Fetch struct {
		Job        replica.JobID
		Arena      *holding.Arena
		Rank       replica.Rank
		Generation replica.Generation
		Source     replica.Source
		Frozen     replica.Digest // zero: the part itself
		of         *loss
	}
)

func (GivenUp) IsEvent() {}

func (*Read) IsEffect()  {}
func (GiveUp) IsEffect() {}
func (*Fetch) IsEffect() {}

// Room reads again what lies on a node, and looks after what was lost. It belongs to one goroutine.
type Room struct {
	owner    Owner
	log      Log
	rate     uint64 // bytes a second; 0: nothing is read
	readings readings
	reading  bool
	look     time.Time // for something to read
	bad      []GiveUp  // found since the last Step
	losses   losses
	figures  control.ScrubStatus
}

// New returns a room that reads rate bytes a second.
func New(owner Owner, log Log, rate uint64) *Room {
	return &Room{owner: owner, log: log, rate: rate, readings: readings{}, losses: losses{}}
}

// Status counts what was read and found.
func (r *Room) Status() control.ScrubStatus { return r.figures }

// Learn takes an event. Step is to follow.
func (r *Room) Learn(now time.Time, ev act.Event) {
	switch ev := ev.(type) {
	case act.Ended:
		r.ended(now, ev)
	case GivenUp:
		r.losses.add(ev)
	case act.Linked:
		r.losses.linked()
	}
}

// ended follows the end of a Read or a Fetch.
func (r *Room) ended(now time.Time, ev act.Ended) {
	switch of := ev.Of.(type) {
	case *Read:
		of.Copy.Arena.Leave()
		r.reading, r.look = false, now
		r.readings.read(of.of, of.To, now)
		r.figures.Bytes += of.bytes()
		if errors.Is(ev.Err, shm.ErrCorrupt) {
			r.figures.Bad++
			r.bad = append(r.bad, GiveUp{of, ev.Err})
		}
	case *Fetch:
		r.losses.fetched(now, of, ev.Err)
	}
}

// Step returns what is to be done now.
func (r *Room) Step(now time.Time) (effects []act.Effect) {
	for _, b := range r.bad {
		effects = append(effects, b)
	}
	r.bad = nil
	for _, l := range r.losses.inOrder() {
		more, over := l.step(now, r.owner, r.log)
		effects = append(effects, more...)
		if over {
			delete(r.losses, l.key)
		}
	}
	if r.rate > 0 && !r.reading && !now.Before(r.look) {
		if read := r.next(now); read != nil {
			r.reading = true
			read.Copy.Arena.Enter()
			return append(effects, read)
		}
		r.look = now.Add(idle)
	}
	return effects
}

// Next is when to call Step again, whatever happens; false: after the next event.
func (r *Room) Next() (at time.Time, ok bool) {
	if r.rate > 0 && !r.reading {
		at, ok = r.look, true
	}
	for _, l := range r.losses {
		if !ok || l.next.Before(at) {
			at, ok = l.next, true
		}
	}
	return at, ok
}

// next is what to read now; nil: nothing. A recovery reads what it uses itself, and is not held up.
func (r *Room) next(now time.Time) *Read {
	var reads []*Read
	var list []readable
	for _, view := range r.owner.Jobs() {
		job := view.Job
		switch job.Phase {
		case replica.Closed, replica.Planned:
			return nil
		case replica.Opening, replica.Ended:
			continue
		case replica.Open:
		}
		for _, c := range view.Copies() {
			first := c.Place.Kind == shm.Frozen || c.Info.Generation == job.Committed
			list = append(list, readable{lain{c.Arena.Key(), c.Place, c.Info.Count}, len(c.Info.Digests), first})
			reads = append(reads, &Read{Job: job.ID, Copy: c})
		}
	}
	at, from, ok := r.readings.next(list, now)
	if !ok {
		return nil
	}
	read := reads[at]
	read.of, read.From = list[at], from
	read.To = min(from+max(1, slice/int(read.Copy.Arena.Header().ChunkBytes)), read.of.chunks)
	read.Rest = time.Duration(float64(read.bytes()) / float64(r.rate) * float64(time.Second))
	return read
}

// Verify reads the slice, and before the first one the digests themselves. Beside the owner.
func (q *Read) Verify() error {
	if q.From == 0 {
		if _, err := q.Copy.Arena.Sealed(q.Copy.Place); err != nil {
			return err
		}
	}
	return q.Copy.Arena.VerifyChunks(q.Copy.Place, q.Copy.Info, q.From, q.To)
}

func (q *Read) bytes() uint64 {
	chunk := uint64(q.Copy.Arena.Header().ChunkBytes)
	return min(uint64(q.To)*chunk, q.Copy.Info.Bytes) - uint64(q.From)*chunk
}
