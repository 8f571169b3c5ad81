package keep

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// LeaseTime is how long a lease keeps a generation whose reader died. A reader that lives renews it each third of that.
const LeaseTime = 10 * time.Minute

// Lease is a pin with an end, of somebody who reads a generation. Renew and End belong to one goroutine at a time.
type Lease struct {
	c    *Keeper
	run  find.Run
	g    replica.Generation
	who  string
	why  string
	ends time.Time
}

// Lease keeps a generation for LeaseTime, for somebody who reads it.
func (c *Keeper) Lease(ctx context.Context, r find.Run, g replica.Generation, why string) (*Lease, error) {
	l := &Lease{c: c, run: r, g: g, who: format.Who(find.LeaseNames + c.who[:min(len(c.who), 32)] + "-" + strings.ToLower(rand.Text()[:8])),
		why: why}
	return l, l.put(ctx)
}

func (l *Lease) put(ctx context.Context) error {
	ends := l.c.now().Add(LeaseTime)
	err := l.c.Pin(ctx, l.run, l.g, l.who, l.why, ends)
	if err == nil {
		l.ends = ends
	}
	return err
}

// Renew keeps the generation for longer, where a third of the time is over.
func (l *Lease) Renew(ctx context.Context) error {
	now := l.c.now()
	switch left := l.ends.Sub(now); {
	case left > LeaseTime*2/3:
		return nil
	case left < LeaseTime/10: // somebody may have begun to delete it
		return l.put(ctx)
	}
	// Who deletes sees the pin as it was and leaves the generation: his entry is no reason to take the pin away.
	ends := now.Add(LeaseTime)
	_, err := l.c.putPin(ctx, l.run, l.g, l.who, l.why, ends)
	if err == nil {
		l.ends = ends
	}
	return err
}

// End lets the generation go.
func (l *Lease) End(ctx context.Context) error {
	err := l.c.Unpin(ctx, l.run, l.g, l.who)
	if errors.Is(err, find.ErrNone) { // it had ended, and was swept
		return nil
	}
	return err
}

// Keep renews the lease until it may end, and ends it. From the end of ctx on it renews no more.
func (l *Lease) Keep(ctx context.Context, end <-chan struct{}) error {
	tick := time.NewTicker(LeaseTime / 3)
	defer tick.Stop()
	for renews := true; renews; {
		select {
		case <-tick.C:
			_ = l.Renew(ctx) // the next one may come through before it ends
		case <-ctx.Done():
			renews = false
		case <-end:
			renews = false
		}
	}
	<-end
	return l.End(context.WithoutCancel(ctx))
}

// Leased keeps a generation for as long as read takes. ErrNone: it is being deleted, and read was not called. A store that takes no pin is
// read all the same; refused gets the error; nil: nobody does. ErrNone too: it was deleted beside such a read.
func (c *Keeper) Leased(ctx context.Context, f find.Found, why string, refused func(error), read func() error) error {
	l, err := c.Lease(ctx, f.Run, f.Generation, why)
	if errors.Is(err, find.ErrNone) {
		return err
	}
	if err != nil {
		if refused != nil {
			refused(err)
		}
		return c.Unleased(ctx, f, read)
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	var ended error
	wg.Go(func() { ended = l.Keep(ctx, end) })
	err = read()
	close(end)
	wg.Wait()
	return errors.Join(err, ended)
}

// Unleased reads a generation that nobody keeps meanwhile. ErrNone: what looked damaged was deleted beside the read.
func (c *Keeper) Unleased(ctx context.Context, f find.Found, read func() error) error {
	return c.find.OrDeleted(ctx, f.Run, f.Generation, read())
}
