package write

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// Root makes sure that the root is of a format that this program knows, and marks it where nothing does. A mark that is damaged is put anew
// where runs lie below it: each document has its format's number too.
func (c *Writer) Root(ctx context.Context) error {
	b, err := format.SealRoot()
	if err != nil {
		return err
	}
	there, err := c.objects.PutOnce(ctx, format.RootKey, b)
	if there == nil {
		return err
	}
	err = format.ParseRoot(there)
	if !errors.Is(err, format.ErrCorrupt) {
		return err
	}
	err = fmt.Errorf("%s/%s: %w", c.find.URL(), format.RootKey, err)
	if jobs, jerr := c.find.Jobs(ctx); jerr != nil || len(jobs) == 0 {
		return errors.Join(fmt.Errorf("%w: it is none of replicad's: move it elsewhere, or take another place for checkpoints", err), jerr)
	}
	_, rerr := c.objects.Replace(ctx, format.RootKey, b, func(there []byte) bool {
		return !errors.Is(format.ParseRoot(there),
			format.ErrCorrupt)
	})
	c.objects.Note(err)
	return rerr
}

// mend puts run.json anew, from what whoever may write to the run knows of it. One that a newer program wrote, or that the store refuses to
// read, stays. A run goes on without it: what fails here is told.
func (c *Writer) mend(ctx context.Context, r find.Run, said format.Run) {
	if !errors.Is(r.Lost, store.ErrAbsent) && !errors.Is(r.Lost, format.ErrCorrupt) {
		return
	}
	said.ID, said.Order = r.ID, max(r.Order, 1)
	b, err := said.Seal()
	if err == nil {
		_, err = c.objects.Replace(ctx, r.Under(format.RunKey), b, func(there []byte) bool {
			_, err := format.ParseRun(there, r.Place)
			return !errors.Is(err, format.ErrCorrupt)
		})
	}
	if err != nil {
		c.objects.Note(fmt.Errorf("%w: it could not be put anew: %w", r.Lost, err))
		return
	}
	c.objects.Note(fmt.Errorf("%w: it is put anew", r.Lost))
}

// Begin gives a run its place, or finds the one that it has. A new one is the last of its name.
func (c *Writer) Begin(ctx context.Context, said format.Run) (r find.Run, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("begin run %v of job %s in %s: %w", said.ID, said.Job, c.find.URL(), err)
		}
	}()
	if err := c.Root(ctx); err != nil {
		return r, err
	}
	said.Program = c.Unsaid(said.Program)
	runs, err := c.find.Runs(ctx, said.Job)
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
