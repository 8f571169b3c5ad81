package find

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// LeaseNames begins the names of leases: those of pins are what people are called.
const LeaseNames = "reader-"

// KeptBy is what pins of a generation say: whether it is kept for good, until when people keep it, and whether somebody reads it.
func KeptBy(pins []format.Pin) (kept bool, until time.Time, open bool) {
	for _, p := range pins {
		switch at := time.Unix(p.Until, 0); {
		case p.Until == 0:
			kept = true
		case strings.HasPrefix(p.Who, LeaseNames):
			open = true
		case at.After(until):
			until = at
		}
	}
	return kept, until, open
}

// PinnedAt lists the pins of a generation that have not ended, by the store's times: a pin ends its length after it was written. now says
// the store's time, and is asked once, where some pin has an end. One that cannot be read counts: it may be for good. So does one whose
// time the store does not say.
func (c *Finder) PinnedAt(ctx context.Context, r Run, g replica.Generation, now func() (time.Time, error)) (list []format.Pin, err error) {
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
		if written.IsZero() || written.Add(Length(p)).After(at) {
			list = append(list, *p)
		}
	}
	return list, nil
}

// Length is how long a pin with an end lasts from when it is written: both of its times are by one clock.
func Length(p *format.Pin) time.Duration {
	return time.Duration(min(p.Until-p.At, math.MaxInt64/int64(time.Second))) * time.Second
}

// Pinned lists the pins of a generation that have not ended, as far as this host's clock tells: only whoever deletes asks the store for its
// time.
func (c *Finder) Pinned(ctx context.Context, r Run, g replica.Generation) ([]format.Pin, error) {
	return c.PinnedAt(ctx, r, g, func() (time.Time, error) { return c.now(), nil })
}
