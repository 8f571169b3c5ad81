package keep

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
)

// Clear removes what a run has left that has no generation any more: frozen parts, the files that it carries, claims, its words. Where a
// generation is there, or is being deleted, or an object is younger than the grace by the store's own times, everything stays.
func (c *Keeper) Clear(ctx context.Context, r find.Run, grace time.Duration) (gone bool, err error) {
	if gone, err = c.clear(ctx, r, grace); err != nil {
		err = fmt.Errorf("clear run %s of job %s: %w", r.Run, r.Job, err)
	}
	return gone, err
}

func (c *Keeper) clear(ctx context.Context, r find.Run, grace time.Duration) (bool, error) {
	var keys []string
	var newest time.Time
	used := false
	err := c.objects.List(ctx, r.Prefix(), "", func(info store.Info) error {
		switch format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())).Kind {
		case format.CommitKind, format.TrashKind, format.PinKind:
			used = true
			return objects.ErrStop
		case format.Stray, format.RunKind, format.ClaimKind, format.SummaryKind, format.SharedKind, format.KeptKind, format.ShardKind,
			format.IndexKind, format.ReadKind:
		}
		used = used || info.Modified.IsZero()
		if info.Modified.After(newest) {
			newest = info.Modified
		}
		if info.Key != r.Under(format.RunKey) {
			keys = append(keys, info.Key)
		}
		return nil
	})
	if err != nil || used {
		return false, err
	}
	now, err := c.StoreTime(ctx, r, "sweep", "no generation of the run is left")
	if err != nil || now.Sub(newest) < grace {
		return false, err
	}
	uploads, err := c.objects.Unfinished(ctx, r.Prefix())
	if err != nil {
		return false, err
	}
	for _, u := range uploads {
		if err := c.objects.Abort(ctx, u); err != nil {
			return false, err
		}
	}
	if err := c.objects.Each(ctx, len(keys), func(ctx context.Context, i int) error { return c.objects.Remove(ctx, keys[i]) }); err != nil {
		return false, err
	}
	return true, c.objects.Remove(ctx, r.Under(format.RunKey)) // last: what broke off is found again
}
