package read

import (
	"context"
	"errors"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// Layouts reads how the groups' tensors lie over the ranks, where they say so. A layout of another version, or one that is no layout, says
// nothing: the tensors are there all the same.
func (c *Reader) Layouts(ctx context.Context, r find.Run, files []format.Written) (map[uint32]map[string]format.Shard, error) {
	out := make(map[uint32]map[string]format.Shard)
	for _, w := range files {
		for i := range w.Object.Parts {
			p := &w.Object.Parts[i]
			if p.Manifest.Part.Kind != replica.FrozenPart {
				continue
			}
			b, err := w.Layout, error(nil)
			if b == nil {
				b, err = c.layoutOf(ctx, r, w, p)
			}
			if errors.Is(err, find.ErrNone) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if l, err := format.ParseLayout(b); err == nil {
				out[p.Manifest.Part.Index] = l
			}
		}
	}
	return out, nil
}

// layoutOf reads a group's layout out of its frozen part, of a file whose header was read by somebody.
func (c *Reader) layoutOf(ctx context.Context, r find.Run, w format.Written, p *format.Packed) ([]byte, error) {
	var s *sealed.File
	if w.File.Sealed > 0 {
		var err error
		if _, s, err = c.Object(ctx, r, w.File, w.File.Key); err != nil {
			return nil, err
		}
	}
	return c.reader(r, w.File, s, w.Object.Head, p).region(ctx, format.LayoutRegion)
}

// Tensors lists the tensors of a generation: those of its index, or, where they did not fit in there, what the headers of its files say.
func (c *Reader) Tensors(ctx context.Context, f find.Found) ([]format.Tensor, error) {
	if err := f.Readable(); err != nil {
		return nil, err
	}
	if len(f.Index.Tensors) > 0 {
		return f.Index.Tensors, nil
	}
	files := make([]format.Written, len(f.Index.Files))
	err := c.objects.EachSmall(ctx, len(files), func(ctx context.Context, i int) (err error) {
		files[i].File = f.Index.Files[i]
		files[i].Object, _, err = c.Object(ctx, f.Run, files[i].File, files[i].File.Key)
		return err
	})
	if err != nil {
		return nil, err
	}
	layouts, err := c.Layouts(ctx, f.Run, files)
	if err != nil {
		return nil, err
	}
	return format.NewIndex(f.Job, f.Commit.Run, f.Generation, f.Write, files, layouts).Tensors, nil
}
