package holding

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/unixsock"
)

// Return finds the keeper that is to hold what this daemon has parked, after the last one has ended, and starts one where that is this daemon's to
// do. It may take seconds.
type Return func(context.Context) (Returned, error)

// Returned is a keeper that this daemon came back to: *shm.Keeper.
type Returned interface {
	Vault
	// TakeLife has the keeper speak for this life of the node: once it holds all that is parked.
	TakeLife() error
	Close()
}

// Between two tries to find a keeper, at first and at most. A keeper that is started takes some milliseconds.
const (
	returnFirst = time.Second
	returnMost  = 8 * time.Second
)

// returning brings a daemon whose keeper has ended to the next one: a keeper is looked for, given all that is parked, and then the node's life. A
// daemon that dies before that has died with its keeper. It is the custodian's, on its goroutine; attempts run beside it.
type returning struct {
	c        *Custodian
	gone     <-chan struct{} // the keeper's end
	came     chan arrival
	again    <-chan time.Time // the next attempt
	wait     time.Duration
	current  Returned // nil: the first keeper, which is its owner's
	attempts sync.WaitGroup
	stop     context.CancelFunc
}

type arrival struct {
	keeper Returned
	err    error
}

func newReturning(c *Custodian) *returning {
	return &returning{c: c, gone: c.keeper.Done(), came: make(chan arrival), wait: returnFirst, stop: func() {}}
}

// end waits for what runs beside the custodian, and hangs up on the keeper.
func (r *returning) end() {
	r.stop()
	r.attempts.Wait()
	if r.current != nil {
		r.current.Close()
	}
}

// lost notes the keeper's end, and looks for another one.
func (r *returning) lost(ctx context.Context) {
	r.gone = nil
	r.c.setLost(true)
	r.c.log.KeeperLost(r.c.back != nil)
	if r.current != nil {
		r.current.Close()
		r.current = nil
	}
	if r.c.back != nil {
		r.attempt(ctx)
	}
}

func (r *returning) attempt(ctx context.Context) {
	r.again = nil
	ctx, r.stop = context.WithCancel(ctx)
	r.attempts.Go(func() {
		k, err := r.c.back(ctx)
		select {
		case r.came <- arrival{k, err}:
		case <-ctx.Done():
			if err == nil {
				k.Close()
			}
		}
	})
}

func (r *returning) arrived(a arrival) {
	r.stop()
	err := a.err
	if err == nil {
		err = r.c.handOver(a.keeper)
	}
	if err != nil {
		r.c.log.Retried("keeper", "return to a keeper", err.Error())
		r.again, r.wait = time.After(r.wait), min(2*r.wait, returnMost)
		return
	}
	r.current, r.gone, r.wait = a.keeper, a.keeper.Done(), returnFirst
}

// handOver gives a keeper all that is parked, and the node's life last. Where that fails it hangs up.
func (c *Custodian) handOver(k Returned) (err error) {
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	c.mu.Lock()
	want, owed := slices.Sorted(maps.Keys(c.parked)), slices.Sorted(maps.Keys(c.owed))
	c.mu.Unlock()
	for _, key := range owed { // a keeper that only lost the connection still holds it
		if err := k.Drop(key); err != nil {
			return fmt.Errorf("drop %s: %w", key, err)
		}
	}
	held := 0
	for _, key := range want {
		f, err := c.duplicate(key)
		if err != nil {
			return fmt.Errorf("park %s: %w", key, err)
		}
		if f == nil {
			continue
		}
		err = k.Put(key, f)
		f.Close()
		switch {
		case err == nil:
			held++
		case ended(k):
			return fmt.Errorf("park %s: %w", key, err)
		default:
			c.log.Failed("keeper", "park "+key, err.Error())
		}
	}
	if err := k.TakeLife(); err != nil {
		return err
	}
	c.log.KeeperBack(held)
	c.mu.Lock()
	for _, key := range owed {
		delete(c.owed, key)
	}
	c.keeper, c.lost = k, false
	c.mu.Unlock()
	return nil
}

// duplicate is a descriptor of what is parked under a key; nil: it was dropped meanwhile.
func (c *Custodian) duplicate(key string) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.parked[key]
	if !ok {
		return nil, nil
	}
	return unixsock.Duplicate(f)
}

func (c *Custodian) setLost(lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = lost
}

// ended tells whether the keeper has gone.
func ended(k Vault) bool {
	select {
	case <-k.Done():
		return true
	default:
		return false
	}
}
