// Package move makes generations of generations: copies in another store, as they lie or written anew, and ones without optimizer state in
// the place of whole ones.
package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/hints"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
)

// Mover copies and strips the generations of one root.
type Mover struct {
	objects *objects.Writer
	find    *find.Finder
	read    *read.Reader
	hints   *hints.Hints
	write   *write.Writer
	keep    *keep.Keeper
	keys    *sealed.Keys
}

// New makes a mover.
func New(o *objects.Writer, f *find.Finder, r *read.Reader, h *hints.Hints, w *write.Writer, k *keep.Keeper, keys *sealed.Keys) *Mover {
	return &Mover{objects: o, find: f, read: r, hints: h, write: w, keep: k, keys: keys}
}

// Copy takes a generation to another store, under the same names: files, index, COMMIT last. One that is there already is no error; mended:
// files of it were damaged or missing, and were written anew. The source keeps the generation meanwhile, where it can be written to.
func (c *Mover) Copy(ctx context.Context, f find.Found, to *Mover) (mended bool, err error) {
	if mended, err = c.copy(ctx, f, to); err != nil {
		return mended, fmt.Errorf("copy generation %v of job %s to %s: %w", f.Generation, f.Job, to.find.URL(), err)
	}
	return mended, nil
}

func (c *Mover) copy(ctx context.Context, f find.Found, to *Mover) (mended bool, err error) {
	err = c.keep.Leased(ctx, f, "ckpt cp to "+to.find.URL(), nil, func() error {
		mended, err = c.copyAll(ctx, f, to)
		return err
	})
	return mended, err
}

func (c *Mover) copyAll(ctx context.Context, f find.Found, to *Mover) (mended bool, err error) {
	if err := to.write.Root(ctx); err != nil {
		return false, err
	}
	finished, err := to.finish(ctx, f)
	if err != nil {
		return false, err
	}
	if err := c.copyWords(ctx, f, to); err != nil {
		return false, err
	}
	if err := c.copyKept(ctx, f, to, false); err != nil {
		return false, err
	}
	there, bad, err := to.copied(ctx, f)
	if err != nil {
		return false, err
	}
	for _, file := range f.Index.Files {
		keys := []string{file.Key}
		if file.Twin != "" {
			keys = append(keys, file.Twin)
		}
		for _, key := range keys {
			wrote, err := c.copyFile(ctx, f, file, key, to, bad)
			if err != nil {
				return false, err
			}
			mended = mended || wrote && there
		}
	}
	xb, _, err := c.objects.Get(ctx, f.Run.Under(f.Commit.Index.Key))
	if err != nil {
		return false, err
	}
	if err := format.CheckIndex(xb, &f.Commit); err != nil {
		return false, err
	}
	wrote, err := to.objects.Replace(ctx, f.Run.Under(f.Commit.Index.Key), xb, func(there []byte) bool {
		return format.CheckIndex(there, &f.Commit) == nil
	})
	if err != nil {
		return false, err
	}
	mended = mended || wrote && there
	wrote, err = c.copyCommit(ctx, f, to)
	if err != nil {
		return false, err
	}
	mended = mended || wrote && there
	switch {
	case bad || mended || finished:
		err = to.keep.ReadBack(ctx, f.Run, f.Generation, read.How{Cold: true}, nil)
	case !there:
		err = to.keep.ReadBackNew(ctx, f.Run, f.Generation)
	}
	return mended, err
}

// finish finishes a deletion of a generation that was broken off: its entry would have the copy deleted by whoever finds it. If somebody
// deletes the generation at this very moment, he may take files of the copy, which is read for that.
func (c *Mover) finish(ctx context.Context, f find.Found) (finished bool, err error) {
	if gone, err := c.find.Deleting(ctx, f.Run, f.Generation); err != nil || !gone {
		return false, err
	}
	err = c.keep.Drop(ctx, f.Run, f.Generation, "a deletion was broken off")
	if errors.Is(err, keep.ErrPinned) {
		return false,
			fmt.Errorf("a deletion of it was broken off there, and cannot be finished: %w: unpin it there, or run `replicad ckpt prune "+
				"%s/%s`, and copy again", err, c.find.URL(), f.Job)
	}
	return err == nil, err
}

// copied reports whether a COMMIT of a generation is there, and whether a record says that its newest whole read failed.
func (c *Mover) copied(ctx context.Context, f find.Found) (there, bad bool, err error) {
	_, err = c.objects.Stat(ctx, f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation}))
	if err != nil && !errors.Is(err, store.ErrAbsent) {
		return false, false, err
	}
	there = err == nil
	n, ok, err := c.find.NewestRead(ctx, f.Run, f.Generation)
	return there, ok && !n.Good, err
}

// copyCommit puts the COMMIT, in place of one that cannot be read.
func (c *Mover) copyCommit(ctx context.Context, f find.Found, to *Mover) (wrote bool, err error) {
	key := f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation})
	b, _, err := c.objects.Get(ctx, key)
	if err != nil {
		return false, err
	}
	other := false
	wrote, err = to.objects.Replace(ctx, key, b, func(there []byte) bool {
		com, err := format.ParseCommit(there, f.Run.Place, f.Commit.Run, f.Generation)
		other = err == nil && !com.Same(&f.Commit)
		return err == nil || !errors.Is(err, format.ErrCorrupt) // a newer program's is no damage
	})
	switch {
	case err != nil:
		return false, err
	case other:
		return false, fmt.Errorf("%s: %w", key, write.ErrCommitted)
	case wrote:
		to.hints.Hint(ctx, f.Run, &f.Commit, b)
	}
	return wrote, nil
}

