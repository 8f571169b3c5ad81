package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Pin keeps a generation until it is unpinned, or, with a time, until then: a lease of somebody who reads. A pin of the same name takes the
// place of the former. It counts once this has returned without an error: a generation that is being deleted is refused.
func (c *Catalog) Pin(ctx context.Context, r find.Run, g replica.Generation, who, why string, until time.Time) error {
	key, err := c.putPin(ctx, r, g, who, why, until)
	if err == nil {
		// Whoever deletes puts its entry first and looks for pins then: one of the two sees the other.
		if err = c.Finder.Undisturbed(ctx, r, g); err != nil {
			err = errors.Join(err, c.objects.Remove(ctx, key))
		}
	}
	if err != nil {
		return fmt.Errorf("pin generation %v of job %s: %w", g, r.Job, err)
	}
	return nil
}

func (c *Catalog) putPin(ctx context.Context, r find.Run, g replica.Generation, who, why string, until time.Time) (key string, err error) {
	p := format.Pin{Generation: g, Who: format.Who(who), Why: replica.Line(why, format.MaxText), At: c.now().Unix()}
	if !until.IsZero() {
		p.Until = until.Unix()
	}
	key = r.Key(format.Name{Kind: format.PinKind, Generation: g, Who: p.Who})
	return key, c.objects.Swap(ctx, key, func([]byte) ([]byte, error) { return p.Seal() })
}

// Unpin lets a generation go. One that is not pinned under the name is ErrNone.
func (c *Catalog) Unpin(ctx context.Context, r find.Run, g replica.Generation, who string) error {
	key := r.Key(format.Name{Kind: format.PinKind, Generation: g, Who: format.Who(who)})
	_, err := c.objects.Stat(ctx, key)
	if errors.Is(err, store.ErrAbsent) {
		err = fmt.Errorf("%s has not pinned it: %w", format.Who(who), find.ErrNone)
	}
	if err == nil {
		err = c.objects.Remove(ctx, key)
	}
	if err != nil {
		return fmt.Errorf("unpin generation %v of job %s: %w", g, r.Job, err)
	}
	return nil
}

// LeaseTime is how long a lease keeps a generation whose reader died. A reader that lives renews it each third of that.
const LeaseTime = 10 * time.Minute

// Lease is a pin with an end, of somebody who reads a generation. Renew and End belong to one goroutine at a time.
type Lease struct {
	c    *Catalog
	run  find.Run
	g    replica.Generation
	who  string
	why  string
	ends time.Time
}

// Lease keeps a generation for LeaseTime, for somebody who reads it.
func (c *Catalog) Lease(ctx context.Context, r find.Run, g replica.Generation, why string) (*Lease, error) {
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
func (c *Catalog) Leased(ctx context.Context, f find.Found, why string, refused func(error), read func() error) error {
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
func (c *Catalog) Unleased(ctx context.Context, f find.Found, read func() error) error {
	return c.Finder.OrDeleted(ctx, f.Run, f.Generation, read())
}

// MarkDamaged leaves what a load of a generation has found beside it: why says which file and chunk, of which two reads brought other
// bytes. One that is marked so already, or that is being deleted, is left as it is.
func (c *Catalog) MarkDamaged(ctx context.Context, f find.Found, why error) error {
	if n, ok, err := c.Finder.NewestRead(ctx, f.Run, f.Generation); err != nil || ok && !n.Good {
		return err
	}
	if why = c.Finder.OrDeleted(ctx, f.Run, f.Generation, why); !damage.Is(why) {
		return nil
	}
	return c.MarkRead(ctx, f, why)
}

// MarkRead records what a whole read of a generation came to: nil, or why it failed. The records that were there go, and its number is one
// above theirs: nobody's clock says which one counts. A read that failed since the generation was stripped meanwhile says nothing: its
// files went, others took their place.
func (c *Catalog) MarkRead(ctx context.Context, f find.Found, failed error) error {
	if failed != nil {
		if com, err := c.Finder.ReadCommit(ctx, f.Run, f.Generation); err == nil && com.Stripped && com.Write != f.Write {
			return nil
		}
	}
	said := format.Read{Generation: f.Generation, Who: c.who, Number: 1, At: c.now().Unix(), Write: f.Write}
	if failed != nil {
		said.Error = replica.Line(damage.Plain(failed), format.MaxText)
	}
	var old []format.Name
	prefix := f.Run.Prefix()
	err := c.objects.List(ctx, f.Run.Under(format.ReadPrefix+format.StepName(f.Generation))+".", "", func(info store.Info) error {
		if o := format.ParseName(strings.TrimPrefix(info.Key, prefix)); o.Kind == format.ReadKind && o.Generation == f.Generation {
			old, said.Number = append(old, o), max(said.Number, o.Number+1)
		}
		return nil
	})
	if err != nil {
		return err
	}
	n := format.Name{Kind: format.ReadKind, Generation: f.Generation, Number: said.Number, At: said.At, Good: failed == nil,
		Who: format.Who(c.who)}
	b, err := said.Seal()
	if err != nil {
		return err
	}
	if _, err := c.objects.PutOnce(ctx, f.Run.Key(n), b); err != nil && !errors.Is(err, store.ErrExists) {
		return err
	}
	// Whoever deletes removes COMMIT first and the records then: one of the two sees the other.
	if _, err = c.objects.Modified(ctx, f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation})); errors.Is(err,
		store.ErrAbsent) {
		if err = c.objects.Remove(ctx, f.Run.Key(n)); err == nil && failed == nil {
			err = fmt.Errorf("generation %v of job %s was deleted while it was read: %w", f.Generation, f.Job, find.ErrNone)
		}
		return err
	}
	for _, o := range old {
		err = errors.Join(err, c.objects.Remove(ctx, f.Run.Key(o)))
	}
	return err
}

// logForm orders the log's lines by name.
const logForm = "20060102T150405.000Z"

// Log writes a line of who did what.
func (c *Catalog) Log(ctx context.Context, job string, l format.Log) error {
	_, err := c.log(ctx, job, l)
	return err
}

func (c *Catalog) log(ctx context.Context, job string, l format.Log) (key string, err error) {
	now := c.now()
	l.Who, l.Host, l.At, l.Why = c.who, c.host, now.UnixMilli(), replica.Line(l.Why, format.MaxText)
	b, err := l.Seal()
	if err != nil {
		return "", err
	}
	key = job + "/" + format.LogPrefix + now.UTC().Format(logForm) + "-" + format.Who(l.Verb) + "-" + strings.ToLower(rand.Text()[:8]) +
		".json"
	if _, err := c.objects.PutOnce(ctx, key, b); err != nil {
		return "", fmt.Errorf("log %s of job %s: %w", l.Verb, job, err)
	}
	return key, nil
}
