package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
)

// Begin gives a run its place, or finds the one that it has. A new one is the last of its name.
func (c *Catalog) Begin(ctx context.Context, said format.Run) (r find.Run, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("begin run %v of job %s in %s: %w", said.ID, said.Job, c.Finder.URL(), err)
		}
	}()
	if err := c.root(ctx); err != nil {
		return r, err
	}
	said.Program = c.unsaid(said.Program)
	runs, err := c.Finder.Runs(ctx, said.Job)
	if err != nil {
		return r, err
	}
	last := uint64(0)
	for _, other := range runs {
		if other.ID == said.ID {
			if other.Lost != nil {
				c.mend(ctx, other, said)
			}
			return other, nil
		}
		last = max(last, other.Order)
	}
	if said.Began == 0 {
		said.Began = c.now().UnixMilli()
	}
	said.Order = last + 1
	r = find.Run{Place: format.Place{Job: said.Job, Run: format.RunName(time.UnixMilli(said.Began), said.ID)}, ID: said.ID,
		Order: said.Order,
		Owner: said.Owner}
	if err := r.Check(); err != nil {
		return r, err
	}
	b, err := said.Seal()
	if err != nil {
		return r, err
	}
	there, err := c.objects.PutOnce(ctx, r.Under(format.RunKey), b)
	if there == nil {
		return r, err
	}
	other, err := format.ParseRun(there, r.Place)
	if errors.Is(err, format.ErrCorrupt) { // nothing that can be read is in this directory
		r.Lost = err
		c.mend(ctx, r, said)
		return r, nil
	}
	if err == nil && other.ID != said.ID {
		err = fmt.Errorf("%s is the directory of run %v: begin again in a minute", r.Run, other.ID)
	}
	if err == nil {
		r.Order = other.Order
	}
	return r, err
}
