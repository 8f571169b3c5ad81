package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Remember takes in that a read of a generation failed, for whatever it was made. The file that the error names, or all where it names
// none, is read again, twice if need be, as Verify does: bad is what that found, and a record says so then. Nil: the generation is whole as
// far as that tells, or the error is of something else. unrecorded: the store does not take the record.
func (c *Catalog) Remember(ctx context.Context, f find.Found, met error) (bad, unrecorded error) {
	if !damage.Is(met) || ctx.Err() != nil {
		return nil, nil //nolint:nilerr // nothing is known of it: a canceled read tells nothing
	}
	how := read.How{Cold: true}
	var d *damage.Damage
	if errors.As(met, &d) {
		of := slices.IndexFunc(f.Index.Files,
			func(file format.File) bool { return d.Key != "" && (file.Key == d.Key || file.Twin == d.Key) })
		if of < 0 {
			return nil, nil
		}
		how.Only = f.Index.Files[of].Key
	}
	if _, bad = c.Reader.VerifyAs(ctx, f, how, nil); !damage.Is(bad) {
		return nil, nil
	}
	return bad, c.MarkDamaged(ctx, f, bad)
}

// ReadBackNew reads a generation that was just written whole, and records what that found: an error is damage. What could not be read or
// recorded is unread, and told of: it is written all the same.
func (c *Catalog) ReadBackNew(ctx context.Context, r find.Run, g replica.Generation) error {
	err := c.ReadBack(ctx, r, g, read.How{Cold: true, Back: true}, nil)
	switch {
	case damage.Is(err):
		return fmt.Errorf("step %d of job %s was written, and is damaged: %w", g.Step, r.Job, err)
	case err != nil && !errors.Is(err, find.ErrNone): // else somebody deletes it
		c.objects.Note(fmt.Errorf("step %d of job %s is written and counts as unread, since it could not be read back: %w", g.Step, r.Job,
			err))
	}
	return nil
}
