package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Copy takes a generation to another store, under the same names: files, index, COMMIT last. One that is there already is no error; mended:
// files of it were damaged or missing, and were written anew. The source keeps the generation meanwhile, where it can be written to.
func (c *Catalog) Copy(ctx context.Context, f find.Found, to *Catalog) (mended bool, err error) {
	if mended, err = c.copy(ctx, f, to); err != nil {
		return mended, fmt.Errorf("copy generation %v of job %s to %s: %w", f.Generation, f.Job, to.Finder.URL(), err)
	}
	return mended, nil
}

func (c *Catalog) copy(ctx context.Context, f find.Found, to *Catalog) (mended bool, err error) {
	err = c.Leased(ctx, f, "ckpt cp to "+to.Finder.URL(), nil, func() error {
		mended, err = c.copyAll(ctx, f, to)
		return err
	})
	return mended, err
}

func (c *Catalog) copyAll(ctx context.Context, f find.Found, to *Catalog) (mended bool, err error) {
	if err := to.root(ctx); err != nil {
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
		err = to.ReadBack(ctx, f.Run, f.Generation, read.How{Cold: true}, nil)
	case !there:
		err = to.ReadBackNew(ctx, f.Run, f.Generation)
	}
	return mended, err
}

// finish finishes a deletion of a generation that was broken off: its entry would have the copy deleted by whoever finds it. If somebody
// deletes the generation at this very moment, he may take files of the copy, which is read for that.
func (c *Catalog) finish(ctx context.Context, f find.Found) (finished bool, err error) {
	if gone, err := c.Finder.Deleting(ctx, f.Run, f.Generation); err != nil || !gone {
		return false, err
	}
	err = c.delete(ctx, f.Run, f.Generation, "a deletion was broken off")
	if errors.Is(err, ErrPinned) {
		return false,
			fmt.Errorf("a deletion of it was broken off there, and cannot be finished: %w: unpin it there, or run `replicad ckpt prune %s/%s`, and copy again", err, c.Finder.URL(), f.Job)
	}
	return err == nil, err
}

// copied reports whether a COMMIT of a generation is there, and whether a record says that its newest whole read failed.
func (c *Catalog) copied(ctx context.Context, f find.Found) (there, bad bool, err error) {
	_, err = c.objects.Stat(ctx, f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation}))
	if err != nil && !errors.Is(err, store.ErrAbsent) {
		return false, false, err
	}
	there = err == nil
	n, ok, err := c.Finder.NewestRead(ctx, f.Run, f.Generation)
	return there, ok && !n.Good, err
}

// ReadBack reads a generation whole, and records what that found: nil, or damage. After any other error nothing is known of it, and nothing
// recorded.
func (c *Catalog) ReadBack(ctx context.Context, r find.Run, g replica.Generation, how read.How, progress func(read, of uint64)) error {
	f, err := c.Finder.Get(ctx, r, g)
	if err != nil {
		return err
	}
	_, err = c.Reader.VerifyAs(ctx, f, how, progress)
	if err != nil && !damage.Is(err) {
		return err
	}
	return errors.Join(err, c.MarkRead(ctx, f, err))
}

// copyCommit puts the COMMIT, in place of one that cannot be read.
func (c *Catalog) copyCommit(ctx context.Context, f find.Found, to *Catalog) (wrote bool, err error) {
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
		return false, fmt.Errorf("%s: %w", key, ErrCommitted)
	case wrote:
		to.hint(ctx, f.Run, &f.Commit, b)
	}
	return wrote, nil
}

