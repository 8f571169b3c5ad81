package transfer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// queue is the one queue of a fetch that all lanes pull chunks from.
//
// A chunk is pending, asked for by one or more lanes, taken (a lane holds verified bytes of it and puts them), or done.
// mu guards everything; it is never held across a wait or I/O.
type queue struct {
	mu      sync.Mutex
	chunks  []chunkState
	order   []int // in which chunks are handed out
	next    int   // so many of the first in it are not pending
	left    int   // not yet done
	changed chan struct{}
	done    chan struct{} // closed when left is 0
}

type chunkState struct {
	asked uint8 // lanes that have a request for it under way
	taken bool
	near  bool      // a receiver has it that serves it on
	since time.Time // of the newest request under way; of near, while there is none
}

// maxAsked is how many lanes race for one chunk. Those may all be of one node, whose link brings a little and never stalls: another joins once
// none of them has brought it within stallAfter.
const maxAsked = 2

// newQueue makes the queue of n chunks without those that have says are there. They are handed out in an order that shuffle draws, nil:
// as they lie.
func newQueue(n int, shuffle *rand.Rand, have func(int) bool) *queue {
	q := &queue{chunks: make([]chunkState, n), order: make([]int, n), left: n, changed: make(chan struct{}), done: make(chan struct{})}
	for i := range q.chunks {
		q.order[i] = i
		if have(i) {
			q.chunks[i].taken = true
			q.left--
		}
	}
	if shuffle != nil {
		shuffle.Shuffle(n, func(i, j int) { q.order[i], q.order[j] = q.order[j], q.order[i] })
	}
	if q.left == 0 {
		close(q.done)
	}
	return q
}

// take hands out a chunk: a pending one, else, to a lane with nothing to do, one that another lane was asked for too long
// ago. has, where it is not nil, tells which chunks the lane's source has; a source that has all leaves those that receivers serve on to
// these, for a while. With wait, it waits for one; ok is false when none is to be had (without wait), all are done, or ctx ended.
func (q *queue) take(ctx context.Context, wait bool, has bitmap) (i int, ok bool) {
	for {
		q.mu.Lock()
		if i, ok := q.pendingLocked(has); ok {
			q.mu.Unlock()
			return i, true
		}
		if !wait {
			q.mu.Unlock()
			return 0, false
		}
		i, after := q.overdueLocked(time.Now(), has)
		if i >= 0 && after <= 0 {
			c := &q.chunks[i]
			c.since = time.Now()
			c.asked++
			q.mu.Unlock()
			return i, true
		}
		changed := q.changed
		q.mu.Unlock()

		var timer *time.Timer
		var overdue <-chan time.Time
		if i >= 0 {
			timer = time.NewTimer(after)
			overdue = timer.C
		}
		select {
		case <-changed:
		case <-overdue:
		case <-q.done:
			ok = true
		case <-ctx.Done():
			ok = true
		}
		if timer != nil {
			timer.Stop()
		}
		if ok {
			return 0, false
		}
	}
}

func (q *queue) pendingLocked(has bitmap) (int, bool) {
	for k := q.next; k < len(q.chunks); k++ {
		i := q.order[k]
		c := &q.chunks[i]
		pending := !c.taken && c.asked == 0
		if !pending && k == q.next {
			q.next++
		}
		if !pending || has == nil && c.near || has != nil && !has.has(i) {
			continue
		}
		c.asked, c.since = 1, time.Now()
		return i, true
	}
	return 0, false
}

// overdueLocked finds the chunk that may be asked for again first, or that receivers serve on and nobody asks for, and
// how long until then; -1 if none.
func (q *queue) overdueLocked(now time.Time, has bitmap) (i int, after time.Duration) {
	i = -1
	for k := range q.chunks {
		c := &q.chunks[k]
		if c.taken || c.asked == 0 && !c.near || has != nil && !has.has(k) {
			continue
		}
		wait := hedgeAfter
		if c.asked >= maxAsked {
			wait = stallAfter
		}
		if d := c.since.Add(wait).Sub(now); i < 0 || d < after {
			i, after = k, d
		}
	}
	return i, after
}

// served says which chunks a receiver serves on, and tells whether any of them is pending.
func (q *queue) served(has bitmap) (any bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for i := range q.chunks {
		c := &q.chunks[i]
		if c.taken || c.asked > 0 || !has.has(i) {
			continue
		}
		any = true
		if !c.near {
			c.near, c.since = true, now
		}
	}
	return any
}

// claim tells whether the caller, who has verified bytes of chunk i, is the first and shall put them.
func (q *queue) claim(i int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := &q.chunks[i]
	c.asked--
	if c.taken {
		return false
	}
	c.taken = true
	return true
}

// finish says that a claimed chunk was put, and tells whether it was the last.
func (q *queue) finish() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.left--; q.left == 0 {
		close(q.done)
	}
	return q.left == 0
}

// giveBack returns a chunk that its lane will not bring.
func (q *queue) giveBack(i int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := &q.chunks[i]
	c.asked--
	if !c.taken && c.asked == 0 {
		c.near = false // whoever brings it first
		q.next = 0
	}
	close(q.changed)
	q.changed = make(chan struct{})
}

// bitmap has a bit for each chunk: bit i%8 of byte i/8.
type bitmap []byte

func newBitmap(chunks int) bitmap { return make(bitmap, (chunks+7)/8) }

func (b bitmap) has(i int) bool { return b[i/8]&(1<<(i%8)) != 0 }
func (b bitmap) set(i int)      { b[i/8] |= 1 << (i % 8) }
