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

// poke has all of them look.
func (n news) poke() {
	select {
	case n.changes <- struct{}{}:
	default:
	}
	next := make(chan struct{})
	close(*n.moved.Swap(&next))
}
