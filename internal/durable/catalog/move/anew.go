package move

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
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// CopyAnew is Copy of what lies in a generation: it is read, each byte checked, and written as the target writes, which may be without
// encryption, or to others. Where the very parts are there already they are read, and written anew if they are damaged.
func (c *Mover) CopyAnew(ctx context.Context, f find.Found, to *Mover) error {
	err := f.Readable()
	if err == nil {
		err = c.keep.Leased(ctx, f, "ckpt cp to "+to.find.URL(), nil, func() error { return c.copyAnew(ctx, f, to) })
	}
	if err != nil {
		return fmt.Errorf("copy generation %v of job %s to %s: %w", f.Generation, f.Job, to.find.URL(), err)
	}
	return nil
}

func (c *Mover) copyAnew(ctx context.Context, f find.Found, to *Mover) error {
	if err := to.write.Root(ctx); err != nil {
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
	a := write.Attempt{Run: f.Run, Generation: f.Generation}
	a.Run.ID = f.Commit.Run
	var err error
	if a.Write, err = to.write.Unused(ctx, a, f.Write); err != nil { // before a damaged copy goes: no key is used again
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
		return to.keep.ReadBackNew(ctx, f.Run, f.Generation)
	}
	return to.keep.ReadBack(ctx, f.Run, f.Generation, read.How{Cold: true}, nil)
}

// anewThere reports whether a copy of a generation is in the target, and whole. Another generation there, or one that is encrypted
// otherwise, is ErrCommitted before a byte is copied. A damaged copy is deleted, once the source was seen to be whole.
func (c *Mover) anewThere(ctx context.Context, f find.Found, to *Mover) (there, mended bool, err error) {
	g, err := to.find.Get(ctx, f.Run, f.Generation)
	switch {
	case errors.Is(err, find.ErrNone):
		return false, false, nil
	case err == nil && !sameAnew(&g, &f, to.keys):
		return false, false,
			fmt.Errorf("step %d is there, and is another one or encrypted otherwise: %w: copy to another root, or delete it there first",
				f.Generation.Step, write.ErrCommitted)
	case err == nil:
		err = to.readThrough(ctx, g)
	}
	if err == nil || !damage.Is(err) || errors.Is(err, format.ErrNewer) {
		return err == nil, false, err
	}
	if _, serr := c.read.VerifyAs(ctx, f, read.How{}, nil); serr != nil {
		return false, false, serr
	}
	to.objects.Note(fmt.Errorf("step %d of job %s was damaged in %s and is written anew: %w", f.Generation.Step, f.Job, to.find.URL(),
		err))
	for _, key := range f.Frozen {
		to.read.Doubt(f.Run, format.ParseName(key))
	}
	return false, true, to.keep.Drop(ctx, f.Run, f.Generation, "it was damaged: a copy takes its place")
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
func (c *Mover) readThrough(ctx context.Context, g find.Found) error {
	faults, err := c.read.VerifyAs(ctx, g, read.How{Cold: true}, nil)
	if err != nil {
		return err
	}
	if err := c.keep.Repair(ctx, g, faults); err != nil {
		return err
	}
	if _, bad, err := c.copied(ctx, g); err != nil || !bad {
		return err
	}
	return c.keep.MarkRead(ctx, g, nil)
}

// writeAnew writes what lies in a generation as the target writes.
func (c *Mover) writeAnew(ctx context.Context, f find.Found, to *Mover, a write.Attempt) error {
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
	if said.KeptFiles, err = to.write.Carried(ctx, f.Run); err != nil {
		return err
	}
	com, b, err := to.write.PutIndex(ctx, a, write.Fleet{Cluster: f.Cluster}, said, format.NewIndex(f.Job, f.Commit.Run, f.Generation,
		a.Write, files,
		layouts))
	if err != nil {
		return err
	}
	there, err := to.objects.PutOnce(ctx, a.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation}), b)
	if there != nil {
		return fmt.Errorf("step %d is there: %w: copy to another root, or delete it there first", f.Generation.Step, write.ErrCommitted)
	}
	if err == nil {
		to.hints.Hint(ctx, a.Run, com, b)
	}
	return err
}

// layoutsOf reads the layouts of a generation's groups: the target may be encrypted to others.
func (c *Mover) layoutsOf(ctx context.Context, f find.Found) (map[uint32]map[string]format.Shard, error) {
	var files []format.Written
	for _, file := range f.Index.Files {
		if file.Twin == "" {
			continue // no frozen part lies in it
		}
		o, _, err := c.read.Object(ctx, f.Run, file, file.Key)
		if err != nil {
			if o, _, err = c.read.Object(ctx, f.Run, file, file.Twin); err != nil {
				return nil, err
			}
			file.Key, file.Twin = file.Twin, ""
		}
		files = append(files, format.Written{File: file, Object: o})
	}
	return c.read.Layouts(ctx, f.Run, files)
}

// copyFileAnew writes the parts of a file as one of the target.
func (c *Mover) copyFileAnew(ctx context.Context, f find.Found, i int, to *Mover, a write.Attempt) (w format.Written, err error) {
	var parts []write.Part
	for _, at := range f.Index.Parts {
		if at.File != i {
			continue
		}
		rd, err := c.read.Open(ctx, f, at.Part)
		if err != nil {
			return w, err
		}
		defer rd.Close()
		parts = append(parts, write.Part{Manifest: rd.Manifest(), Regions: rd.Regions(), Read: rd.ReadChunk})
	}
	if n := format.ParseName(f.Index.Files[i].Key); n.Kind == format.ShardKind {
		return to.write.WriteObject(ctx, a, n.Shard, parts...)
	}
	return to.write.WriteFrozen(ctx, a.Run, parts[0])
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
