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
