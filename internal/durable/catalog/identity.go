package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// A run says who it is in run.json, in each claim and in each COMMIT: its UUID, and its place in the order of the runs of its name. Any one
// of them does. The names of claims say which epochs are taken, whatever lies in them. What cannot be read is remembered, and named where
// it decides something.

// run reads what a run says of itself, and its newest claim. claims are their names where they were listed before.
func (c *Catalog) run(ctx context.Context, p format.Place, claims []format.Name) (r Run, err error) {
	r.Place = p
	said, err := c.words(ctx, p)
	if damage.CantTell(err) {
		return r, err
	}
	if r.Lost = err; err == nil {
		r.ID, r.Order, r.Owner = said.ID, said.Order, said.Owner
	}
	if claims == nil {
		if claims, err = c.claimNames(ctx, p); err != nil {
			return r, err
		}
	}
	if err := r.byClaims(ctx, c, claims); err != nil {
		return r, err
	}
	if r.Unsure == nil && r.ID != (replica.JobID{}) && len(claims) > 0 {
		return r, nil
	}
	return r, r.byCommits(ctx, c)
}

// words is a run's run.json.
func (c *Catalog) words(ctx context.Context, p format.Place) (*format.Run, error) {
	b, _, err := c.objects.Get(ctx, p.Under(format.RunKey))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Under(format.RunKey), err)
	}
	said, err := format.ParseRun(b, p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Under(format.RunKey), err)
	}
	return said, nil
}

// byClaims takes from a run's claims who owns it, and what run.json did not say.
func (r *Run) byClaims(ctx context.Context, c *Catalog, claims []format.Name) error {
	slices.SortFunc(claims, func(a, b format.Name) int { return cmp.Compare(b.Epoch, a.Epoch) })
	for _, n := range claims {
		if n.Epoch < r.Claimed && r.ID != (replica.JobID{}) {
			return nil
		}
		claim, err := c.claim(ctx, *r, n)
		switch {
		case errors.Is(err, store.ErrAbsent) && n.Fleet != "":
			continue // who lost has withdrawn it
		case damage.CantTell(err):
			return err
		case err != nil:
			if n.Epoch >= r.Claimed {
				r.Unsure = fmt.Errorf("%s: %w", r.Key(n), err)
			}
		case n.Epoch >= r.Claimed:
			r.ID, r.Order, r.Cluster = claim.Run, max(r.Order, claim.Order), claim.Cluster
		default:
			r.ID, r.Order = claim.Run, max(r.Order, claim.Order)
		}
		r.Claimed = max(r.Claimed, n.Epoch)
	}
	return nil
}

// byCommits takes from the newest COMMIT that can be read what neither run.json nor claims have said. One of the newest epoch that was
// claimed, or of a later one, has the order that the claim has.
func (r *Run) byCommits(ctx context.Context, c *Catalog) error {
	var gens []replica.Generation
	err := c.objects.List(ctx, r.Under(format.CommitPrefix), "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key, r.Prefix())); n.Kind == format.CommitKind {
			gens = append(gens, n.Generation)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(gens, func(a, b replica.Generation) int { return b.Compare(a) })
	for _, g := range gens {
		com, err := c.readCommit(ctx, *r, g)
		if damage.CantTell(err) {
			return err
		}
		if err != nil {
			continue
		}
		r.ID, r.Order = com.Run, max(r.Order, com.Order)
		if r.Lost != nil {
			r.Owner = com.Owner
		}
		if com.Order > 0 && max(com.Generation.Epoch, com.Position.Epoch, com.Lineage.Last().Epoch) >= r.Claimed {
			r.Unsure = nil
		}
		return nil
	}
	return nil
}

// mend puts run.json anew, from what whoever may write to the run knows of it. One that a newer program wrote, or that the store refuses to
// read, stays. A run goes on without it: what fails here is told.
func (c *Catalog) mend(ctx context.Context, r Run, said format.Run) {
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
