package consensus

import "sync/atomic"

// news is how a voter has others look at it again.
type news struct {
	changes chan struct{} // capacity 1, for one reader
	moved   *atomic.Pointer[chan struct{}]
}

func newNews() news {
	n := news{make(chan struct{}, 1), new(atomic.Pointer[chan struct{}])}
	first := make(chan struct{})
	n.moved.Store(&first)
	return n
}

// applied has the reader of changes look: an entry has changed something. There are many a second, and none moves leadership.
func (n news) applied() { nudge(n.changes) }

// poke has all of them look: leadership may be another's.
func (n news) poke() {
	n.applied()
	next := make(chan struct{})
	close(*n.moved.Swap(&next))
}

// nudge has the reader of a channel of capacity 1 look, unless it is to already.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
