package find

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// files reads the index of a generation and tells whether every file is there with its size.
func (c *Finder) files(ctx context.Context, f *Found) error {
	x, locked, err := c.readIndex(ctx, *f)
	if err != nil {
		return err
	}
	sizes := make(map[string]store.Info)
	prefix := f.Run.Prefix()
	each := func(info store.Info) error {
		sizes[strings.TrimPrefix(info.Key, prefix)] = info
		return nil
	}
	if err := c.objects.List(ctx, f.Run.Under(format.StepName(f.Generation))+"/", "", each); err != nil {
		return err
	}
	if len(f.Frozen) > 0 {
		if err := c.objects.List(ctx, prefix+format.FrozenPrefix, "", each); err != nil {
			return err
		}
	}
	newest := sizes[f.Commit.Index.Key].Modified
	for _, file := range x.Files {
		for _, key := range []string{file.Key, file.Twin} {
			if at := sizes[key].Modified; at.After(newest) {
				newest = at
			}
		}
		err := sized(sizes, file.Key, file)
		if err != nil && file.Twin != "" {
			err = sized(sizes, file.Twin, file) // either serves
		}
		if err != nil {
			return err
		}
	}
	f.Index, f.locked, f.newest = x, locked, newest
	return nil
}

func sized(sizes map[string]store.Info, key string, file format.File) error {
	info, ok := sizes[key]
	if !ok {
		return damage.Lying(key, store.ErrAbsent)
	}
	if info.Size != int64(file.Bytes) {
		return damage.Lying(key, fmt.Errorf("%w: %d bytes, the index says %d", store.ErrCorrupt, info.Size, file.Bytes))
	}
	return nil // a checksum of the store's own that is another is a doubt, which who reads it settles
}

// Get finds one generation of a run, whole or not: the error says why not.
func (c *Finder) Get(ctx context.Context, r Run, g replica.Generation) (f Found, err error) {
	com, err := c.ReadCommit(ctx, r, g)
	if err == nil {
		f = Found{Commit: *com, Run: r}
		f.Run.ID = com.Run
		err = c.files(ctx, &f)
	}
	if err != nil {
		return f, fmt.Errorf("generation %v of job %s in %s: %w", g, r.Job, c.URL(), c.OrDeleted(ctx, r, g, err))
	}
	return f, nil
}

// OrDeleted is why a generation could not be read. What was read beside its deletion looks damaged, and is gone: ErrNone.
func (c *Finder) OrDeleted(ctx context.Context, r Run, g replica.Generation, why error) error {
	if damage.Is(why) {
		if err := c.Undisturbed(ctx, r, g); errors.Is(err, ErrNone) {
			return err
		}
	}
	return why
}

// Best is what best.json of a job names: the best by the metric that its daemons keep generations by. It is a hint: the generation may be
// gone.
func (c *Finder) Best(ctx context.Context, job string) (*format.Hint, error) {
	b, _, err := c.objects.Get(ctx, job+"/"+format.BestKey)
	if err != nil {
		return nil, err
	}
	return format.ParseHint(b)
}

// Undisturbed reports whether a generation is committed, and nobody is deleting it.
func (c *Finder) Undisturbed(ctx context.Context, r Run, g replica.Generation) error {
	stat := func(k format.Kind) error {
		_, err := c.objects.Stat(ctx, r.Key(format.Name{Kind: k, Generation: g}))
		return err
	}
	if err := stat(format.TrashKind); err == nil {
		return fmt.Errorf("it is being deleted: %w", ErrNone)
	} else if !errors.Is(err, store.ErrAbsent) {
		return err
	}
	err := stat(format.CommitKind)
	if errors.Is(err, store.ErrAbsent) {
		return fmt.Errorf("it is not committed, or was deleted: %w", ErrNone)
	}
	return err
}

// Deleting reports whether there is an entry that says that a generation is being deleted.
func (c *Finder) Deleting(ctx context.Context, r Run, g replica.Generation) (bool, error) {
	_, err := c.objects.Modified(ctx, r.Key(format.Name{Kind: format.TrashKind, Generation: g}))
	if errors.Is(err, store.ErrAbsent) {
		return false, nil
	}
	return err == nil, err
}
