package shm

import (
	"cmp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/replica"
)

// What it costs to have 256 MiB of shared memory there and mapped: allocated in small pages and then touched, as the kernel does without
// advice, and through a mapping that asks for huge pages. The two are alike where the host gives none (shmem_enabled).
func BenchmarkReserve(b *testing.B) {
	const n = 256 << 20
	for name, first := range map[string]func(fd int) error{
		"small": func(fd int) error { return unix.Fallocate(fd, 0, 0, n) },
		"huge":  func(int) error { return nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(n)
			for b.Loop() {
				f, err := NewMemfd("bench")
				if err == nil {
					err = f.Truncate(n)
				}
				if err == nil {
					err = unixsock.Control(f, func(fd int) error { return cmp.Or(first(fd), populate(fd, 0, n)) })
				}
				if err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		})
	}
}

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

// What an unchanged part costs a mirror: copied from a sealed place with its digests checked, or, where an older step's bytes lie in the place
// itself, checked alone. Beside it what chunks cost that come from elsewhere.
func BenchmarkReuse(b *testing.B) {
	const n = 256 << 20
	g, err := replica.NewGeometry([]replica.Region{{Name: "w", DType: replica.U8, Shape: []uint64{n}, Bytes: n}})
	if err != nil {
		b.Fatal(err)
	}
	a := newArena(b, Spec{Cluster: testCluster, Job: testJob, Geometry: g, Slots: 3})
	bytes, m := part(a, Place{Slot, 0}, 1)
	_, other := part(a, Place{Slot, 1}, 2)
	stage := func(b *testing.B, at int, m replica.Manifest) *Staging {
		s, err := a.Take(Place{Slot, at}, m)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	reuse := func(b *testing.B, s *Staging, want bool) {
		if err := s.Reuse(); err != nil || s.Have(0) != want {
			b.Fatal(s.Have(0), err)
		}
	}
	put := func(b *testing.B, s *Staging) {
		for i := range m.Chunks {
			if err := s.Put(i, chunkOf(m, bytes, i)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("put", func(b *testing.B) {
		b.SetBytes(n)
		for b.Loop() {
			s := stage(b, 1, m)
			put(b, s)
			s.Abort()
		}
	})
	s := stage(b, 0, m)
	put(b, s)
	if err := s.Seal(); err != nil {
		b.Fatal(err)
	}
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(n)
		for b.Loop() {
			b.StopTimer()
			s := stage(b, 2, other) // the place forgets what was in it
			reuse(b, s, false)
			s.Abort()
			b.StartTimer()
			s = stage(b, 2, m)
			reuse(b, s, true)
			s.Abort()
		}
	})
	b.Run("check", func(b *testing.B) {
		b.SetBytes(n)
		for b.Loop() {
			s := stage(b, 2, m)
			reuse(b, s, true)
			s.Abort()
		}
	})
}
