package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Discard removes objects of an attempt that was given up, by their names. Its caller knows that none of them is on its way.
//
// A COMMIT of the attempt may still come: its writer was asked for it, and nobody knows what became of him. It needs an index, put where none is;
// so an entry is put in the index's place first. Where an index is there already the objects stay, and Sweep removes what no COMMIT names.
// The entry stays too, until then: without it an index would find its place again.
func (c *Catalog) Discard(ctx context.Context, a Attempt, names []string) error {
	if err := c.discard(ctx, a, names); err != nil {
		return fmt.Errorf("remove what write %d left of generation %v of job %s: %w", a.Write, a.Generation, a.Run.Job, err)
	}
	return nil
}

func (c *Catalog) discard(ctx context.Context, a Attempt, names []string) error {
	var keys []string
	for _, name := range names {
		key := a.Run.Key(format.Name{Kind: format.ShardKind, Generation: a.Generation, Write: a.Write, Shard: name})
		err := c.again(ctx, func() error {
			_, err := c.st.Stat(ctx, key)
			return err
		})
		if err != nil && !errors.Is(err, store.ErrAbsent) {
			return err
		}
		if err == nil {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	entry := format.Trash{Generation: a.Generation, Who: c.who, Why: "this write was given up", At: c.now().Unix(), Nonce: rand.Text()}
	b, err := entry.Seal()
	if err != nil {
		return err
	}
	there, err := c.putOnce(ctx, a.Run.Key(format.Name{Kind: format.IndexKind, Generation: a.Generation, Write: a.Write}), b)
	if there != nil {
		if _, err := format.ParseTrash(there, a.Generation); err != nil {
			return nil //nolint:nilerr // an index: its COMMIT may be there, or come
		}
	} else if err != nil {
		return err
	}
	for _, key := range keys {
		if err := c.remove(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// LastWrite is the highest number of a write that an object of the run has in its name, whether or not a COMMIT names it.
func (c *Catalog) LastWrite(ctx context.Context, r Run) (n uint64, err error) {
	prefix := r.Prefix()
	err = c.list(ctx, prefix+format.StepPrefix, "", func(info store.Info) error {
		n = max(n, format.ParseName(strings.TrimPrefix(info.Key, prefix)).Write)
		return nil
	})
	return n, err
}

// Resume makes a fleet the owner of the next epoch of a run, before it opens its job: the one behind was, or a later one where another fleet's
// claim is older than a grace, by the store's own times, and nothing was committed in its epoch: that fleet is gone. It commits no more if it is
// not, since a later epoch has an owner. Who loses to a younger claim gets ErrFenced, with the winner's name.
func (c *Catalog) Resume(ctx context.Context, r Run, fleet Fleet, was replica.Epoch, grace time.Duration) (replica.Epoch, error) {
	for fleet.Epoch = was + 1; ; fleet.Epoch++ {
		lost := c.Claim(ctx, r, fleet)
		if lost == nil || !errors.Is(lost, ErrFenced) {
			return fleet.Epoch, lost
		}
		last, err := c.lastClaim(ctx, r)
		if err != nil {
			return 0, err
		}
		now, err := c.storeTime(ctx, r, "resume", lost.Error())
		if err != nil {
			return 0, err
		}
		if age := now.Sub(last.Modified); age < grace {
			return 0, fmt.Errorf("%w; if that fleet is gone, try again in %v", lost, (grace - age).Round(time.Second))
		}
		fleet.Epoch = max(fleet.Epoch, format.ParseName(strings.TrimPrefix(last.Key, r.Prefix())).Epoch)
	}
}

// lastClaim is the object of the claim of the latest epoch.
func (c *Catalog) lastClaim(ctx context.Context, r Run) (last store.Info, err error) {
	at := replica.Epoch(0)
	err = c.list(ctx, r.Under("epochs")+"/", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())); n.Kind == format.ClaimKind && n.Epoch >= at {
			last, at = info, n.Epoch
		}
		return nil
	})
	return last, err
}
