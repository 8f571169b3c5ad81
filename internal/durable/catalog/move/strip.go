package move

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/keep"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// ErrNothing marks a generation that has no optimizer state.
var ErrNothing = errors.New("no tensor of it is an optimizer's (optim.…)")

// The Python package calls the state of optimizers so, and their parameters that no model has; all else is a model's, or replicad's own.
const optimizers = "optim."

var ownParameter = regexp.MustCompile(`^optim\.(.+\.)?param\.\d+\.\d+`)

// ofOptimizer is which regions of a rank are an optimizer's state. A parameter that no model has lies under the optimizer's name too, and
// stays. What lies below such a name is its state. Where no region has the name itself, it is what the parameter consists of.
func ofOptimizer(regions []replica.Region) func(replica.Region) bool {
	names := make(map[string]bool, len(regions))
	for _, r := range regions {
		names[r.Name] = true
	}
	return func(r replica.Region) bool {
		own := ownParameter.FindString(r.Name)
		return strings.HasPrefix(r.Name, optimizers) && r.Kind == replica.Replicated && r.Class != replica.Frozen &&
			(own == "" || own != r.Name && (names[own] || names[strings.TrimPrefix(own, optimizers)]))
	}
}

// Strip puts a generation without optimizer state in the place of one: new files, which are read back, and an index. Then a COMMIT takes
// the place of the former one, in one change, and the former files go. Parameters, buffers and what is a rank's own stay as they are;
// nothing resumes from it. Where it breaks off, the one generation or the other is there whole, and Sweep removes the rest. A pinned one is
// ErrPinned, one without such state ErrNothing. freed is the size of the state; with dry set nothing is written.
func (c *Mover) Strip(ctx context.Context, f find.Found, why string, dry bool) (freed uint64, err error) {
	if freed, err = c.strip(ctx, f, why, dry); err != nil {
		return freed, fmt.Errorf("strip generation %v of job %s: %w", f.Generation, f.Job, err)
	}
	return freed, nil
}

func (c *Mover) strip(ctx context.Context, f find.Found, why string, dry bool) (freed uint64, err error) {
	if f.Sealed != nil || c.keys.Seals() {
		return 0, errors.New("it is encrypted: `replicad ckpt cp --decrypt` makes a plain copy, which can be stripped")
	}
	if err := c.unpinned(ctx, f); err != nil {
		return 0, err
	}
	parts := make([]*bare, 0, len(f.Index.Parts))
	defer func() {
		for _, p := range parts {
			p.from.Close()
		}
	}()
	for _, at := range f.Index.Parts {
		if at.Part.Kind != replica.ReplicatedPart {
			continue
		}
		p, err := c.bare(ctx, f, at)
		if err != nil {
			return 0, err
		}
		parts = append(parts, p)
		freed += p.freed
	}
	if freed == 0 {
		return 0, ErrNothing
	}
	if dry {
		return freed, nil
	}
	was, com, b, err := c.rewrite(ctx, f, parts)
	if err != nil {
		return 0, err
	}
	return freed, c.exchange(ctx, f, com, was, b, why)
}

func (c *Mover) unpinned(ctx context.Context, f find.Found) error {
	pins, err := c.find.PinnedAt(ctx, f.Run, f.Generation, func() (time.Time, error) {
		return c.keep.StoreTime(ctx, f.Run, "strip", "whether leases have ended")
	})
	if err == nil && len(pins) > 0 {
		err = fmt.Errorf("%w by %s: %s", keep.ErrPinned, pins[0].Who, pins[0].Why)
	}
	return err
}

// rewrite writes the files and the index of the new generation, and reads them back. was are the former COMMIT's bytes, b the new one's.
func (c *Mover) rewrite(ctx context.Context, f find.Found, parts []*bare) (was []byte, com *format.Commit, b []byte, err error) {
	if was, _, err = c.objects.Get(ctx, f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation})); err != nil {
		return nil, nil, nil, err
	}
	a := write.Attempt{Run: f.Run, Generation: f.Generation}
	if a.Write, err = c.write.Unused(ctx, a, f.Write+1); err != nil {
		return nil, nil, nil, err
	}
	files, err := c.rewritten(ctx, f, a, parts)
	if err != nil {
		return nil, nil, nil, err
	}
	layouts, err := c.read.Layouts(ctx, f.Run, files)
	if err != nil {
		return nil, nil, nil, err
	}
	for _, p := range parts {
		for name := range layouts[p.at.Part.Index] {
			if name+"." == optimizers || strings.HasPrefix(name, optimizers) && !slices.ContainsFunc(p.moved,
				func(m moved) bool { return m.now.Name == name }) {
				delete(layouts[p.at.Part.Index], name)
			}
		}
	}
	said := f.Commit
	said.Stripped = true
	said.Geometries = slices.Clone(said.Geometries)
	for _, p := range parts {
		if g := int(p.at.Part.Index); g < len(said.Geometries) {
			said.Geometries[g] = p.Manifest.Geometry
		}
	}
	x := format.NewIndex(f.Job, f.Commit.Run, f.Generation, a.Write, files, layouts)
	if com, b, err = c.write.PutIndex(ctx, a, write.Fleet{Cluster: f.Cluster}, said, x); err != nil {
		return nil, nil, nil, err
	}
	_, err = c.read.VerifyAs(ctx, find.Found{Commit: *com, Run: f.Run, Index: x}, read.How{Cold: true}, nil)
	return was, com, b, err
}

