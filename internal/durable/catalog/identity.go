package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// mend puts run.json anew, from what whoever may write to the run knows of it. One that a newer program wrote, or that the store refuses to
// read, stays. A run goes on without it: what fails here is told.
func (c *Catalog) mend(ctx context.Context, r find.Run, said format.Run) {
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
