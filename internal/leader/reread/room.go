package reread

import (
	"cmp"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	firstList = 30 * time.Second // after the leader began to lead: jobs come back first, and theirs is listed at once
	listEvery = time.Hour        // between two lists of the whole directory
	listAgain = 10 * time.Minute // after one that failed
	readAgain = 10 * time.Minute // after a read that the disk refused, twice as long after the next, up to the period
	backAgain = time.Hour        // at most, where nobody has read it since it was written
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
	// Wrote says that a durable generation was finished.
	Wrote struct{ Lying }
	// Leads says that a job of a name is led, which has written before.
	Leads struct {
		Name string
		Job  replica.JobID
	}
	// Reads says that a read goes on that was begun under an earlier leadership; Ended is its end.
	Reads struct{ Read }
	// Ended is the end of a Read. Refused: the disk did not let it be read, or somebody broke it off.
	Ended struct {
		Read
		Refused bool
	}
	// Busy says whether some job recovers or opens.
	Busy struct{ Is bool }
)

func (Listed) event() {}
func (Wrote) event()  {}
func (Leads) event()  {}
func (Reads) event()  {}
func (Ended) event()  {}
func (Busy) event()   {}

// Effect is something that the owner has to do.
type Effect interface{ effect() }

type (
	// List has what lies of a name listed, or of all names where it is empty; Listed is its end.
	List struct{ Name string }
	// Read has a generation read whole, from the disk and not from what the kernel remembers of it; Ended is its end. Back: nobody has read it since
	// it was written, and it is of a job that is led.
	Read struct {
		Lying
		Back bool
	}
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
	every time.Duration // 0: what was read is not read again

	lying   map[key]Lying
	refused map[key]refused
	leads   map[string]bool // names to be listed now
	unheard map[string]bool // names of which no list has come since they are led
	led     map[replica.JobID]bool
	listAt  time.Time // when all names are listed next
	listing bool
	listsAt time.Time // when the list under way, or the last one, was begun
	reading [2]bool   // by way
	freeAt  time.Time // until when a job that recovers is waited for; zero: none does
	at      time.Time // of the newest Step
}

// ways are what is read beside each other: 1 is what nobody has read since it was written.
var ways = [2]bool{false, true}

func way(back bool) int {
	if back {
		return 1
	}
	return 0
}

// New returns a room that has each generation read again after a period; 0: none is, and each is read back once.
func New(now time.Time, every time.Duration) *Room {
	return &Room{every: every, lying: map[key]Lying{}, refused: map[key]refused{}, leads: map[string]bool{}, unheard: map[string]bool{}, led: map[replica.JobID]bool{}, listAt: now.Add(firstList), at: now}
}

// Learn takes an event in.
func (r *Room) Learn(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case Listed:
		r.listed(now, ev)
	case Wrote:
		ev.Written, ev.Read = now, time.Time{}
		r.lying[ev.key()] = ev.Lying
		delete(r.refused, ev.key())
		r.led[ev.Job] = true
	case Leads:
		r.leads[ev.Name], r.unheard[ev.Name], r.led[ev.Job] = true, true, true
	case Reads:
		r.reading[way(ev.Back)] = true
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
	if delete(r.unheard, ev.Name); ev.Name == "" {
		clear(r.unheard)
	}
	if ev.Failed { // nothing waits for it any more, and all is listed again
		if at := now.Add(listAgain); ev.Name == "" || at.Before(r.listAt) {
			r.listAt = at
		}
		return
	}
	was := map[key]Lying{}
	for k, l := range r.lying {
		if ev.Name == "" || k.name == ev.Name {
			delete(r.lying, k)
			was[k] = l
		}
	}
	for _, l := range ev.All {
		if known := was[l.key()].Read; known.After(l.Read) && !known.Before(r.listsAt) { // it was read while the list was made
			l.Read = known
		}
		r.lying[l.key()] = l
	}
	for k, l := range was { // it may have been written while the list was made
		if _, there := r.lying[k]; !there && l.Written.After(r.listsAt) {
			r.lying[k] = l
		}
	}
	for k := range r.refused {
		if _, there := r.lying[k]; !there {
			delete(r.refused, k)
		}
	}
}

// ended takes the end of a read in. What was damaged was read, too: its mark says so, and it is read again after the period.
func (r *Room) ended(now time.Time, ev Ended) {
	r.reading[way(ev.Back)] = false
	k := ev.key()
	if ev.Refused {
		most := max(r.every, readAgain)
		if ev.Back {
			most = backAgain
		}
		wait := min(max(2*r.refused[k].wait, readAgain), most)
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
	if !r.listing {
		if name, due := r.toList(now); due {
			r.listing, r.listsAt = true, now
			out = append(out, List{name})
		}
	}
	for _, back := range ways {
		if r.reading[way(back)] || r.listing && !back || now.Before(r.freeAt) {
			continue
		}
		if next, due := r.first(now, back); due {
			r.reading[way(back)] = true
			out = append(out, Read{next, back})
		}
	}
	return out
}

// toList is the name that is to be listed now; empty: all of them.
func (r *Room) toList(now time.Time) (name string, due bool) {
	if !now.Before(r.listAt) {
		r.listAt = now.Add(listEvery)
		clear(r.leads)
		return "", true
	}
	for n := range r.leads {
		if !due || n < name {
			name, due = n, true
		}
	}
	delete(r.leads, name)
	return name, due
}

// first is the generation that is to be read first, of those of a way that are due.
func (r *Room) first(now time.Time, back bool) (first Lying, due bool) {
	for k, l := range r.lying {
		if at, ok := r.dueAt(k, l); r.back(l) != back || !ok || at.After(now) || due && !before(l, first) {
			continue
		}
		first, due = l, true
	}
	return first, due
}

// back tells whether a generation is one that a job which is led wrote and nobody has read. What others left unread keeps no job from its next write: it is
// read with what is read again.
func (r *Room) back(l Lying) bool { return l.Read.IsZero() && r.led[l.Job] }

// dueAt is when a generation is to be read; false: never.
func (r *Room) dueAt(k key, l Lying) (at time.Time, ok bool) {
	if !l.Read.IsZero() {
		at = l.Read.Add(r.every)
	}
	if until := r.refused[k].until; until.After(at) {
		at = until
	}
	return at, r.back(l) || r.every > 0
}

// Listing tells whether a name is led of which no list has come yet, nor has failed: what is unread of it is not known.
func (r *Room) Listing(name string) bool { return r.unheard[name] }

// Unread lists the generations of a job that were written behind the newest that was read, and wait for their reading, the oldest first: those are not among
// them that the disk did not let be read.
func (r *Room) Unread(job replica.JobID) (list []replica.Generation) {
	var read replica.Generation
	for k, l := range r.lying {
		if k.job == job && !l.Read.IsZero() && k.generation.Compare(read) > 0 {
			read = k.generation
		}
	}
	for k, l := range r.lying {
		if _, refused := r.refused[k]; k.job == job && l.Read.IsZero() && !refused && k.generation.Compare(read) > 0 {
			list = append(list, k.generation)
		}
	}
	slices.SortFunc(list, replica.Generation.Compare)
	return list
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
	sooner := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if !r.listing {
		sooner(r.listAt)
		if len(r.leads) > 0 {
			sooner(r.at)
		}
	}
	for k, l := range r.lying {
		back := r.back(l)
		due, ok := r.dueAt(k, l)
		if !ok || r.reading[way(back)] || r.listing && !back {
			continue
		}
		if due.Before(r.freeAt) {
			due = r.freeAt
		}
		sooner(due)
	}
	return at, ok
}
