package read

import (
	"fmt"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// ReadSpan reads n chunks from chunk i on as one range of the file, into dst, grown if it is too short. A few rows of a large part take
// no more than the chunks that they lie in. Each chunk is checked. One that differs is read again by itself, and from the twin.
// After an error dst must not be used again.
func (rd *shard) ReadSpan(i, n int, dst []byte) ([]byte, error) {
	m := &rd.p.Manifest
	if i < 0 || n < 1 || i >= len(m.Chunks) || n > len(m.Chunks)-i {
		return nil, fmt.Errorf("%s: %d chunks from %d on, of %d", rd.keys[0], n, i, len(m.Chunks))
	}
	off, _ := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	last, length := replica.ChunkSpan(i+n-1, m.Bytes, m.ChunkBytes)
	size := last + length - off
	if uint64(cap(dst)) < size {
		dst = make([]byte, size)
	}
	dst, got, err := rd.packed(i, n, dst[:size])
	if err != nil && len(rd.keys) == 1 && !damage.Is(err) {
		return nil, err
	}
	for k := range n {
		at, length := replica.ChunkSpan(i+k, m.Bytes, m.ChunkBytes)
		b := dst[at-off : at-off+length]
		if err == nil {
			var packed uint64
			if _, packed, err = extent(rd.p, i+k); err != nil {
				return nil, err
			}
			if err := scatter(rd.p, i+k, b, got[:packed]); err != nil {
				return nil, err
			}
			got = got[packed:]
			if safetensors.Hash(b) == m.Chunks[i+k] {
				continue
			}
			// what memory or the network did to one read the next is not to find again
			rd.c.objects.Forget(rd.ctx, rd.run.Under(rd.keys[rd.first.Load()]))
		}
		again, err := rd.chunk(rd.ctx, i+k, nil)
		if err != nil {
			return nil, err
		}
		copy(b, again)
	}
	return dst, nil
}

// packed reads what lies in the file of some chunks, into the end of dst, or of what takes its place: gaps are put between from the
// beginning on.
func (rd *shard) packed(i, n int, dst []byte) (all, got []byte, err error) {
	var begin, size uint64
	for k := range n {
		from, packed, err := extent(rd.p, i+k)
		if err != nil {
			return nil, nil, err
		}
		if size == 0 {
			begin = from
		}
		size += packed
	}
	head := uint64(len(dst)) - size
	if size == 0 {
		return dst, dst[head:], nil
	}
	key, used := rd.keys[rd.first.Load()], false
	err = rd.c.objects.Again(rd.ctx, func() error {
		if used {
			dst = make([]byte, len(dst)) // a call that failed may still write to the former one
		}
		used = true
		return rd.c.readRange(rd.ctx, rd.run.Under(key), rd.seal, rd.data+begin, dst[head:])
	})
	if err != nil {
		return make([]byte, len(dst)), nil, fmt.Errorf("%s: chunks %d to %d: %w", key, i, i+n-1, err)
	}
	return dst, dst[head:], nil
}