// copyFile takes one file, from its twin where it is bad. deep: what the store says of the target is not believed, it is read. A target
// that is damaged is written anew once the source was seen to be whole.
func (c *Mover) copyFile(ctx context.Context, f find.Found, file format.File, key string, to *Mover, deep bool) (wrote bool,
	err error) {
	full := f.Run.Under(key)
	err = to.objects.Whole(ctx, full, file, deep)
	if errors.Is(err, store.ErrCorrupt) {
		err = to.objects.Whole(ctx, full, file, deep) // one read may be torn
	}
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, store.ErrCorrupt):
		if err := c.sound(ctx, f, file); err != nil {
			return false, err
		}
		if err := to.objects.Remove(ctx, full); err != nil {
			return false, err
		}
	case !errors.Is(err, store.ErrAbsent):
		return false, err
	}
	err = c.objects.Transfer(ctx, full, to.objects, full, file)
	if err == nil || file.Twin == "" {
		return true, err
	}
	other := file.Twin
	if key == other {
		other = file.Key
	}
	if terr := c.objects.Transfer(ctx, f.Run.Under(other), to.objects, full, file); terr != nil {
		return true, errors.Join(err, terr)
	}
	return true, nil
}

// sound reports whether a file, or its twin, can be read whole.
func (c *Mover) sound(ctx context.Context, f find.Found, file format.File) error {
	err := c.objects.Whole(ctx, f.Run.Under(file.Key), file, true)
	if err != nil && file.Twin != "" {
		err = c.objects.Whole(ctx, f.Run.Under(file.Twin), file, true)
	}
	return err
}

// copyWords takes what a run says of itself, and its claims up to the generation's epoch. Those that are there already stay. What cannot be
// read is not spread: in place of such a run.json goes what the COMMIT says.
func (c *Mover) copyWords(ctx context.Context, f find.Found, to *Mover) error {
	keys, err := c.claimsToCopy(ctx, f, to)
	if err != nil {
		return err
	}
	said, err := c.find.Words(ctx, f.Run.Place)
	if damage.CantTell(err) {
		return err
	}
	if err != nil {
		said = &format.Run{Job: f.Job, ID: f.Commit.Run, Owner: f.Owner, Order: max(f.Run.Order, f.Order, 1), Began: int64(f.Began())}
		if f.From != nil {
			said.From = f.From.String()
		}
	}
	said.Program = to.write.Unsaid(said.Program)
	b, err := said.Seal()
	if err != nil {
		return err
	}
	_, err = to.objects.Replace(ctx, f.Run.Under(format.RunKey), b, func(there []byte) bool {
		_, err := format.ParseRun(there, f.Run.Place)
		return !errors.Is(err, format.ErrCorrupt)
	})
	if err != nil {
		return err
	}
	for _, key := range keys {
		b, _, err := c.objects.Get(ctx, key)
		if errors.Is(err, store.ErrAbsent) {
			continue
		}
		if err != nil {
			return err
		}
		if there, err := to.objects.PutOnce(ctx, key, b); err != nil && there == nil {
			return err
		}
	}
	return nil
}

// claimsToCopy lists the claims that go with a generation. Where a fleet has claimed an epoch in the target alone there are none: one of
// the source's might take the run from it.
func (c *Mover) claimsToCopy(ctx context.Context, f find.Found, to *Mover) (keys []string, err error) {
	r := f.Run
	r.ID = f.Commit.Run
	here, err := c.find.Claims(ctx, r)
	if err != nil {
		return nil, err
	}
	there, err := to.find.Claims(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, own := range there {
		copied := slices.ContainsFunc(here, func(h find.Holding) bool {
			return h.Key == own.Key && h.Said != nil && own.Said != nil && *h.Said == *own.Said
		})
		if !copied {
			return nil, nil
		}
	}
	for _, h := range here {
		if h.Said != nil && h.Epoch <= max(f.Generation.Epoch, f.Position.Epoch) {
			keys = append(keys, h.Key)
		}
	}
	return keys, nil
}

// copyKept takes the files that a generation's run carries along. What is wrong with them, here or there, is told, and the state is copied
// all the same. anew: they are written as the target writes, which may be encrypted to others or to nobody.
func (c *Mover) copyKept(ctx context.Context, f find.Found, to *Mover, anew bool) error {
	if f.KeptFiles == nil {
		return nil
	}
	there, err := to.write.KeptFiles(ctx, f.Run)
	switch {
	case err == nil && (there == *f.KeptFiles || anew): // a run has one tar: what is encrypted once more has another digest
		return nil
	case err == nil:
		to.objects.Note(fmt.Errorf("run %s of job %s carries other files in %s (SHA-256 %s) than in %s (%s): they stay as they are",
			f.Run.Run, f.Job, to.find.URL(), there.SHA256, c.find.URL(), f.KeptFiles.SHA256))
		return nil
	case damage.Fatal(err) != nil:
		return err
	}
	b, rerr := c.read.KeptBytes(ctx, f)
	if rerr == nil && anew {
		if b, rerr = c.read.OpenTar(b); rerr == nil {
			b, rerr = to.write.SealTar(b)
		}
	}
	if rerr != nil {
		if !damage.Is(rerr) {
			return rerr
		}
		to.objects.Note(fmt.Errorf("the files kept with run %s of job %s are not copied: %w", f.Run.Run, f.Job, rerr))
		return nil
	}
	if !errors.Is(err, store.ErrAbsent) { // it is damaged there
		if err := to.objects.Remove(ctx, f.Run.Under(format.KeptKey)); err != nil {
			return err
		}
	}
	other, err := to.objects.PutOnce(ctx, f.Run.Under(format.KeptKey), b)
	if other != nil { // another copy was first
		return nil
	}
	return err
}