// copyFile takes one file, from its twin where it is bad. deep: what the store says of the target is not believed, it is read. A target
// that is damaged is written anew once the source was seen to be whole.
func (c *Catalog) copyFile(ctx context.Context, f find.Found, file format.File, key string, to *Catalog, deep bool) (wrote bool,
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
func (c *Catalog) sound(ctx context.Context, f find.Found, file format.File) error {
	err := c.objects.Whole(ctx, f.Run.Under(file.Key), file, true)
	if err != nil && file.Twin != "" {
		err = c.objects.Whole(ctx, f.Run.Under(file.Twin), file, true)
	}
	return err
}

// copyWords takes what a run says of itself, and its claims up to the generation's epoch. Those that are there already stay. What cannot be
// read is not spread: in place of such a run.json goes what the COMMIT says.
func (c *Catalog) copyWords(ctx context.Context, f find.Found, to *Catalog) error {
	keys, err := c.claimsToCopy(ctx, f, to)
	if err != nil {
		return err
	}
	said, err := c.Finder.Words(ctx, f.Run.Place)
	if damage.CantTell(err) {
		return err
	}
	if err != nil {
		said = &format.Run{Job: f.Job, ID: f.Commit.Run, Owner: f.Owner, Order: max(f.Run.Order, f.Order, 1), Began: int64(f.Began())}
		if f.From != nil {
			said.From = f.From.String()
		}
	}
	said.Program = to.unsaid(said.Program)
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
func (c *Catalog) claimsToCopy(ctx context.Context, f find.Found, to *Catalog) (keys []string, err error) {
	r := f.Run
	r.ID = f.Commit.Run
	here, err := c.Finder.Claims(ctx, r)
	if err != nil {
		return nil, err
	}
	there, err := to.Finder.Claims(ctx, r)
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

// CopyAnew is Copy of what lies in a generation: it is read, each byte checked, and written as the target writes, which may be without
// encryption, or to others. Where the very parts are there already they are read, and written anew if they are damaged.
func (c *Catalog) CopyAnew(ctx context.Context, f find.Found, to *Catalog) error {
	err := f.Readable()
	if err == nil {
		err = c.Leased(ctx, f, "ckpt cp to "+to.Finder.URL(), nil, func() error { return c.copyAnew(ctx, f, to) })
	}
	if err != nil {
		return fmt.Errorf("copy generation %v of job %s to %s: %w", f.Generation, f.Job, to.Finder.URL(), err)
	}
	return nil
}

func (c *Catalog) copyAnew(ctx context.Context, f find.Found, to *Catalog) error {
	if err := to.root(ctx); err != nil {
		return err
	}
	if _, err := to.finish(ctx, f); err != nil {
		return err
	}
	if err := c.copyWords(ctx, f, to); err != nil {
		return err
	}
	if err := c.copyKept(ctx, f, to, true); err != nil {
		return err
	}
	a := Attempt{Run: f.Run, Generation: f.Generation}
	a.Run.ID = f.Commit.Run
	var err error
	if a.Write, err = to.Unused(ctx, a, f.Write); err != nil { // before a damaged copy goes: no key is used again
		return err
	}
	there, mended, err := c.anewThere(ctx, f, to)
	if err != nil || there {
		return err
	}
	if err := c.writeAnew(ctx, f, to, a); err != nil {
		return err
	}
	if !mended {
		return to.ReadBackNew(ctx, f.Run, f.Generation)
	}
	return to.ReadBack(ctx, f.Run, f.Generation, read.How{Cold: true}, nil)
}

// anewThere reports whether a copy of a generation is in the target, and whole. Another generation there, or one that is encrypted
// otherwise, is ErrCommitted before a byte is copied. A damaged copy is deleted, once the source was seen to be whole.
func (c *Catalog) anewThere(ctx context.Context, f find.Found, to *Catalog) (there, mended bool, err error) {
	g, err := to.Finder.Get(ctx, f.Run, f.Generation)
	switch {
	case errors.Is(err, find.ErrNone):
		return false, false, nil
	case err == nil && !sameAnew(&g, &f, to.keys):
		return false, false,
			fmt.Errorf("step %d is there, and is another one or encrypted otherwise: %w: copy to another root, or delete it there first",
				f.Generation.Step, ErrCommitted)
	case err == nil:
		err = to.readThrough(ctx, g)
	}
	if err == nil || !damage.Is(err) || errors.Is(err, format.ErrNewer) {
		return err == nil, false, err
	}
	if _, serr := c.Reader.VerifyAs(ctx, f, read.How{}, nil); serr != nil {
		return false, false, serr
	}
	to.objects.Note(fmt.Errorf("step %d of job %s was damaged in %s and is written anew: %w", f.Generation.Step, f.Job, to.Finder.URL(),
		err))
	for _, key := range f.Frozen {
		to.Reader.Doubt(f.Run, format.ParseName(key))
	}
	return false, true, to.delete(ctx, f.Run, f.Generation, "it was damaged: a copy takes its place")
}

// sameAnew reports whether a generation is a copy of another, encrypted to those of keys. Without a key of theirs COMMIT has to do: a copy
// keeps when the generation was written, and a run writes a generation once.
func sameAnew(g, f *find.Found, keys *sealed.Keys) bool {
	if keys.Seals() != (g.Sealed != nil) {
		return false
	}
	if g.Sealed != nil && !slices.Equal(slices.Sorted(slices.Values(g.Sealed.Recipients)),
		slices.Sorted(slices.Values(keys.Recipients()))) {
		return false
	}
	if g.Readable() != nil {
		return g.At == f.At && g.Position == f.Position && g.Files == f.Files
	}
	return sameParts(g.Index, f.Index)
}

// readThrough reads a generation whole. Twins that are bad are written anew, and a record of a read that failed does not outlive one that
// did not.
func (c *Catalog) readThrough(ctx context.Context, g find.Found) error {
	faults, err := c.Reader.VerifyAs(ctx, g, read.How{Cold: true}, nil)
	if err != nil {
		return err
	}
	if err := c.Repair(ctx, g, faults); err != nil {
		return err
	}
	if _, bad, err := c.copied(ctx, g); err != nil || !bad {
		return err
	}
	return c.MarkRead(ctx, g, nil)
}

// writeAnew writes what lies in a generation as the target writes.
func (c *Catalog) writeAnew(ctx context.Context, f find.Found, to *Catalog, a Attempt) error {
	var err error
	files := make([]format.Written, len(f.Index.Files))
	for i := range f.Index.Files {
		if files[i], err = c.copyFileAnew(ctx, f, i, to, a); err != nil {
			return err
		}
	}
	layouts, err := c.layoutsOf(ctx, f)
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b format.Written) int { return strings.Compare(a.File.Key, b.File.Key) })
	said := f.Commit
	if said.KeptFiles, err = to.carried(ctx, f.Run); err != nil {
		return err
	}
	com, b, err := to.putIndex(ctx, a, Fleet{Cluster: f.Cluster}, said, format.NewIndex(f.Job, f.Commit.Run, f.Generation, a.Write, files,
		layouts))
	if err != nil {
		return err
	}
	there, err := to.objects.PutOnce(ctx, a.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation}), b)
	if there != nil {
		return fmt.Errorf("step %d is there: %w: copy to another root, or delete it there first", f.Generation.Step, ErrCommitted)
	}
	if err == nil {
		to.hint(ctx, a.Run, com, b)
	}
	return err
}

