package write

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// ErrCommitted marks a second, different COMMIT of a generation.
var ErrCommitted = errors.New("already has another commit")

// ErrDeleting marks a generation that somebody began to delete.
var ErrDeleting = errors.New("it is being deleted")

// Commit makes a generation exist, from files that are all written: index, COMMIT, hints. It is the last step, and may be made again: the
// same commit is no error, another is ErrCommitted. roots are those that the job has committed; said is what COMMIT has beside them.
func (c *Writer) Commit(ctx context.Context, a Attempt, fleet Fleet, said format.Commit, roots map[replica.Part]replica.Digest,
	files []format.Written) (*format.Commit, error) {
	return c.CommitThen(ctx, a, fleet, said, roots, files, func() {})
}

// CommitThen is Commit that calls there once the generation exists: hints take as long as the store does, and nobody is to wait for them.
func (c *Writer) CommitThen(ctx context.Context, a Attempt, fleet Fleet, said format.Commit, roots map[replica.Part]replica.Digest,
	files []format.Written, there func()) (*format.Commit, error) {
	com, b, err := c.commit(ctx, a, fleet, said, roots, files)
	if err != nil {
		return nil, fmt.Errorf("commit generation %v of job %s: %w", a.Generation, a.Run.Job, err)
	}
	there()
	c.hints.Hint(ctx, a.Run, com, b)
	return com, nil
}

func (c *Writer) commit(ctx context.Context, a Attempt, fleet Fleet, said format.Commit, roots map[replica.Part]replica.Digest,
	files []format.Written) (com *format.Commit, b []byte, err error) {
	if said.Order, err = c.Owns(ctx, a.Run, fleet); err != nil {
		return nil, nil, err
	}
	// Whoever finds the entry deletes all that is there of the generation.
	if gone, err := c.find.Deleting(ctx, a.Run, a.Generation); err != nil {
		return nil, nil, err
	} else if gone {
		return nil, nil,
			fmt.Errorf("a deletion of it was broken off and is not finished: `replicad ckpt prune %s/%s` finishes it, and so does the "+
				"next sweep: %w", c.find.URL(), a.Run.Job, ErrDeleting)
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b format.Written) int { return cmp.Compare(a.File.Key, b.File.Key) })
	if err := c.objects.EachSmall(ctx, len(files), func(ctx context.Context, i int) error {
		return c.there(ctx, a.Run,
			&files[i])
	}); err != nil {
		return nil, nil, err
	}
	if err := fits(files, roots); err != nil {
		return nil, nil, err
	}
	layouts, err := c.read.Layouts(ctx, a.Run, files)
	if err != nil {
		return nil, nil, err
	}
	if said.KeptFiles, err = c.Carried(ctx, a.Run); err != nil {
		return nil, nil, err
	}
	x := format.NewIndex(a.Run.Job, a.Run.ID, a.Generation, a.Write, files, layouts)
	if com, b, err = c.PutIndex(ctx, a, fleet, said, x); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	there, err := c.objects.PutOnce(ctx, a.Run.Key(format.Name{Kind: format.CommitKind, Generation: a.Generation}), b)
	if there != nil {
		other, perr := format.ParseCommit(there, a.Run.Place, a.Run.ID, a.Generation)
		if perr == nil && !other.Same(com) {
			perr = c.sameRoots(ctx, a.Run, other, roots)
		}
		if perr != nil {
			return nil, nil, errors.Join(ErrCommitted, perr)
		}
		com, b = other, there
	} else if err != nil {
		return nil, nil, err
	}
	return com, b, nil
}

// sameRoots reports whether a COMMIT is of the very parts, in the files of an earlier try. Then that try had come through, and no COMMIT
// names the files of this one.
func (c *Writer) sameRoots(ctx context.Context, r find.Run, com *format.Commit, roots map[replica.Part]replica.Digest) error {
	b, _, err := c.objects.Get(ctx, r.Under(com.Index.Key))
	if err != nil {
		return err
	}
	x, err := c.find.ParseIndex(b, com)
	if err != nil {
		return err
	}
	for p, root := range roots {
		if at, ok := x.Part(p); !ok || at.Root != root {
			return fmt.Errorf("write %d has %v with root %v, the job %v", com.Write, p, at.Root, root)
		}
	}
	return nil
}

// describe fills COMMIT in, for an index and its bytes as they lie in the store. What nobody could read back is refused.
func (c *Writer) describe(a Attempt, fleet Fleet, said format.Commit, x *format.Index, plain, xb []byte) (com *format.Commit, b []byte,
	err error) {
	com = &said
	com.Provenance = c.Unsaid(said.Provenance)
	com.Job, com.Run, com.Generation, com.Write, com.Cluster = a.Run.Job, a.Run.ID, a.Generation, a.Write, fleet.Cluster
	com.Index = format.Ref{Key: format.Name{Kind: format.IndexKind, Generation: a.Generation, Write: a.Write}.String(),
		Bytes: uint64(len(xb)), SHA256: format.Sum(xb)}
	com.Files, com.Bytes, com.Frozen = len(x.Files), 0, nil
	for _, f := range x.Files {
		com.Bytes += f.Bytes
		if f.Twin != "" {
			com.Frozen = append(com.Frozen, f.Key, f.Twin)
		}
	}
	if com.Sealed = nil; c.keys.Seals() {
		com.Sealed = &format.Sealing{Recipients: c.keys.Recipients(), Files: x.Files}
	}
	if com.At == 0 {
		com.At = c.now().UnixMilli()
	}
	if b, err = com.Seal(); err != nil {
		return nil, nil, err
	}
	if _, err := format.ParseIndex(xb, com, func([]byte) ([]byte, error) { return plain, nil }); err != nil {
		return nil, nil, err
	}
	_, err = format.ParseCommit(b, a.Run.Place, a.Run.ID, a.Generation)
	return com, b, err
}

