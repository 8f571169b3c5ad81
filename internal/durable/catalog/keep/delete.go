package keep

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Delete deletes a generation: trash entry, COMMIT, files, entry. A pinned one is ErrPinned. What it broke off at, the next Delete of the
// same generation or Sweep finishes. Frozen parts stay until Sweep finds that no generation needs them.
func (c *Keeper) Delete(ctx context.Context, r find.Run, g replica.Generation, why string) error {
	if err := c.Drop(ctx, r, g, why); err != nil {
		return fmt.Errorf("delete generation %v of job %s: %w", g, r.Job, err)
	}
	return nil
}

// Drop is Delete for those that say themselves what they delete.
func (c *Keeper) Drop(ctx context.Context, r find.Run, g replica.Generation, why string) error {
	t := format.Trash{Generation: g, Who: c.who, Why: replica.Line(why, format.MaxText), At: c.now().Unix(), Nonce: rand.Text()}
	b, err := t.Seal()
	if err != nil {
		return err
	}
	entry, commit := r.Key(format.Name{Kind: format.TrashKind, Generation: g}), r.Key(format.Name{Kind: format.CommitKind, Generation: g})
	there, err := c.objects.PutOnce(ctx, entry, b)
	if err != nil && there == nil {
		return err
	}
	pins, err := c.find.PinnedAt(ctx, r, g, func() (time.Time, error) {
		if there == nil {
			return c.objects.Modified(ctx, entry) // just now
		}
		return c.StoreTime(ctx, r, "sweep", "whether leases have ended")
	})
	if err != nil {
		return err
	}
	if len(pins) > 0 {
		err := fmt.Errorf("%w by %s: %s", ErrPinned, pins[0].Who, pins[0].Why)
		if there == nil {
			// It stays. Another's entry is not taken back: he may have looked for pins before this one was put, and go on.
			err = errors.Join(err, c.objects.Remove(ctx, entry))
		}
		return err
	}
	if there == nil { // who finishes another's deletion leaves no second line
		if err := c.hints.Log(ctx, r.Job, format.Log{Verb: "delete", Run: r.Run, Generations: []replica.Generation{g},
			Why: why}); err != nil {
			return err
		}
	}
	if err := c.objects.Remove(ctx, commit); err != nil {
		return err
	}
	if err := c.below(ctx, r, g); err != nil {
		return err
	}
	_ = c.hints.Summarize(ctx, r.Place, func(rows []format.Row) []format.Row { // a hint
		return slices.DeleteFunc(rows, func(row format.Row) bool { return row.Generation == g })
	})
	return c.objects.Remove(ctx, entry)
}

// below removes what a generation had beside COMMIT and trash entry.
func (c *Keeper) below(ctx context.Context, r find.Run, g replica.Generation) error {
	var keys []string
	prefix := r.Prefix()
	note := func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key, prefix)); n.OfGeneration() && n.Generation == g {
			keys = append(keys, info.Key)
		}
		return nil
	}
	for _, p := range []string{format.StepName(g) + "/", format.ReadPrefix + format.StepName(g) + ".",
		format.PinPrefix + format.StepName(g) + "-"} {
		if err := c.objects.List(ctx, prefix+p, "", note); err != nil {
			return err
		}
	}
	return c.objects.Each(ctx, len(keys), func(ctx context.Context, i int) error { return c.objects.Remove(ctx, keys[i]) })
}

// StoreTime is what the store's clock says: of a line of the log, which is worth leaving anyway.
func (c *Keeper) StoreTime(ctx context.Context, r find.Run, verb, why string) (time.Time, error) {
	key, err := c.hints.LogKey(ctx, r.Job, format.Log{Verb: verb, Run: r.Run, Why: why})
	if err != nil {
		return time.Time{}, err
	}
	now, err := c.objects.Modified(ctx, key)
	if err == nil && now.IsZero() {
		err = errors.New("the store says no times: nothing can be told to be older than the grace")
	}
	return now, err
}
