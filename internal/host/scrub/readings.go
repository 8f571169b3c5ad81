package scrub

import (
	"cmp"
	"time"

	"github.com/replicad/replicad/internal/shm"
)

const (
	readAfter = 5 * time.Second  // a copy must lie here for so long: what the next step replaces is not worth the reading
	readAgain = 10 * time.Minute // and so long from the end of one reading to the next
)

// lain is a copy for as long as it lies in its place: one use of a place of an arena, named by its key.
type lain struct {
	arena string
	place shm.Place
	count uint64
}

// readable is a copy that may be read again.
type readable struct {
	lain
	chunks int
	first  bool // a recovery would need it now: it goes before others
}

// readings is how far the copies here were read again. It is given what lies here and the time, and says what to read next.
type readings map[lain]progress

type progress struct {
	since time.Time // it was first seen
	next  int       // chunk to read; those before it were read in this reading
	ended time.Time // the last whole reading; zero: there was none
}

// next is the copy to read from, and its chunk. Copies that are gone are forgotten. A reading that has begun is ended before another one of its
// urgency begins; of the others the copy comes first that was not read for longest.
func (s readings) next(copies []readable, now time.Time) (at int, chunk int, ok bool) {
	here := make(map[lain]bool, len(copies))
	for i, c := range copies {
		here[c.lain] = true
		have, seen := s[c.lain]
		if !seen {
			have = progress{since: now}
			s[c.lain] = have
		}
		if now.Sub(have.since) < readAfter || !have.ended.IsZero() && now.Sub(have.ended) < readAgain {
			continue
		}
		if !ok || s.before(c, copies[at]) {
			at, chunk, ok = i, have.next, true
		}
	}
	for l := range s {
		if !here[l] {
			delete(s, l)
		}
	}
	return at, chunk, ok
}

func (s readings) before(a, b readable) bool {
	x, y := s[a.lain], s[b.lain]
	return cmp.Or(
		order(a.first, b.first),
		order(x.next > 0, y.next > 0),
		x.ended.Compare(y.ended),
		x.since.Compare(y.since),
		cmp.Compare(a.arena, b.arena), cmp.Compare(a.place.Kind, b.place.Kind), cmp.Compare(a.place.Index, b.place.Index)) < 0
}

// order puts what is before what is not.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// read notes that a copy was read up to a chunk.
func (s readings) read(c readable, to int, now time.Time) {
	have, here := s[c.lain]
	if !here {
		return // gone meanwhile
	}
	if have.next = to; to >= c.chunks {
		have.next, have.ended = 0, now
	}
	s[c.lain] = have
}
