package read

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// ShardReader reads one shard as the part it was written from. Several goroutines may call ReadChunk and ReadSpan.
type ShardReader interface {
	Manifest() replica.Manifest
	Regions() []replica.Region
	// ReadChunk reads chunk i into dst, grown if it is too short, and checks it against its digest. After an error dst must not be
	// used again: a call that was given up may still write to it.
	ReadChunk(i int, dst []byte) ([]byte, error)
	// ReadSpan reads n chunks from chunk i on, as ReadChunk does one.
	ReadSpan(i, n int, dst []byte) ([]byte, error)
	Close()
}

// shard reads one part of a file.
type shard struct {
	c     *Reader
	ctx   context.Context // of whoever opened it: ShardReader's calls have none
	run   find.Run
	keys  []string // the file, and its twin
	data  uint64   // where the part's bytes begin in what lies in the file
	seal  *sealed.File
	p     *format.Packed
	first atomic.Int32 // which of keys is tried first
	ahead *ahead       // nil: each chunk is a request
}

func (c *Reader) reader(r find.Run, f format.File, s *sealed.File, head uint64, p *format.Packed) *shard {
	rd := &shard{c: c, run: r, keys: []string{f.Key}, data: head + p.At, seal: s, p: p}
	if f.Twin != "" {
		rd.keys = append(rd.keys, f.Twin)
	}
	return rd
}

func (rd *shard) Manifest() replica.Manifest { return rd.p.Manifest }

func (rd *shard) Regions() []replica.Region { return rd.p.Regions }

// Close ends what is read ahead. Chunks can still be read.
func (rd *shard) Close() {
	if rd.ahead != nil {
		rd.ahead.close()
	}
}

// ReadChunk reads chunk i into dst, grown if it is too short, and checks it against its digest.
func (rd *shard) ReadChunk(i int, dst []byte) ([]byte, error) {
	if m := &rd.p.Manifest; rd.ahead != nil && i >= 0 && i < len(m.Chunks) {
		_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		if uint64(cap(dst)) < n {
			dst = make([]byte, n)
		}
		dst = dst[:n]
		err := rd.try(rd.keys[0], i, dst, rd.ahead.read)
		if err == nil {
			return dst, nil
		}
		if damage.Is(err) { // what memory or the network did to one read the next is not to find in the kernel's memory
			rd.c.objects.Forget(rd.ctx, rd.run.Under(rd.keys[0]))
		}
	}
	return rd.chunk(rd.ctx, i, dst) // by itself, from the twin too
}

func (rd *shard) chunk(ctx context.Context, i int, dst []byte) ([]byte, error) {
	m := &rd.p.Manifest
	if i < 0 || i >= len(m.Chunks) {
		return nil, fmt.Errorf("%s: chunk %d of %d", rd.keys[0], i, len(m.Chunks))
	}
	_, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	if uint64(cap(dst)) < n {
		dst = make([]byte, n)
	}
	dst = dst[:n]
	var errs []error
	used, first := false, int(rd.first.Load())
	for k := range rd.keys {
		which := (first + k) % len(rd.keys)
		err := rd.c.objects.Again(ctx, func() error {
			if used {
				dst = make([]byte, n) // a call that failed may still write to the former one
			}
			used = true
			key := rd.keys[which]
			return rd.try(key, i, dst, func(from uint64, b []byte) error {
				return rd.c.readRange(ctx, rd.run.Under(key), rd.seal, rd.data+from, b)
			})
		})
		if err == nil {
			rd.first.Store(int32(which))
			return dst, nil
		}
		if len(rd.keys) > 1 {
			rd.c.Doubt(rd.run, format.ParseName(rd.keys[which]))
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// try reads a chunk from one file: what lies in it of the chunk is one range, which the gaps are put into.
func (rd *shard) try(key string, i int, dst []byte, read func(from uint64, b []byte) error) error {
	m := &rd.p.Manifest
	from, size, err := extent(rd.p, i)
	if err != nil {
		return err
	}
	packed := dst[uint64(len(dst))-size:]
	if size > 0 {
		if err := read(from, packed); errors.Is(err, sealed.ErrDamaged) {
			return damage.New(key, i, "it does not decrypt", fmt.Errorf("%s: chunk %d: %w", key, i, err))
		} else if err != nil {
			return fmt.Errorf("%s: chunk %d: %w", key, i, err)
		}
	}
	if err := scatter(rd.p, i, dst, packed); err != nil {
		return err
	}
	if got := safetensors.Hash(dst); got != m.Chunks[i] {
		return damage.New(key, i, "digest differs", fmt.Errorf("%s: chunk %d at offset %d: %w: digest %v, want %v", key, i, rd.data+from,
			store.ErrCorrupt, got, m.Chunks[i]))
	}
	return nil
}

// extent is what a part's bytes in the file a chunk takes: where they begin, behind the part's own beginning, and how many they are.
func extent(p *format.Packed, i int) (from, size uint64, err error) {
	m, first := &p.Manifest, true
	off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	err = p.Layout.Spans(off, n, func(a, b, at uint64, gap bool) error {
		if gap {
			return nil
		}
		if first {
			from, first = at, false
		}
		size += b - a
		return nil
	})
	return from, size, err
}

// scatter puts the tensors' bytes of a chunk where they belong, and zeros between them. packed may be the end of dst: bytes only move down.
func scatter(p *format.Packed, i int, dst, packed []byte) error {
	off, n := replica.ChunkSpan(i, p.Manifest.Bytes, p.Manifest.ChunkBytes)
	return p.Layout.Spans(off, n, func(a, b, _ uint64, gap bool) error {
		if gap {
			clear(dst[a:b])
			return nil
		}
		copy(dst[a:b], packed[:b-a])
		packed = packed[b-a:]
		return nil
	})
}

// region reads one region of the part, checked.
func (rd *shard) region(ctx context.Context, name string) ([]byte, error) {
	return regionOf(rd.p.Manifest, rd.p.Layout.Regions, name, func(i int, dst []byte) ([]byte, error) { return rd.chunk(ctx, i, dst) })
}

// regionOf reads a region through the chunks that it lies in.
func regionOf(m replica.Manifest, regions []replica.Region, name string, chunk func(i int, dst []byte) ([]byte, error)) ([]byte, error) {
	i := slices.IndexFunc(regions, func(r replica.Region) bool { return r.Name == name && safetensors.Belongs(r, m.Part.Kind) })
	if i < 0 {
		return nil, fmt.Errorf("region %q of %v: %w", name, m.Part, find.ErrNone)
	}
	r := regions[i]
	var out, buf []byte
	for at := r.Offset; at < r.Offset+r.Bytes; {
		i := int(at / uint64(m.ChunkBytes))
		b, err := chunk(i, buf)
		if err != nil {
			return nil, err
		}
		buf = b
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		end := min(off+n, r.Offset+r.Bytes)
		out = append(out, b[at-off:end-off]...)
		at = end
	}
	return out, nil
}

// Regions reads the regions of a part that are asked for, by name, each checked.
func Regions(sh ShardReader, want func(replica.Region) bool) (map[string][]byte, error) {
	out, m := make(map[string][]byte), sh.Manifest()
	for _, r := range sh.Regions() {
		if !safetensors.Belongs(r, m.Part.Kind) || !want(r) {
			continue
		}
		b, err := regionOf(m, sh.Regions(), r.Name, sh.ReadChunk)
		if err != nil {
			return nil, err
		}
		out[r.Name] = b
	}
	return out, nil
}
