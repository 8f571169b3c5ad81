package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// copyLease is how long a copy may hold its source.
const copyLease = 24 * time.Hour

// Copy takes a generation to another store, under the same names: files, index, COMMIT last. One that is there already is no error. The
// source keeps it meanwhile, where it can be written to.
func (c *Catalog) Copy(ctx context.Context, f Found, to *Catalog) error {
	if err := c.copy(ctx, f, to); err != nil {
		return fmt.Errorf("copy generation %v of job %s to %s: %w", f.Generation, f.Job, to.URL(), err)
	}
	return nil
}

func (c *Catalog) copy(ctx context.Context, f Found, to *Catalog) (err error) {
	if f.old != nil {
		return errors.New("a generation of the former layout: Old.Copy takes it")
	}
	end, lerr := c.Lease(ctx, f.Run, f.Generation, "ckpt cp to "+to.URL(), copyLease)
	if lerr == nil {
		defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	} else if errors.Is(lerr, ErrNone) {
		return lerr // being deleted; a store that refuses the pin is read all the same
	}
	if err := to.root(ctx); err != nil {
		return err
	}
	if err := c.copyWords(ctx, f, to); err != nil {
		return err
	}
	for _, file := range f.Index.Files {
		keys := []string{file.Key}
		if file.Twin != "" {
			keys = append(keys, file.Twin)
		}
		for _, key := range keys {
			if err := c.copyFile(ctx, f, file, key, to); err != nil {
				return err
			}
		}
	}
	xb, _, err := c.get(ctx, f.Run.Under(f.Commit.Index.Key))
	if err != nil {
		return err
	}
	if _, err := format.ParseIndex(xb, &f.Commit); err != nil {
		return err
	}
	if _, err := to.putOnce(ctx, f.Run.Under(f.Commit.Index.Key), xb); err != nil {
		return err
	}
	key := f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation})
	b, _, err := c.get(ctx, key)
	if err != nil {
		return err
	}
	there, err := to.putOnce(ctx, key, b)
	if there != nil {
		if other, perr := format.ParseCommit(there, f.Run.Place, f.Commit.Run, f.Generation); perr == nil && other.Same(&f.Commit) {
			return nil
		}
		return fmt.Errorf("%s: %w", key, ErrCommitted)
	}
	if err != nil {
		return err
	}
	to.hint(ctx, f.Run, &f.Commit, b)
	return nil
}

// copyFile takes one file, from its twin where it is bad.
func (c *Catalog) copyFile(ctx context.Context, f Found, file format.File, key string, to *Catalog) error {
	full := f.Run.Under(key)
	if err := to.whole(ctx, full, file); err == nil {
		return nil
	} else if !errors.Is(err, store.ErrAbsent) && !errors.Is(err, store.ErrCorrupt) {
		return err
	} else if errors.Is(err, store.ErrCorrupt) {
		if format.ParseName(key).Kind != format.SharedKind {
			return err // nobody else has this name: the target is damaged, and no copy's to mend
		}
		if err := to.remove(ctx, full); err != nil {
			return err
		}
	}
	err := c.transfer(ctx, full, to, full, file)
	if err == nil || file.Twin == "" {
		return err
	}
	other := file.Twin
	if key == other {
		other = file.Key
	}
	if terr := c.transfer(ctx, f.Run.Under(other), to, full, file); terr != nil {
		return errors.Join(err, terr)
	}
	return nil
}

// copyWords takes what a run says of itself and its claims. Those that are there already stay.
func (c *Catalog) copyWords(ctx context.Context, f Found, to *Catalog) error {
	keys := []string{f.Run.Under(format.RunKey)}
	epochs, err := c.epochs(ctx, f.Run.Place)
	if err != nil {
		return err
	}
	for _, e := range epochs {
		keys = append(keys, f.Run.Key(format.Name{Kind: format.ClaimKind, Epoch: e}))
	}
	for _, key := range keys {
		b, _, err := c.get(ctx, key)
		if errors.Is(err, store.ErrAbsent) {
			continue
		}
		if err != nil {
			return err
		}
		if there, err := to.putOnce(ctx, key, b); err != nil && there == nil {
			return err
		}
	}
	return nil
}

// importOld writes a generation of a directory of the former layout as one of this.
func importOld(ctx context.Context, o *Old, f Found, to *Catalog) error {
	r, err := to.Begin(ctx, format.Run{Job: f.Job, ID: f.Commit.Run, Owner: f.Owner, Began: f.At, From: o.URL()})
	if err != nil {
		return err
	}
	if there, err := to.Get(ctx, r, f.Generation); err == nil && sameParts(there.Index, f.Index) {
		return nil
	}
	a := Attempt{Run: r, Generation: f.Generation}
	if a.Write, err = to.unused(ctx, a, f.Write); err != nil {
		return err
	}
	fleet := Fleet{f.Cluster, "copied", f.Position.Epoch}
	if err := to.Claim(ctx, r, fleet); err != nil {
		return err
	}
	var files []format.Written
	var private []Part
	roots := make(map[replica.Part]replica.Digest)
	for _, at := range f.Index.Parts {
		sh, err := o.OpenShard(ctx, f, at.Part)
		if err != nil {
			return err
		}
		defer sh.Close()
		p := Part{sh.Manifest(), sh.Regions(), sh.ReadChunk}
		var w format.Written
		switch at.Part.Kind {
		case replica.PrivatePart:
			roots[at.Part] = at.Root
			if private = append(private, p); len(private) < importPacked {
				continue
			}
			w, err = to.WriteObject(ctx, a, packedName(private), private...)
			private = nil
		case replica.ReplicatedPart:
			roots[at.Part] = at.Root
			w, err = to.WriteGroup(ctx, a, p)
		case replica.FrozenPart:
			w, err = to.WriteFrozen(ctx, r, p)
		}
		if err != nil {
			return err
		}
		files = append(files, w)
	}
	if len(private) > 0 {
		w, err := to.WriteObject(ctx, a, packedName(private), private...)
		if err != nil {
			return err
		}
		files = append(files, w)
	}
	_, err = to.Commit(ctx, a, fleet, f.Commit, roots, files)
	return err
}

// sameParts tells whether two generations have the same parts, by their roots.
func sameParts(a, b *format.Index) bool {
	roots := func(x *format.Index) map[replica.Part]replica.Digest {
		m := make(map[replica.Part]replica.Digest)
		for _, at := range x.Parts {
			m[at.Part] = at.Root
		}
		return m
	}
	return maps.Equal(roots(a), roots(b))
}

// unused is a number of a write, from least on, of which no object lies in a generation: what a copy that broke off left stays its own.
func (c *Catalog) unused(ctx context.Context, a Attempt, least uint64) (uint64, error) {
	prefix := a.Run.Under(format.StepName(a.Generation)) + "/"
	err := c.list(ctx, prefix, "", func(info store.Info) error {
		least = max(least, format.ParseName(strings.TrimPrefix(info.Key, a.Run.Prefix())).Write+1)
		return nil
	})
	return least, err
}

// importPacked is how many private parts are packed in one object where nobody says which node they were on.
const importPacked = 8

func packedName(parts []Part) string { return fmt.Sprintf("private-%d", parts[0].Manifest.Part.Index) }
