package transfer

import (
	"context"
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
	next    int   // chunks below were handed out at least once
	back    []int // given back by lanes that failed
	left    int   // not yet done
	changed chan struct{}
	done    chan struct{} // closed when left is 0
}

type chunkState struct {
	asked uint8 // lanes that have a request for it under way
	taken bool
	since time.Time // of the first request under way
}

// maxAsked bounds how many lanes race for one chunk.
const maxAsked = 2

// newQueue makes the queue of n chunks without those that have says are there.
func newQueue(n int, have func(int) bool) *queue {
	q := &queue{chunks: make([]chunkState, n), left: n, changed: make(chan struct{}), done: make(chan struct{})}
	for i := range q.chunks {
		if have(i) {
			q.chunks[i].taken = true
			q.left--
		}
	}
	if q.left == 0 {
		close(q.done)
	}
	return q
}

// take hands out a chunk: a pending one, else, to a lane with nothing to do, one that another lane was asked for too long
// ago. With wait, it waits for one; ok is false when none is to be had (without wait), all are done, or ctx ended.
func (q *queue) take(ctx context.Context, wait bool) (i int, ok bool) {
	for {
		q.mu.Lock()
		if i, ok := q.pendingLocked(); ok {
			q.mu.Unlock()
			return i, true
		}
		if !wait {
			q.mu.Unlock()
			return 0, false
		}
		i, after := q.overdueLocked(time.Now())
		if i >= 0 && after <= 0 {
			q.chunks[i].asked++
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

func (q *queue) pendingLocked() (int, bool) {
	for len(q.back) > 0 {
		i := q.back[len(q.back)-1]
		q.back = q.back[:len(q.back)-1]
		if c := &q.chunks[i]; !c.taken && c.asked == 0 {
			c.asked, c.since = 1, time.Now()
			return i, true
		}
	}
	for q.next < len(q.chunks) {
		i := q.next
		q.next++
		if c := &q.chunks[i]; !c.taken {
			c.asked, c.since = 1, time.Now()
			return i, true
		}
	}
	return 0, false
}

// overdueLocked finds the chunk that was asked for first and may be asked for again, and how long until then; -1 if none.
func (q *queue) overdueLocked(now time.Time) (i int, after time.Duration) {
	i = -1
	for k := range q.chunks {
		c := &q.chunks[k]
		if c.taken || c.asked == 0 || c.asked >= maxAsked {
			continue
		}
		if d := c.since.Add(hedgeAfter).Sub(now); i < 0 || d < after {
			i, after = k, d
		}
	}
	return i, after
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
		q.back = append(q.back, i)
	}
	close(q.changed)
	q.changed = make(chan struct{})
}
