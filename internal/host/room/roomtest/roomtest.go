// Package roomtest is for the tests of rooms: it plays their transcripts, and makes arenas, what lies sealed in them, and sessions.
package roomtest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Arena makes an arena of fixture.Job. It ends with the test.
func Arena(t *testing.T, spec shm.Spec) *holding.Arena {
	t.Helper()
	return Hold(Memory(t, spec), fmt.Sprintf("arena-%d-%d", spec.Rank, rand.Uint64()))
}

// Hold makes an arena of its memory, which stays mapped until the test's end.
func Hold(a *shm.Arena, key string) *holding.Arena { return holding.New(a, key, func(*shm.Arena) {}) }

// Memory is that of an arena of fixture.Job. It ends with the test.
func Memory(t *testing.T, spec shm.Spec) *shm.Arena {
	t.Helper()
	spec.Cluster, spec.Era, spec.Job, spec.ChunkBytes, spec.Margin = fixture.Cluster, 1, fixture.JobID, 4096, 1<<20
	made, err := shm.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	return made
}

// Seal fills a place with zeros, as a part of a generation that binds a frozen part.
func Seal(t *testing.T, a *holding.Arena, p shm.Place, g replica.Generation, binds replica.Digest) shm.Info {
	t.Helper()
	man := Manifest(a, p, g)
	man.FrozenRoot = binds
	man.Root = shm.Root(&man)
	s, err := a.Stage(p, man)
	for i := 0; err == nil && i < len(man.Chunks); i++ {
		_, size := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		err = s.Put(i, make([]byte, size))
	}
	if err == nil {
		err = s.Seal()
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := a.Sealed(p)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Manifest describes zeros as a part of a generation that its arena's rank made.
func Manifest(a *holding.Arena, p shm.Place, g replica.Generation) replica.Manifest {
	h, rank := a.Header(), a.Spec().Rank
	bytes := [...]uint64{h.ReplicatedBytes, h.PrivateBytes, h.FrozenBytes}[p.PartKind()]
	man := replica.Manifest{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Part: holding.PartIn(p.Kind, 0, rank), Generation: g,
		Rank: rank, Incarnation: 4, Geometry: h.Geometry[p.PartKind()], Bytes: bytes, ChunkBytes: h.ChunkBytes}
	for i := range replica.ChunkCount(man.Bytes, man.ChunkBytes) {
		_, size := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		man.Chunks = append(man.Chunks, shm.Hash(make([]byte, size)))
	}
	man.Root = shm.Root(&man)
	return man
}