// rewritten writes the files: groups' parts without optimizer state, private ones as they are under the new write's name. Frozen ones are
// shared.
func (c *Mover) rewritten(ctx context.Context, f find.Found, a write.Attempt, parts []*bare) (files []format.Written, err error) {
	for _, p := range parts {
		if err := p.digest(ctx); err != nil {
			return nil, err
		}
		n := format.ParseName(f.Index.Files[p.at.File].Key)
		w, err := c.write.WriteObject(ctx, a, n.Shard, p.Part)
		if err != nil {
			return nil, err
		}
		files = append(files, w)
	}
	for i, file := range f.Index.Files {
		if slices.ContainsFunc(parts, func(p *bare) bool { return p.at.File == i }) {
			continue
		}
		n, was := format.ParseName(file.Key), file.Key
		if n.Kind == format.ShardKind {
			n.Write = a.Write
			file.Key = n.String()
			if err := c.objects.Transfer(ctx, f.Run.Under(was), c.objects, f.Run.Under(file.Key), file); err != nil {
				return nil, err
			}
		}
		o, _, err := c.read.Object(ctx, f.Run, file, file.Key)
		if err != nil && file.Twin != "" {
			o, _, err = c.read.Object(ctx, f.Run, file, file.Twin)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, format.Written{File: file, Object: o})
	}
	slices.SortFunc(files, func(a, b format.Written) int { return strings.Compare(a.File.Key, b.File.Key) })
	return files, nil
}

// exchange puts the new COMMIT in the former's place, and removes what that one named alone. Somebody may pin the generation meanwhile:
// then it is as he found it, or was stripped before he looked.
func (c *Mover) exchange(ctx context.Context, f find.Found, com *format.Commit, was, b []byte, why string) error {
	if err := c.unpinned(ctx, f); err != nil {
		return errors.Join(err, c.disown(ctx, f, com.Write))
	}
	if err := c.hints.Log(ctx, f.Job, format.Log{Verb: "strip", Run: f.Run.Run, Generations: []replica.Generation{f.Generation},
		Why: why}); err != nil {
		return err
	}
	// A list believes the summary: nothing of the former may be left in it once the new one is there.
	err := c.hints.Summarize(ctx, f.Run.Place, func(rows []format.Row) []format.Row {
		return slices.DeleteFunc(rows, func(row format.Row) bool { return row.Generation == f.Generation })
	})
	if err != nil {
		return err
	}
	if err := c.place(ctx, f, was, b); err != nil {
		return err
	}
	if err := c.unpinned(ctx, f); errors.Is(err, keep.ErrPinned) {
		return errors.Join(err, c.place(ctx, f, b, was), c.disown(ctx, f, com.Write))
	} else if err != nil {
		return err
	}
	c.hints.Hint(ctx, f.Run, com, b)
	if err := c.disown(ctx, f, f.Write); err != nil {
		return err
	}
	return c.keep.MarkRead(ctx, find.Found{Commit: *com, Run: f.Run}, nil)
}

// place puts one COMMIT in the place of another.
func (c *Mover) place(ctx context.Context, f find.Found, was, b []byte) error {
	key := f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation})
	return c.objects.Swap(ctx, key, func(there []byte) ([]byte, error) {
		switch {
		case bytes.Equal(there, b):
			return nil, nil // an answer was lost
		case !bytes.Equal(there, was):
			return nil, fmt.Errorf("%s: %w: somebody deletes or strips it too", key, store.ErrChanged)
		}
		return b, nil
	})
}

// disown removes the files and the index of a write of a generation.
func (c *Mover) disown(ctx context.Context, f find.Found, write uint64) error {
	var keys []string
	err := c.objects.List(ctx, f.Run.Under(format.StepName(f.Generation))+"/", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key,
			f.Run.Prefix())); (n.Kind == format.ShardKind || n.Kind == format.IndexKind) && n.Write == write {
			keys = append(keys, info.Key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.objects.Each(ctx, len(keys), func(ctx context.Context, i int) error { return c.objects.Remove(ctx, keys[i]) })
}
