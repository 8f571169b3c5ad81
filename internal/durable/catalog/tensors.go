package catalog

import (
	"context"
	"fmt"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Tensors lists the tensors of a generation: those of its index, or, where they did not fit in there, what the headers of its files say.
func (c *Catalog) Tensors(ctx context.Context, f find.Found) ([]format.Tensor, error) {
	if err := f.Readable(); err != nil {
		return nil, err
	}
	if len(f.Index.Tensors) > 0 {
		return f.Index.Tensors, nil
	}
	files := make([]format.Written, len(f.Index.Files))
	err := c.objects.EachSmall(ctx, len(files), func(ctx context.Context, i int) (err error) {
		files[i].File = f.Index.Files[i]
		files[i].Object, _, err = c.object(ctx, f.Run, files[i].File, files[i].File.Key)
		return err
	})
	if err != nil {
		return nil, err
	}
	layouts, err := c.layouts(ctx, f.Run, files)
	if err != nil {
		return nil, err
	}
	return format.NewIndex(f.Job, f.Commit.Run, f.Generation, f.Write, files, layouts).Tensors, nil
}

// leastBlock is the least that one request brings, in bytes.
const leastBlock = 64 << 10

// OpenWithin is OpenShard for programs that read many parts at once: what it reads ahead stays within so many bytes, however few.
func (c *Catalog) OpenWithin(ctx context.Context, f find.Found, part replica.Part, room int64) (ShardReader, error) {
	rd, err := c.open(ctx, f, part)
	if err != nil {
		return nil, fmt.Errorf("open %v of generation %v of job %s: %w", part, f.Generation, f.Job, err)
	}
	if rd.ahead != nil {
		rd.ahead.block = uint64(max(min(c.objects.Block, room/int64(c.objects.Lanes+1)), leastBlock))
	}
	return rd, nil
}
