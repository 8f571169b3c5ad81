package find

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

// Run is one run of a job's name.
type Run struct {
	format.Place
	ID replica.JobID // zero where none of run.json, claims and commits can be read
	// Order is the run's among those of the name: whoever begins or takes up a run makes it the last.
	Order uint64
	Owner uint32
	// Claimed is its newest epoch that a fleet has claimed, and Cluster that of the fleet; zero: nobody has, or it was not looked at.
	Claimed replica.Epoch
	Cluster replica.ClusterID
	// Lost is why run.json cannot be read; nil: it can.
	Lost error
	// Unsure is why the newest claim cannot be read, where no COMMIT says what it said: the run may come behind others of its name. Nil:
	// nothing is open.
	Unsure error
}

// A run says who it is in run.json, in each claim and in each COMMIT: its UUID, and its place in the order of the runs of its name. Any one
// of them does. The names of claims say which epochs are taken, whatever lies in them. What cannot be read is remembered, and named where
// it decides something.

// run reads what a run says of itself, and its newest claim. claims are their names where they were listed before.
func (c *Finder) run(ctx context.Context, p format.Place, claims []format.Name) (r Run, err error) {
	r.Place = p
	said, err := c.Words(ctx, p)
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

// Words is a run's run.json.
func (c *Finder) Words(ctx context.Context, p format.Place) (*format.Run, error) {
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
func (r *Run) byClaims(ctx context.Context, c *Finder, claims []format.Name) error {
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
func (r *Run) byCommits(ctx context.Context, c *Finder) error {
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
		com, err := c.ReadCommit(ctx, *r, g)
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

// ReadCommit reads the COMMIT of a generation.
func (c *Finder) ReadCommit(ctx context.Context, r Run, g replica.Generation) (*format.Commit, error) {
	key := r.Key(format.Name{Kind: format.CommitKind, Generation: g})
	b, _, err := c.objects.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	com, err := format.ParseCommit(b, r.Place, r.ID, g)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return com, nil
}

// after is the key behind which the next run begins: "0" comes after "/".
func after(p format.Place) string { return p.Job + "/" + p.Run + "0" }

// Split takes the key of a run's object apart.
func Split(key string) (p format.Place, name string, ok bool) {
	job, rest, _ := strings.Cut(key, "/")
	run, name, ok := strings.Cut(rest, "/")
	p = format.Place{Job: job, Run: run}
	return p, name, ok && p.Check() == nil
}

// NewestRead is the newest record of a whole read of a generation.
func (c *Finder) NewestRead(ctx context.Context, r Run, g replica.Generation) (newest format.Name, ok bool, err error) {
	err = c.objects.List(ctx, r.Under(format.ReadPrefix+format.StepName(g))+".", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key,
			r.Prefix())); n.Kind == format.ReadKind && n.Generation == g && (!ok || n.Outweighs(newest)) {
			newest, ok = n, true
		}
		return nil
	})
	return newest, ok, err
}
