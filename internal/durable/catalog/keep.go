package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Pin keeps a generation until it is unpinned, or, with a time, until then: a lease of somebody who reads. A pin of the same name takes the
// place of the former. It counts once this has returned without an error: a generation that is being deleted is refused.
func (c *Catalog) Pin(ctx context.Context, r Run, g replica.Generation, who, why string, until time.Time) error {
	key, err := c.putPin(ctx, r, g, who, why, until)
	if err == nil {
		// Whoever deletes puts its entry first and looks for pins then: one of the two sees the other.
		if err = c.undisturbed(ctx, r, g); err != nil {
			err = errors.Join(err, c.objects.Remove(ctx, key))
		}
	}
	if err != nil {
		return fmt.Errorf("pin generation %v of job %s: %w", g, r.Job, err)
	}
	return nil
}

func (c *Catalog) putPin(ctx context.Context, r Run, g replica.Generation, who, why string, until time.Time) (key string, err error) {
	p := format.Pin{Generation: g, Who: format.Who(who), Why: replica.Line(why, format.MaxText), At: c.now().Unix()}
	if !until.IsZero() {
		p.Until = until.Unix()
	}
	key = r.Key(format.Name{Kind: format.PinKind, Generation: g, Who: p.Who})
	return key, c.objects.Swap(ctx, key, func([]byte) ([]byte, error) { return p.Seal() })
}

// undisturbed reports whether a generation is committed, and nobody is deleting it.
func (c *Catalog) undisturbed(ctx context.Context, r Run, g replica.Generation) error {
	stat := func(k format.Kind) error {
		_, err := c.objects.Stat(ctx, r.Key(format.Name{Kind: k, Generation: g}))
		return err
	}
	if err := stat(format.TrashKind); err == nil {
		return fmt.Errorf("it is being deleted: %w", ErrNone)
	} else if !errors.Is(err, store.ErrAbsent) {
		return err
	}
	err := stat(format.CommitKind)
	if errors.Is(err, store.ErrAbsent) {
		return fmt.Errorf("it is not committed, or was deleted: %w", ErrNone)
	}
	return err
}

