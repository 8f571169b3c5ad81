// Package keep decides what stays: pins and leases, records of whole reads, deletions, and the sweep of what no COMMIT names.
//
// Deleting goes by trash entry, COMMIT, files, entry; whoever finds an entry may finish it. What no COMMIT names is swept when it is older
// than a grace, by the store's own times.
//
// A Keeper may be used by several goroutines.
package keep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/hints"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Keeper keeps and deletes the generations of one root.
type Keeper struct {
	objects *objects.Writer
	find    *find.Finder
	read    *read.Reader
	hints   *hints.Hints
	who     string // in pins, records and trash entries
	now     func() time.Time
}

// New makes a keeper.
func New(o *objects.Writer, f *find.Finder, r *read.Reader, h *hints.Hints, who string, now func() time.Time) *Keeper {
	return &Keeper{objects: o, find: f, read: r, hints: h, who: who, now: now}
}

// ErrPinned marks a generation that somebody keeps, or reads.
var ErrPinned = errors.New("pinned")

// Pin keeps a generation until it is unpinned, or, with a time, until then: a lease of somebody who reads. A pin of the same name takes the
// place of the former. It counts once this has returned without an error: a generation that is being deleted is refused.
func (c *Keeper) Pin(ctx context.Context, r find.Run, g replica.Generation, who, why string, until time.Time) error {
	key, err := c.putPin(ctx, r, g, who, why, until)
	if err == nil {
		// Whoever deletes puts its entry first and looks for pins then: one of the two sees the other.
		if err = c.find.Undisturbed(ctx, r, g); err != nil {
			err = errors.Join(err, c.objects.Remove(ctx, key))
		}
	}
	if err != nil {
		return fmt.Errorf("pin generation %v of job %s: %w", g, r.Job, err)
	}
	return nil
}

func (c *Keeper) putPin(ctx context.Context, r find.Run, g replica.Generation, who, why string, until time.Time) (key string, err error) {
	p := format.Pin{Generation: g, Who: format.Who(who), Why: replica.Line(why, format.MaxText), At: c.now().Unix()}
	if !until.IsZero() {
		p.Until = until.Unix()
	}
	key = r.Key(format.Name{Kind: format.PinKind, Generation: g, Who: p.Who})
	return key, c.objects.Swap(ctx, key, func([]byte) ([]byte, error) { return p.Seal() })
}

// Unpin lets a generation go. One that is not pinned under the name is ErrNone.
func (c *Keeper) Unpin(ctx context.Context, r find.Run, g replica.Generation, who string) error {
	key := r.Key(format.Name{Kind: format.PinKind, Generation: g, Who: format.Who(who)})
	_, err := c.objects.Stat(ctx, key)
	if errors.Is(err, store.ErrAbsent) {
		err = fmt.Errorf("%s has not pinned it: %w", format.Who(who), find.ErrNone)
	}
	if err == nil {
		err = c.objects.Remove(ctx, key)
	}
	if err != nil {
		return fmt.Errorf("unpin generation %v of job %s: %w", g, r.Job, err)
	}
	return nil
}
