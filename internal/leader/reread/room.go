package reread

import (
	"cmp"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	firstList = 30 * time.Second // after the leader began to lead: jobs come back first
	listEvery = time.Hour        // between two lists of the whole directory
	listAgain = 10 * time.Minute // after one that failed
	readAgain = 10 * time.Minute // after a read that the disk refused, twice as long after the next, up to the period
	settled   = 10 * time.Second // after a durable write: the writer's job goes first
	busyMost  = 10 * time.Minute // for which a job that recovers is waited for: one may wait for its launchers for days
)

// Lying is one generation in the durable directory.
type Lying struct {
	Name       string // of its job
	Job        replica.JobID
	Generation replica.Generation
	Written    time.Time // when its marker was; zero: unknown
	Read       time.Time // when its newest whole read ended; zero: nobody has read it
}

// key tells generations apart.
type key struct {
	name       string
	job        replica.JobID
	generation replica.Generation
}

func (l Lying) key() key { return key{l.Name, l.Job, l.Generation} }

// Event is something that a Room learns.
type Event interface{ event() }

type (
	// Listed is the end of a List: of one job's name, or of all where Name is empty.
	Listed struct {
		Name   string
		All    []Lying
		Failed bool // the directory could not be listed: what is known stands
	}
	// Wrote says that a durable generation of a name was finished.
	Wrote struct{ Name string }
	// Ended is the end of a Read. Refused: the disk did not let it be read, or somebody broke it off.
	Ended struct {
		Of      Lying
		Refused bool
	}
	// Busy says whether some job recovers or opens.
	Busy struct{ Is bool }
)

func (Listed) event() {}
func (Wrote) event()  {}
func (Ended) event()  {}
func (Busy) event()   {}

// Effect is something that the owner has to do.
type Effect interface{ effect() }

type (
	// List has what lies of a name listed, or of all names where it is empty; Listed is its end.
	List struct{ Name string }
	// Read has a generation read whole, from the disk and not from what the kernel remembers of it; Ended is its end.
	Read struct{ Lying }
)

func (List) effect() {}
func (Read) effect() {}

// refused is a generation that the disk did not let be read.
type refused struct {
	until time.Time
	wait  time.Duration
}

// Room says what is to be read again.
type Room struct {
	every time.Duration // 0: nothing is

	lying   map[key]Lying
	refused map[key]refused
	wrote   map[string]time.Time // names to be listed, and when
	listAt  time.Time            // when all names are listed next
	listing bool
	reading bool
	freeAt  time.Time // until when a job that recovers is waited for; zero: none does
	at      time.Time // of the newest Step
}

// New returns a room that has each generation read again after a period; 0: none is.
func New(now time.Time, every time.Duration) *Room {
	return &Room{every: every, lying: map[key]Lying{}, refused: map[key]refused{}, wrote: map[string]time.Time{}, listAt: now.Add(firstList), at: now}
}

// Learn takes an event in.
func (r *Room) Learn(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case Listed:
		r.listed(now, ev)
	case Wrote:
		if _, waits := r.wrote[ev.Name]; !waits {
			r.wrote[ev.Name] = now.Add(settled)
		}
	case Ended:
		r.ended(now, ev)
	case Busy:
		if !ev.Is {
			r.freeAt = time.Time{}
		} else if r.freeAt.IsZero() {
			r.freeAt = now.Add(busyMost)
		}
	}
}

func (r *Room) listed(now time.Time, ev Listed) {
	r.listing = false
	if ev.Failed {
		if ev.Name == "" {
			r.listAt = now.Add(listAgain)
		}
		return
	}
	for k := range r.lying {
		if ev.Name == "" || k.name == ev.Name {
			delete(r.lying, k)
		}
	}
	for _, l := range ev.All {
		r.lying[l.key()] = l
	}
	for k := range r.refused {
		if _, there := r.lying[k]; !there {
			delete(r.refused, k)
		}
	}
}

// ended takes the end of a read in. What was damaged was read, too: its mark says so, and it is read again after the period.
func (r *Room) ended(now time.Time, ev Ended) {
	r.reading = false
	k := ev.Of.key()
	if ev.Refused {
		wait := min(max(2*r.refused[k].wait, readAgain), max(r.every, readAgain))
		r.refused[k] = refused{now.Add(wait), wait}
		return
	}
	delete(r.refused, k)
	if l, there := r.lying[k]; there {
		l.Read = now
		r.lying[k] = l
	}
}

// Step returns what is to be done.
func (r *Room) Step(now time.Time) (out []Effect) {
	r.at = now
	if r.every == 0 {
		return nil
	}
	if !r.listing {
		if name, due := r.toList(now); due {
			r.listing = true
			out = append(out, List{name})
		}
	}
	if next, due := r.first(now); due && !r.reading && !r.listing && !now.Before(r.freeAt) {
		r.reading = true
		out = append(out, Read{next})
	}
	return out
}

// toList is the name that is to be listed now; empty: all of them.
func (r *Room) toList(now time.Time) (name string, due bool) {
	if !now.Before(r.listAt) {
		r.listAt = now.Add(listEvery)
		clear(r.wrote)
		return "", true
	}
	for n, at := range r.wrote {
		if !now.Before(at) && (!due || n < name) {
			name, due = n, true
		}
	}
	delete(r.wrote, name)
	return name, due
}

// first is the generation that is to be read first, of those that are due.
func (r *Room) first(now time.Time) (first Lying, due bool) {
	for k, l := range r.lying {
		if at := r.dueAt(k, l); at.After(now) || due && !before(l, first) {
			continue
		}
		first, due = l, true
	}
	return first, due
}

// dueAt is when a generation is to be read.
func (r *Room) dueAt(k key, l Lying) time.Time {
	var at time.Time
	if !l.Read.IsZero() {
		at = l.Read.Add(r.every)
	}
	if until := r.refused[k].until; until.After(at) {
		at = until
	}
	return at
}

// before tells whether a generation is to be read before another: those that nobody has read, the newest first, and then by when they were read.
func before(a, b Lying) bool {
	if a.Read.IsZero() != b.Read.IsZero() {
		return a.Read.IsZero()
	}
	c := a.Read.Compare(b.Read)
	if a.Read.IsZero() {
		c = b.Written.Compare(a.Written)
	}
	return cmp.Or(c, b.Generation.Compare(a.Generation), cmp.Compare(a.Name, b.Name), slices.Compare(a.Job[:], b.Job[:])) < 0
}

// Next is when Step has something to do, whatever happens.
func (r *Room) Next() (at time.Time, ok bool) {
	if r.every == 0 {
		return at, false
	}
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if !r.listing {
		sooner(r.listAt)
		for _, t := range r.wrote {
			sooner(t)
		}
	}
	if !r.reading && !r.listing {
		for k, l := range r.lying {
			due := r.dueAt(k, l)
			if due.Before(r.freeAt) {
				due = r.freeAt
			}
			sooner(due)
		}
	}
	return at, ok
}
