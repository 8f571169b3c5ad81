package find

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Logs reads the newest lines of the log, the oldest of them first. Lines that cannot be read are counted.
func (c *Finder) Logs(ctx context.Context, job string, most int) (list []format.Log, unreadable int, err error) {
	if err := replica.CheckJobName(job); err != nil {
		return nil, 0, err
	}
	var keys []string
	err = c.objects.List(ctx, job+"/"+format.LogPrefix, "", func(info store.Info) error {
		keys = append(keys, info.Key)
		if len(keys) > 2*most {
			keys = slices.Clone(keys[len(keys)-most:])
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	keys = keys[max(0, len(keys)-most):]
	lines := make([]*format.Log, len(keys))
	err = c.objects.Each(ctx, len(keys), func(ctx context.Context, i int) error {
		b, _, err := c.objects.Get(ctx, keys[i])
		if damage.CantTell(err) {
			return err
		}
		if err == nil {
			lines[i], _ = format.ParseLog(b)
		}
		return nil // what can't be read is counted below
	})
	for _, l := range lines {
		if l == nil {
			unreadable++
			continue
		}
		list = append(list, *l)
	}
	return list, unreadable, err
}

// Sign is the newest sign that a fleet writes a run, as far as the store has it.
type Sign struct {
	What string
	At   time.Time // by the store's clock; zero: it says no times
}

// Sign looks at the claims of a run and at its COMMITs. Those that somebody stripped say nothing. Nobody can tell from here whether a fleet
// lives.
func (c *Finder) Sign(ctx context.Context, r Run) (newest Sign, err error) {
	for _, p := range []string{format.CommitPrefix, format.EpochPrefix} {
		err := c.objects.List(ctx, r.Prefix()+p, "", func(info store.Info) error {
			n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix()))
			if n.Kind != format.CommitKind && n.Kind != format.ClaimKind || !info.Modified.After(newest.At) && newest.What != "" {
				return nil
			}
			what := fmt.Sprintf("the claim of epoch %d", n.Epoch)
			if n.Kind == format.CommitKind {
				com, err := c.ReadCommit(ctx, r, n.Generation)
				if ferr := damage.Fatal(err); ferr != nil {
					return ferr
				}
				if err == nil && com.Stripped {
					return nil
				}
				what = fmt.Sprintf("the commit of step %d", n.Generation.Step)
			}
			newest = Sign{what, info.Modified}
			return nil
		})
		if err != nil {
			return newest, err
		}
	}
	return newest, nil
}