// there looks at a file that somebody wrote: its size, its checksum where the store has one, and its header.
func (c *Writer) there(ctx context.Context, r find.Run, w *format.Written) error {
	n := format.ParseName(w.File.Key)
	if is := w.File.Sealed > 0; is != c.keys.Seals() || is && !n.SealedFor(c.keys.Tag()) {
		return fmt.Errorf("%s is written %s, this daemon writes %s: durable_recipients is to be the same on all nodes", w.File.Key,
			sealedTo(is, n.Seal[:min(len(n.Seal), 8)]), sealedTo(c.keys.Seals(), c.keys.Tag()))
	}
	keys := []string{w.File.Key}
	if w.File.Twin != "" {
		keys = append(keys, w.File.Twin)
	}
	for _, key := range keys {
		info, err := c.objects.Stat(ctx, r.Under(key))
		if err != nil {
			c.read.Doubt(r, format.ParseName(key))
			return err
		}
		if info.Size != int64(w.File.Bytes) {
			err = fmt.Errorf("%s: %w: %d bytes; its writer said %d", key, store.ErrCorrupt, info.Size, w.File.Bytes)
		} else if info.Checksum != "" && info.Checksum != w.File.SHA256 { // a doubt: it may be of something else than all of the bytes
			err = c.objects.Whole(ctx, r.Under(key), w.File, true)
		}
		if err != nil {
			c.read.Doubt(r, format.ParseName(key))
			return err
		}
	}
	if w.Object != nil {
		return nil
	}
	o, _, err := c.read.Object(ctx, r, w.File, w.File.Key)
	w.Object = o
	return err
}

// sealedTo says to whom something is encrypted: in all names of theirs stands the tag.
func sealedTo(sealed bool, tag string) string {
	if !sealed {
		return "without encryption"
	}
	return fmt.Sprintf("encrypted to recipients with tag %q", tag)
}

// fits compares what lies in files with what the job has committed.
func fits(files []format.Written, roots map[replica.Part]replica.Digest) error {
	seen := make(map[replica.Part]bool)
	for _, w := range files {
		for _, p := range w.Object.Parts {
			m := p.Manifest
			if want, ok := roots[m.Part]; (!ok || want != m.Root) && m.Part.Kind != replica.FrozenPart {
				return fmt.Errorf("%s: %v has root %v, the job's is %v", w.File.Key, m.Part, m.Root, want)
			}
			seen[m.Part] = true
		}
	}
	for p := range roots {
		if !seen[p] {
			return fmt.Errorf("no file has %v", p)
		}
	}
	return nil
}

// Unsaid leaves out of what a run or a generation says of its program what goes to no store that others read: its arguments, where the
// catalog encrypts. A token, or the address of something, is among them sooner or later.
func (c *Writer) Unsaid(said map[string]string) map[string]string {
	if _, there := said[format.Arguments]; !there || !c.keys.Seals() {
		return said
	}
	said = maps.Clone(said)
	delete(said, format.Arguments)
	return said
}

// Downgrades is an error where a catalog would write without encryption for a job whose newest generation is encrypted.
func (c *Writer) Downgrades(ctx context.Context, job string) error {
	if c.keys.Seals() {
		return nil
	}
	list, err := c.find.List(ctx, job)
	if err != nil {
		return err
	}
	for _, l := range list { // the newest first
		if l.State == find.Unfinished {
			continue
		}
		if l.Row.Sealed {
			return fmt.Errorf("step %d of job %s in %s is encrypted, and the next one would not be: name to whom in REPLICAD_RECIPIENTS, "+
				"or give it another job", l.Generation.Step, job, c.find.URL())
		}
		break
	}
	return nil
}

// PutIndex puts the index of an attempt, and says what COMMIT is to say. What is encrypted anew has other bytes: where an earlier try has
// put the very index, COMMIT names that.
func (c *Writer) PutIndex(ctx context.Context, a Attempt, fleet Fleet, said format.Commit, x *format.Index) (com *format.Commit, b []byte,
	err error) {
	plain, err := x.Seal()
	if err != nil {
		return nil, nil, err
	}
	xb := plain
	if c.keys.Seals() {
		if xb, err = c.keys.SealBytes(plain); err != nil {
			return nil, nil, err
		}
	}
	if com, b, err = c.describe(a, fleet, said, x, plain, xb); err != nil {
		return nil, nil, err
	}
	there, err := c.objects.PutOnce(ctx, a.Run.Under(com.Index.Key), xb)
	if there != nil && c.keys.Seals() {
		if got, oerr := c.keys.OpenBytes(there); oerr == nil && string(got) == string(plain) {
			return c.describe(a, fleet, said, x, plain, there)
		}
	}
	if there != nil {
		return nil, nil, fmt.Errorf("index of write %d: %w", a.Write, ErrCommitted)
	}
	return com, b, err
}
