package move

import (
	"context"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// bare is a group's part without optimizer state: another part, of fewer regions, whose bytes are those of the former.
type bare struct {
	write.Part
	at    format.PartAt // the former
	from  read.ShardReader
	moved []moved // by where they lie now
	freed uint64
	chunk int // of the former part, that buf has; -1: none
	buf   []byte
}

// moved is a region that stays.
type moved struct{ now, was replica.Region }

func (c *Mover) bare(ctx context.Context, f find.Found, at format.PartAt) (*bare, error) {
	from, err := c.read.Open(ctx, f, at.Part)
	if err != nil {
		return nil, err
	}
	b := &bare{at: at, from: from, chunk: -1}
	if err := b.plan(); err != nil {
		from.Close()
		return nil, err
	}
	return b, nil
}

// plan lays out the regions that stay.
func (b *bare) plan() error {
	all := b.from.Regions()
	goes := ofOptimizer(all)
	var stay []replica.Region
	for _, r := range all {
		if goes(r) {
			b.freed += r.Bytes
		} else {
			stay = append(stay, r)
		}
	}
	g, err := replica.NewGeometry(stay)
	if err != nil {
		return err
	}
	m := b.from.Manifest()
	for i, now := range g.Regions {
		if safetensors.Belongs(now, m.Part.Kind) {
			b.moved = append(b.moved, moved{now, stay[i]})
		}
	}
	slices.SortStableFunc(b.moved, func(x, y moved) int { return int(int64(x.now.Offset) - int64(y.now.Offset)) })
	m.Bytes, m.Geometry = g.ReplicatedBytes, safetensors.Hash(g.DigestInput(m.Part.Kind))
	if m.Regions != nil {
		m.Regions = g.Of(m.Part.Kind)
	}
	m.Chunks, m.Root = nil, replica.Digest{}
	b.Part = write.Part{Manifest: m, Regions: g.Regions, Read: b.read}
	return nil
}

// digest makes the manifest whole: the bytes are read once for it, and once more where they are written.
func (b *bare) digest(ctx context.Context) error {
	m := &b.Manifest
	var buf []byte
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		buf = slices.Grow(buf[:0], int(n))[:n]
		if _, err := b.read(i, buf); err != nil {
			return err
		}
		m.Chunks = append(m.Chunks, safetensors.Hash(buf))
	}
	m.Root = safetensors.Hash(m.RootInput())
	return nil
}

// read gives a chunk of the part, from the former one's, each byte of which is checked.
func (b *bare) read(i int, dst []byte) ([]byte, error) {
	off, n := replica.ChunkSpan(i, b.Manifest.Bytes, b.Manifest.ChunkBytes)
	dst = dst[:n]
	clear(dst)
	first, _ := slices.BinarySearchFunc(b.moved, off, func(m moved, off uint64) int {
		if m.now.Offset+m.now.Bytes <= off {
			return -1
		}
		return 1
	})
	for _, m := range b.moved[first:] {
		if m.now.Offset >= off+n {
			break
		}
		from, to := max(off, m.now.Offset), min(off+n, m.now.Offset+m.now.Bytes)
		if from >= to {
			continue
		}
		if err := b.copy(dst[from-off:to-off], m.was.Offset+from-m.now.Offset); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// copy fills dst with the former part's bytes at an offset.
func (b *bare) copy(dst []byte, at uint64) error {
	size := uint64(b.at.ChunkBytes)
	for len(dst) > 0 {
		i := int(at / size)
		if i != b.chunk {
			b.chunk = -1
			buf, err := b.from.ReadChunk(i, b.buf)
			if err != nil {
				b.buf = nil // not used again after an error
				return err
			}
			b.chunk, b.buf = i, buf
		}
		n := copy(dst, b.buf[at-uint64(i)*size:])
		dst, at = dst[n:], at+uint64(n)
	}
	return nil
}
