package shm

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

const testChunk = 4096

var (
	testCluster = replica.ClusterID{1}
	testJob     = replica.JobID{2}
	testGen     = replica.Generation{Epoch: 3, Step: 9}
)

func testRegions() []replica.Region {
	return []replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{5000}, Bytes: 20000},
		{Name: "base", DType: replica.BF16, Class: replica.Frozen, Shape: []uint64{3000}, Bytes: 6000},
		{Name: "rng", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{5000}, Bytes: 5000},
		{Name: "scale", DType: replica.F32, Class: replica.Volatile, Shape: []uint64{16}, Bytes: 64},
	}
}

func testSpec(t testing.TB) Spec {
	t.Helper()
	g, err := replica.NewGeometry(testRegions())
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Cluster: testCluster, Era: 1, Job: testJob, Rank: 2, Geometry: g, ChunkBytes: testChunk}
}

func newArena(t testing.TB, s Spec) *Arena {
	t.Helper()
	a, err := Create(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

// testRank is the other side: a process that has mapped the arena and can write all of it, whenever it likes.
type testRank struct {
	a   *Arena // for where things lie
	mem []byte
}

func newRank(t testing.TB, a *Arena) *testRank {
	t.Helper()
	mem, err := unix.Mmap(int(a.File().Fd()), 0, int(a.Header().ArenaBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return &testRank{a, mem}
}

func (r *testRank) set(off int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&r.mem[off])), v)
}

func (r *testRank) setWord(p Place, count uint64, s replica.SlotState) {
	r.set(wordOf(p), uint64(replica.PackSlot(count, s)))
}

func (r *testRank) setGood(g replica.Generation) {
	inc, _, _ := r.a.Owner()
	r.set(wordHolder, uint64(inc))
	r.set(wordGood, uint64(g.Word()))
}

func (r *testRank) bytes(p Place) []byte {
	off, n := r.a.span(p)
	return r.mem[off : off+n]
}

func (r *testRank) meta(p Place) []byte {
	_, n := r.a.span(p)
	return r.mem[r.a.metaOf(p):][:metaBytes+16*replica.ChunkCount(n, r.a.spec.ChunkBytes)]
}

// capture does what a rank does up to and including the given state, and returns what it meant to seal.
func (r *testRank) capture(p Place, g replica.Generation, seed uint64, s replica.SlotState) Info {
	count := r.a.Word(p).Count()
	r.setWord(p, count, replica.SlotCopying)
	fill(r.bytes(p), seed)
	m := describe(r.a, p, r.bytes(p), g)
	m.Count = count
	copy(r.meta(p), m.marshal())
	r.setWord(p, count, s)
	return m
}

func fill(b []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// describe makes the meta of b as the part that lies in p.
func describe(a *Arena, p Place, b []byte, g replica.Generation) Info {
	m := Info{Generation: g, Bytes: uint64(len(b)), Rank: a.spec.Rank, Incarnation: 12}
	for i := range replica.ChunkCount(m.Bytes, a.spec.ChunkBytes) {
		off, n := replica.ChunkSpan(i, m.Bytes, a.spec.ChunkBytes)
		m.Digests = append(m.Digests, Hash(b[off:off+n]))
	}
	man := a.manifest(replica.Part{Kind: p.PartKind()}, m)
	m.Root = Root(&man)
	return m
}

func goldenFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../libreplicad/testdata", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
