package writer

import (
	"testing"

	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// BenchmarkCopying is how fast a part leaves its slot: for as long a commit may lack it.
func BenchmarkCopying(b *testing.B) {
	const bytes = 256 << 20
	state := make([]byte, bytes)
	man := replica.Manifest{Bytes: bytes, ChunkBytes: replica.DefaultChunkBytes}
	for i := range replica.ChunkCount(bytes, man.ChunkBytes) {
		off, n := replica.ChunkSpan(i, bytes, man.ChunkBytes)
		man.Chunks = append(man.Chunks, shm.Hash(state[off:off+n]))
	}
	read := func(i int, dst []byte) ([]byte, error) {
		off, n := replica.ChunkSpan(i, bytes, man.ChunkBytes)
		return dst[:copy(dst[:n], state[off:])], nil
	}
	for what, c := range map[string]spool.Config{"file": {Dir: b.TempDir(), Owner: "n1"}, "memory": {Memory: bytes}} {
		b.Run(what, func(b *testing.B) {
			s, err := spool.Open(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(bytes)
			for b.Loop() {
				part, err := s.Create(b.Context(), spool.Name{Part: replica.OfGroup(0)}, bytes)
				if err == nil {
					err = newCopying(man, part).run(b.Context(), read)
				}
				if err == nil {
					err = part.Close(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A part has a buffer of its own size at most: a node may write many small ones at once.
func TestCopyingTakesNoMoreThanThePart(t *testing.T) {
	state := []byte("a small part, of three chunks")
	man := replica.Manifest{Bytes: uint64(len(state)), ChunkBytes: 12}
	for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
		off, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		man.Chunks = append(man.Chunks, shm.Hash(state[off:off+n]))
	}
	s, err := spool.Open(t.Context(), spool.Config{Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	part, err := s.Create(t.Context(), spool.Name{Part: replica.OfGroup(0)}, man.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close(t.Context())
	c := newCopying(man, part)
	if err := c.run(t.Context(), func(i int, dst []byte) ([]byte, error) {
		off, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		if room := uint64(cap(dst)); room > man.Bytes-off {
			t.Errorf("chunk %d has room for %d bytes, with %d of the part left", i, room, man.Bytes-off)
		}
		return dst[:copy(dst[:n], state[off:])], nil
	}); err != nil {
		t.Fatal(err)
	}
	for i := range man.Chunks {
		off, n := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		if b, err := c.read(t.Context(), i, nil); err != nil || string(b) != string(state[off:off+n]) {
			t.Errorf("chunk %d reads %q, %v", i, b, err)
		}
	}
}
