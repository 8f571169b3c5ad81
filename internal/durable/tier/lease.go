package tier

import (
	"context"
	"errors"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
)

// leaseEnd bounds the requests that end a lease. One that is not ended ends by itself.
const leaseEnd = 5 * time.Second

// read is a generation that is read here.
type read struct {
	n    int           // readers; guarded by the tier's mu
	idle chan struct{} // closed when the last reader has gone
	done chan struct{} // closed when its lease has ended; nil: it has none
}

// hold has a generation stay while it is read here: Prune keeps it, and a lease keeps it from everybody else. let is called once, at the end. A store
// that takes no lease is read all the same. catalog.ErrNone: it is being deleted.
func (t *Tier) hold(ctx context.Context, f Found) (let func(), err error) {
	where := f.Where()
	t.mu.Lock()
	r := t.reads[where]
	first := r == nil
	if first {
		r = &read{idle: make(chan struct{})}
		t.reads[where] = r
	}
	r.n++
	t.mu.Unlock()
	let = func() { t.let(where, r) }
	if !first {
		return let, nil
	}
	l, err := t.lease(ctx, f)
	if errors.Is(err, catalog.ErrNone) {
		let()
		return nil, err
	}
	t.note(err)
	t.mu.Lock()
	defer t.mu.Unlock()
	if l != nil && !t.closed {
		r.done = make(chan struct{})
		t.leases.Go(func() { t.keep(context.WithoutCancel(ctx), r, l) })
	}
	return let, nil
}

func (t *Tier) let(where string, r *read) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.n--; r.n > 0 {
		return
	}
	close(r.idle)
	if t.reads[where] == r {
		delete(t.reads, where)
	}
	if r.done != nil {
		t.ending = append(t.ending, r.done)
	}
}

// lease is nil where the store can't be written to.
func (t *Tier) lease(ctx context.Context, f Found) (*catalog.Lease, error) {
	if err := t.Prove(ctx); err != nil {
		return nil, nil //nolint:nilerr,nilnil // Silent says why
	}
	l, err := t.cat.Lease(ctx, f.Run, f.Generation, "a daemon reads it")
	if err != nil {
		return nil, err
	}
	return l, nil
}

// keep renews a lease for as long as somebody reads, and ends it then.
func (t *Tier) keep(ctx context.Context, r *read, l *catalog.Lease) {
	defer close(r.done)
	renewing, stop := context.WithCancel(ctx)
	defer stop()
	tick := time.NewTicker(catalog.LeaseTime / 3)
	defer tick.Stop()
	for reads := true; reads; {
		select {
		case <-tick.C:
			t.note(l.Renew(renewing))
		case <-r.idle:
			reads = false
		case <-t.closing:
			reads = false
		}
	}
	ending, end := context.WithTimeout(ctx, leaseEnd)
	defer end()
	t.note(l.End(ending))
}

// letGo waits for the end of leases that nobody here needs any more.
func (t *Tier) letGo(ctx context.Context) {
	t.mu.Lock()
	ending := t.ending
	t.ending = nil
	t.mu.Unlock()
	for _, done := range ending {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

func (t *Tier) isRead(where string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reads[where] != nil
}
