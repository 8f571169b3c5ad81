package shm

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// What a transfer's source and a restore's sink cost, beside hashing alone.
func BenchmarkChunk(b *testing.B) {
	const n = 64 << 20
	g, err := replica.NewGeometry([]replica.Region{{Name: "w", DType: replica.U8, Shape: []uint64{n}, Bytes: n}})
	if err != nil {
		b.Fatal(err)
	}
	a := newArena(b, Spec{Cluster: testCluster, Job: testJob, Geometry: g, Slots: 2})
	p := Place{Slot, 0}
	m := newRank(b, a).capture(p, testGen, 1, replica.SlotSealed)
	buf := make([]byte, replica.DefaultChunkBytes)
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(buf)))
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := a.ReadChunk(p, m.Count, i%len(m.Digests), buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("hash", func(b *testing.B) {
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			Hash(buf)
		}
	})
	b.Run("verify", func(b *testing.B) {
		b.SetBytes(n)
		b.ReportAllocs()
		for b.Loop() {
			if err := a.Verify(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}