// layoutsOf reads the layouts of a generation's groups: the target may be encrypted to others.
func (c *Catalog) layoutsOf(ctx context.Context, f find.Found) (map[uint32]map[string]format.Shard, error) {
	var files []format.Written
	for _, file := range f.Index.Files {
		if file.Twin == "" {
			continue // no frozen part lies in it
		}
		o, _, err := c.Reader.Object(ctx, f.Run, file, file.Key)
		if err != nil {
			if o, _, err = c.Reader.Object(ctx, f.Run, file, file.Twin); err != nil {
				return nil, err
			}
			file.Key, file.Twin = file.Twin, ""
		}
		files = append(files, format.Written{File: file, Object: o})
	}
	return c.Reader.Layouts(ctx, f.Run, files)
}

// copyFileAnew writes the parts of a file as one of the target.
func (c *Catalog) copyFileAnew(ctx context.Context, f find.Found, i int, to *Catalog, a Attempt) (w format.Written, err error) {
	var parts []Part
	for _, at := range f.Index.Parts {
		if at.File != i {
			continue
		}
		rd, err := c.Reader.Open(ctx, f, at.Part)
		if err != nil {
			return w, err
		}
		defer rd.Close()
		parts = append(parts, Part{rd.Manifest(), rd.Regions(), rd.ReadChunk})
	}
	if n := format.ParseName(f.Index.Files[i].Key); n.Kind == format.ShardKind {
		return to.WriteObject(ctx, a, n.Shard, parts...)
	}
	return to.WriteFrozen(ctx, a.Run, parts[0])
}

// sameParts reports whether two generations have the same parts, by their roots.
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

// Unused is a number of a write, from least on, of which no object lies in a generation: what a copy that broke off left stays its own.
func (c *Catalog) Unused(ctx context.Context, a Attempt, least uint64) (uint64, error) {
	prefix := a.Run.Under(format.StepName(a.Generation)) + "/"
	err := c.objects.List(ctx, prefix, "", func(info store.Info) error {
		least = max(least, format.ParseName(strings.TrimPrefix(info.Key, a.Run.Prefix())).Write+1)
		return nil
	})
	return least, err
}