// Unpin lets a generation go. One that is not pinned under the name is ErrNone.
func (c *Catalog) Unpin(ctx context.Context, r Run, g replica.Generation, who string) error {
	key := r.Key(format.Name{Kind: format.PinKind, Generation: g, Who: format.Who(who)})
	_, err := c.objects.Stat(ctx, key)
	if errors.Is(err, store.ErrAbsent) {
		err = fmt.Errorf("%s has not pinned it: %w", format.Who(who), ErrNone)
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
	run  Run
	g    replica.Generation
	who  string
	why  string
	ends time.Time
}

// Lease keeps a generation for LeaseTime, for somebody who reads it.
func (c *Catalog) Lease(ctx context.Context, r Run, g replica.Generation, why string) (*Lease, error) {
	l := &Lease{c: c, run: r, g: g, who: format.Who(leaseNames + c.who[:min(len(c.who), 32)] + "-" + strings.ToLower(rand.Text()[:8])),
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
	if errors.Is(err, ErrNone) { // it had ended, and was swept
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

// leaseNames begins the names of leases: those of pins are what people are called.
const leaseNames = "reader-"

// KeptBy is what pins of a generation say: whether it is kept for good, until when people keep it, and whether somebody reads it.
func KeptBy(pins []format.Pin) (kept bool, until time.Time, open bool) {
	for _, p := range pins {
		switch at := time.Unix(p.Until, 0); {
		case p.Until == 0:
			kept = true
		case strings.HasPrefix(p.Who, leaseNames):
			open = true
		case at.After(until):
			until = at
		}
	}
	return kept, until, open
}

// Leased keeps a generation for as long as read takes. ErrNone: it is being deleted, and read was not called. A store that takes no pin is
// read all the same; refused gets the error; nil: nobody does. ErrNone too: it was deleted beside such a read.
func (c *Catalog) Leased(ctx context.Context, f Found, why string, refused func(error), read func() error) error {
	l, err := c.Lease(ctx, f.Run, f.Generation, why)
	if errors.Is(err, ErrNone) {
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
func (c *Catalog) Unleased(ctx context.Context, f Found, read func() error) error {
	return c.orDeleted(ctx, f.Run, f.Generation, read())
}

// pinned lists the pins of a generation that have not ended, by the store's times: a pin ends its length after it was written. now says the
// store's time, and is asked once, where some pin has an end. One that cannot be read counts: it may be for good. So does one whose time
// the store does not say.
func (c *Catalog) pinned(ctx context.Context, r Run, g replica.Generation, now func() (time.Time, error)) (list []format.Pin, err error) {
	prefix := r.Prefix()
	var names []format.Name
	err = c.objects.List(ctx, r.Under(format.PinPrefix+format.StepName(g))+"-", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key, prefix)); n.Kind == format.PinKind && n.Generation == g {
			names = append(names, n)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var at time.Time
	for _, n := range names {
		b, _, err := c.objects.Get(ctx, r.Key(n))
		if errors.Is(err, store.ErrAbsent) {
			continue
		}
		if err != nil {
			return nil, err
		}
		p, err := format.ParsePin(b, n)
		if err != nil {
			p = &format.Pin{Generation: g, Who: n.Who, Why: err.Error()}
		}
		if p.Until == 0 {
			list = append(list, *p)
			continue
		}
		written, err := c.objects.Modified(ctx, r.Key(n)) // behind its content, which may be renewed meanwhile
		if errors.Is(err, store.ErrAbsent) {
			continue
		}
		if err == nil && at.IsZero() {
			at, err = now()
		}
		if err != nil {
			return nil, err
		}
		if written.IsZero() || written.Add(length(p)).After(at) {
			list = append(list, *p)
		}
	}
	return list, nil
}

// length is how long a pin with an end lasts from when it is written: both of its times are by one clock.
func length(p *format.Pin) time.Duration {
	return time.Duration(min(p.Until-p.At, math.MaxInt64/int64(time.Second))) * time.Second
}

// Pinned lists the pins of a generation that have not ended, as far as this host's clock tells: only whoever deletes asks the store for its
// time.
func (c *Catalog) Pinned(ctx context.Context, r Run, g replica.Generation) ([]format.Pin, error) {
	return c.pinned(ctx, r, g, func() (time.Time, error) { return c.now(), nil })
}

// MarkDamaged leaves what a load of a generation has found beside it: why says which file and chunk, of which two reads brought other
// bytes. One that is marked so already, or that is being deleted, is left as it is.
func (c *Catalog) MarkDamaged(ctx context.Context, f Found, why error) error {
	if n, ok, err := c.newestRead(ctx, f.Run, f.Generation); err != nil || ok && !n.Good {
		return err
	}
	if why = c.orDeleted(ctx, f.Run, f.Generation, why); !damage.Is(why) {
		return nil
	}
	return c.MarkRead(ctx, f, why)
}

// MarkRead records what a whole read of a generation came to: nil, or why it failed. The records that were there go, and its number is one
// above theirs: nobody's clock says which one counts. A read that failed since the generation was stripped meanwhile says nothing: its
// files went, others took their place.
func (c *Catalog) MarkRead(ctx context.Context, f Found, failed error) error {
	if failed != nil {
		if com, err := c.readCommit(ctx, f.Run, f.Generation); err == nil && com.Stripped && com.Write != f.Write {
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
			err = fmt.Errorf("generation %v of job %s was deleted while it was read: %w", f.Generation, f.Job, ErrNone)
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

// Logs reads the newest lines of the log, the oldest of them first. Lines that cannot be read are counted.
func (c *Catalog) Logs(ctx context.Context, job string, most int) (list []format.Log, unreadable int, err error) {
	if err := replica.CheckJobName(job); err != nil {
		return nil, 0, err
	}
	var keys []string
	err = c.objects.List(ctx, job+"/"+format.LogPrefix, "", func(info store.Info) error {
		keys = append(keys, info.Key)
		if len(keys) > 2*most {
			keys = slices.Clone(keys[len(keys)-most:])
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	keys = keys[max(0, len(keys)-most):]
	lines := make([]*format.Log, len(keys))
	err = c.objects.Each(ctx, len(keys), func(ctx context.Context, i int) error {
		b, _, err := c.objects.Get(ctx, keys[i])
		if damage.CantTell(err) {
			return err
		}
		if err == nil {
			lines[i], _ = format.ParseLog(b)
		}
		return nil // what can't be read is counted below
	})
	for _, l := range lines {
		if l == nil {
			unreadable++
			continue
		}
		list = append(list, *l)
	}
	return list, unreadable, err
}
