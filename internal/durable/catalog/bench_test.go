package catalog

import (
	"context"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/write"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// large is a part of one tensor, in chunks of the usual size.
func large(b *testing.B, size uint64) write.Part {
	b.Helper()
	g, err := replica.NewGeometry([]replica.Region{{Name: "w", DType: replica.F32, Shape: []uint64{size / 4}, Bytes: size}})
	if err != nil {
		b.Fatal(err)
	}
	m := replica.Manifest{Cluster: durabletest.Cluster, Job: durabletest.Job, Generation: gen(2), Geometry: safetensors.Hash(g.DigestInput(0)), Bytes: size, ChunkBytes: replica.DefaultChunkBytes}
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = byte(i * i >> 7)
	}
	for i := range replica.ChunkCount(size, m.ChunkBytes) {
		off, n := replica.ChunkSpan(i, size, m.ChunkBytes)
		m.Chunks = append(m.Chunks, safetensors.Hash(bytes[off:off+n]))
	}
	m.Root = safetensors.Hash(m.RootInput())
	return write.Part{Manifest: m, Regions: g.Regions, Read: func(i int, dst []byte) ([]byte, error) {
		off, n := replica.ChunkSpan(i, size, m.ChunkBytes)
		return dst[:copy(dst, bytes[off:off+n])], nil
	}}
}

// sink takes uploads and keeps nothing.
type sink struct{ store.Store }

type sunk struct{ size int64 }

func (s *sink) Upload(_ context.Context, _ string, size int64) (store.Upload, error) {
	return sunk{size}, nil
}

func (sunk) PartBytes() int64                        { return 16 << 20 }
func (sunk) Part(context.Context, int, []byte) error { return nil }
func (sunk) Abort(context.Context) error             { return nil }
func (u sunk) Complete(_ context.Context, sum [32]byte) (store.Info, error) {
	return store.Info{Size: u.size}, nil
}

// BenchmarkWriteAndRead is what the catalog itself costs: digests and copies, over a store that takes no time.
func BenchmarkWriteAndRead(b *testing.B) {
	_, keys := pair(b)
	for name, k := range map[string]*sealed.Keys{"plain": nil, "encrypted": keys} {
		b.Run(name, func(b *testing.B) { writeAndRead(b, Options{Keys: k}) })
	}
}

func writeAndRead(b *testing.B, o Options) {
	const size = 256 << 20
	p := large(b, size)
	m := memory.New()
	m.Least = 16 << 20
	c := New(m, o)
	r, err := c.Begin(b.Context(), format.Run{Job: "lm", ID: durabletest.Job})
	if err != nil {
		b.Fatal(err)
	}
	var w format.Written
	if w, err = c.WriteGroup(b.Context(), write.Attempt{Run: r, Generation: gen(2), Write: 1}, p); err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		c := New(&sink{Store: m}, o)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.WriteGroup(b.Context(), write.Attempt{Run: r, Generation: gen(2), Write: 1}, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	f := find.Found{Commit: format.Commit{Run: r.ID, Generation: gen(2)}, Run: r, Index: &format.Index{Files: []format.File{w.File}, Parts: []format.PartAt{{Part: p.Manifest.Part, Root: p.Manifest.Root}}}}
	b.Run("read", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			rd, err := c.OpenShard(b.Context(), f, p.Manifest.Part)
			if err != nil {
				b.Fatal(err)
			}
			var buf []byte
			for i := range p.Manifest.Chunks {
				if buf, err = rd.ReadChunk(i, buf); err != nil {
					b.Fatal(err)
				}
			}
			rd.Close()
		}
	})
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.Verify(b.Context(), f, nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
