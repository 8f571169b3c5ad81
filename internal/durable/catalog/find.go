package catalog

import (
	"context"
	"errors"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// MarkSeen looks at a generation again in which a look has found damage, and marks it as a whole read does that fails, if it finds it too.
// One that is marked so already, that is being deleted, or that a newer program wrote, is left as it is.
func (c *Catalog) MarkSeen(ctx context.Context, r find.Run, g replica.Generation) error {
	if n, ok, err := c.Finder.NewestRead(ctx, r, g); err != nil || ok && !n.Good {
		return err
	}
	f, failed := c.Finder.Get(ctx, r, g)
	if failed == nil || errors.Is(failed, format.ErrNewer) || errors.Is(failed, find.ErrNone) {
		return nil
	}
	if !damage.Is(failed) {
		return failed
	}
	if err := c.Finder.Undisturbed(ctx, r, g); errors.Is(err, find.ErrNone) {
		return nil
	} else if err != nil {
		return err
	}
	f.Run, f.Generation = r, g
	return c.MarkRead(ctx, f, failed)
}
