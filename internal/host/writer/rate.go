package writer

import (
	"context"
	"sync"
	"time"
)

// Rate is how many bytes a second the writes of a node give to the store together, out of the spool: no slot is held meanwhile. Any goroutine may use it.
type Rate struct {
	bytes float64 // a second; 0: as many as the store takes

	mu   sync.Mutex // guards what follows
	next time.Time  // when the bytes that were given so far are paid for
}

// NewRate returns a rate of so many bytes a second; 0: no bound.
func NewRate(bytes uint64) *Rate { return &Rate{bytes: float64(bytes)} }

// wait waits until so many more bytes may go. What was not used is lost.
func (r *Rate) wait(ctx context.Context, bytes int) error {
	at := r.take(time.Now(), bytes)
	if at <= 0 {
		return nil
	}
	t := time.NewTimer(at)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take says in what time the bytes may go.
func (r *Rate) take(now time.Time, bytes int) (in time.Duration) {
	if r == nil || r.bytes == 0 {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next.Before(now) {
		r.next = now
	}
	in = r.next.Sub(now)
	r.next = r.next.Add(time.Duration(float64(bytes) / r.bytes * float64(time.Second)))
	return in
}
