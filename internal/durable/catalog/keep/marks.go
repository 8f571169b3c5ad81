package keep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// ReadBack reads a generation whole, and records what that found: nil, or damage. After any other error nothing is known of it, and nothing
// recorded.
func (c *Keeper) ReadBack(ctx context.Context, r find.Run, g replica.Generation, how read.How, progress func(read, of uint64)) error {
	f, err := c.find.Get(ctx, r, g)
	if err != nil {
		return err
	}
	_, err = c.read.VerifyAs(ctx, f, how, progress)
	if err != nil && !damage.Is(err) {
		return err
	}
	return errors.Join(err, c.MarkRead(ctx, f, err))
}

// MarkSeen looks at a generation again in which a look has found damage, and marks it as a whole read does that fails, if it finds it too.
// One that is marked so already, that is being deleted, or that a newer program wrote, is left as it is.
func (c *Keeper) MarkSeen(ctx context.Context, r find.Run, g replica.Generation) error {
	if n, ok, err := c.find.NewestRead(ctx, r, g); err != nil || ok && !n.Good {
		return err
	}
	f, failed := c.find.Get(ctx, r, g)
	if failed == nil || errors.Is(failed, format.ErrNewer) || errors.Is(failed, find.ErrNone) {
		return nil
	}
	if !damage.Is(failed) {
		return failed
	}
	if err := c.find.Undisturbed(ctx, r, g); errors.Is(err, find.ErrNone) {
		return nil
	} else if err != nil {
		return err
	}
	f.Run, f.Generation = r, g
	return c.MarkRead(ctx, f, failed)
}

// MarkDamaged leaves what a load of a generation has found beside it: why says which file and chunk, of which two reads brought other
// bytes. One that is marked so already, or that is being deleted, is left as it is.
func (c *Keeper) MarkDamaged(ctx context.Context, f find.Found, why error) error {
	if n, ok, err := c.find.NewestRead(ctx, f.Run, f.Generation); err != nil || ok && !n.Good {
		return err
	}
	if why = c.find.OrDeleted(ctx, f.Run, f.Generation, why); !damage.Is(why) {
		return nil
	}
	return c.MarkRead(ctx, f, why)
}

// MarkRead records what a whole read of a generation came to: nil, or why it failed. The records that were there go, and its number is one
// above theirs: nobody's clock says which one counts. A read that failed since the generation was stripped meanwhile says nothing: its
// files went, others took their place.
func (c *Keeper) MarkRead(ctx context.Context, f find.Found, failed error) error {
	if failed != nil {
		if com, err := c.find.ReadCommit(ctx, f.Run, f.Generation); err == nil && com.Stripped && com.Write != f.Write {
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

// Remember takes in that a read of a generation failed, for whatever it was made. The file that the error names, or all where it names
// none, is read again, twice if need be, as Verify does. bad is what that found, and is recorded. Nil: the generation is whole as far as
// that shows, or the error is of something else. unrecorded: the store does not take the record.
func (c *Keeper) Remember(ctx context.Context, f find.Found, met error) (bad, unrecorded error) {
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
	if _, bad = c.read.VerifyAs(ctx, f, how, nil); !damage.Is(bad) {
		return nil, nil
	}
	return bad, c.MarkDamaged(ctx, f, bad)
}

// ReadBackNew reads a generation that was just written whole, and records what that found: an error is damage. What could not be read or
// recorded is unread, and told of: it is written all the same.
func (c *Keeper) ReadBackNew(ctx context.Context, r find.Run, g replica.Generation) error {
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

// Repair writes bad twins anew from those that are whole.
func (c *Keeper) Repair(ctx context.Context, f find.Found, faults []read.Fault) error {
	for _, fault := range faults {
		if !fault.Twin {
			continue
		}
		for _, file := range f.Index.Files {
			good := file.Key
			if fault.Key == file.Key {
				good = file.Twin
			} else if fault.Key != file.Twin {
				continue
			}
			if err := c.objects.Remove(ctx, f.Run.Under(fault.Key)); err != nil {
				return err
			}
			if err := c.objects.Transfer(ctx, f.Run.Under(good), c.objects, f.Run.Under(fault.Key), file); err != nil {
				return fmt.Errorf("repair %s from %s: %w", fault.Key, good, err)
			}
		}
	}
	return nil
}
