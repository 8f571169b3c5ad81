package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const (
	jobName = "opticks"
	chunk   = 256
)

var job = replica.JobID{0xab, 1}

// testRegions has gaps (sizes that are no multiple of 64), an empty region, every class, and private ones.
func testRegions(t testing.TB) replica.Geometry {
	t.Helper()
	g, err := replica.NewGeometry([]replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{5, 7}, Bytes: 140},
		{Name: "rng", DType: replica.U8, Kind: replica.Private, Shape: []uint64{33}, Bytes: 33},
		{Name: "base", DType: replica.BF16, Class: replica.Frozen, Shape: []uint64{90}, Bytes: 180},
		{Name: "empty", DType: replica.F64, Shape: []uint64{3, 0}},
		{Name: "moment \"m\"", DType: replica.F32, Shape: []uint64{101}, Bytes: 404},
		{Name: "scale", DType: replica.F8E4M3, Class: replica.Volatile, Shape: []uint64{1}, Bytes: 1},
		{Name: "steps", DType: replica.I64, Class: replica.Volatile, Shape: nil, Bytes: 8},
		{Name: "cursor", DType: replica.U64, Kind: replica.Private, Shape: []uint64{2}, Bytes: 16},
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

type testPart struct {
	m replica.Manifest
	b []byte
}

func (p testPart) read(i int, dst []byte) ([]byte, error) {
	off, n := replica.ChunkSpan(i, p.m.Bytes, p.m.ChunkBytes)
	return dst[:copy(dst[:n], p.b[off:off+n])], nil
}

// makePart makes a sealed part of a rank of geometry g: seeded bytes in its regions, zeros between them.
func makePart(g replica.Geometry, part replica.Part, gen replica.Generation, frozenRoot replica.Digest) testPart {
	size := map[replica.PartKind]uint64{replica.ReplicatedPart: g.ReplicatedBytes, replica.PrivatePart: g.PrivateBytes, replica.FrozenPart: g.FrozenBytes}[part.Kind]
	b := make([]byte, size)
	rng := rand.New(rand.NewPCG(uint64(part.Kind)<<32|uint64(part.Index), uint64(gen.Step)))
	for _, r := range g.Regions {
		if safetensors.Belongs(r, part.Kind) {
			for i := range r.Bytes {
				b[r.Offset+i] = byte(rng.Uint32())
			}
		}
	}
	m := replica.Manifest{Cluster: replica.ClusterID{1}, Era: 1, Job: job, Part: part, Generation: gen, Rank: 1, Incarnation: 2,
		Geometry: hash(g.DigestInput(part.Kind)), FrozenRoot: frozenRoot, Bytes: size, ChunkBytes: chunk,
		Lineage: replica.Lineage{{Epoch: 1, Start: 0}}}
	for i := range replica.ChunkCount(size, chunk) {
		off, n := replica.ChunkSpan(i, size, chunk)
		m.Chunks = append(m.Chunks, hash(b[off:off+n]))
	}
	m.Root = hash(m.RootInput())
	return testPart{m, b}
}

// parts of a job of two ranks in one group.
func testParts(g replica.Geometry, gen replica.Generation) (frozen testPart, parts []testPart) {
	frozen = makePart(g, replica.FrozenOf(0), replica.Generation{}, replica.Digest{})
	return frozen, []testPart{
		makePart(g, replica.OfGroup(0), gen, frozen.m.Root),
		makePart(g, replica.OfRank(0), gen, replica.Digest{}),
		makePart(g, replica.OfRank(1), gen, replica.Digest{}),
	}
}

// writeGeneration writes shards and marker, in the order a job does.
func writeGeneration(ctx context.Context, s *Store, g replica.Geometry, gen replica.Generation) error {
	frozen, parts := testParts(g, gen)
	marker := testMarker(gen)
	for _, p := range parts {
		var along *Frozen
		if p.m.Part.Kind == replica.ReplicatedPart {
			along = &Frozen{frozen.m, g.Regions, frozen.read}
		}
		info, err := s.WriteShard(ctx, jobName, p.m, g.Regions, along, p.read)
		if err != nil {
			return err
		}
		marker.Shards = append(marker.Shards, info)
	}
	return s.WriteMarker(ctx, marker)
}

func testMarker(gen replica.Generation) Marker {
	return Marker{JobName: jobName, Job: job, Generation: gen, Position: replica.Position(gen),
		Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, Lineage: replica.Lineage{{Epoch: 1, Start: 0}},
		Condemned: []replica.Generation{{Epoch: 1, Step: 5}}, Geometries: []replica.Digest{{3}}}
}

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func find(t testing.TB, s *Store, id replica.JobID) ([]Found, []Skipped) {
	t.Helper()
	found, skipped, err := s.Find(jobName, id)
	if err != nil {
		t.Fatal(err)
	}
	return found, skipped
}

// checkWhole compares every part of a found generation with what was written.
func checkWhole(t testing.TB, s *Store, g replica.Geometry, f Found) {
	t.Helper()
	frozen, parts := testParts(g, f.Generation)
	for _, want := range append(parts, frozen) {
		r, err := s.OpenShard(f, want.m.Part)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for i := range want.m.Chunks {
			b, err := r.ReadChunk(i, nil)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b...)
		}
		if !bytes.Equal(got, want.b) || r.Manifest().Root != want.m.Root || len(r.Regions()) != len(g.Regions) {
			t.Errorf("%v came back different", want.m.Part)
		}
		r.Close()
		r.Close() // idempotent
	}
	if err := s.Verify(t.Context(), f); err != nil {
		t.Error(err)
	}
}

func TestRoundTrip(t *testing.T) {
	s, g := open(t, t.TempDir()), testRegions(t)
	for _, gen := range []replica.Generation{{Epoch: 1, Step: 90}, {Epoch: 2, Step: 10}, {Epoch: 2, Step: 9}} {
		if err := writeGeneration(t.Context(), s, g, gen); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []replica.JobID{job, {}} {
		found, skipped := find(t, s, id)
		if len(found) != 3 || len(skipped) != 0 {
			t.Fatalf("found %d, skipped %v", len(found), skipped)
		}
		for i, want := range []string{"2/10", "2/9", "1/90"} {
			if found[i].Position.String() != want {
				t.Errorf("place %d is %v, want %s", i, found[i].Position, want)
			}
			checkWhole(t, s, g, found[i])
		}
	}
	if found, skipped := find(t, s, replica.JobID{9}); len(found)+len(skipped) != 0 {
		t.Errorf("another job found %v, %v", found, skipped)
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, jobName, job.String(), frozenDir))
	if err != nil || len(entries) != 2 {
		t.Errorf("three generations share one frozen part: %v, %v", entries, err)
	}
}

func TestMarkerOnce(t *testing.T) {
	s, g, gen := open(t, t.TempDir()), testRegions(t), replica.Generation{Epoch: 1, Step: 2}
	for range 2 { // the second writer of the same makes no difference
		if err := writeGeneration(t.Context(), s, g, gen); err != nil {
			t.Fatal(err)
		}
	}
	found, _ := find(t, s, job)
	other := found[0].Marker
	other.Lacks = []replica.Lacking{{Rank: 1, Text: "teacher"}} // said since the order for the first one
	if err := s.WriteMarker(t.Context(), other); err != nil {
		t.Fatalf("the same once more, when a rank has said something new: %v", err)
	}
	other.Condemned = nil
	if err := s.WriteMarker(t.Context(), other); !errors.Is(err, ErrCommitted) {
		t.Fatalf("another marker: %v", err)
	}
	if again, _ := find(t, s, job); len(again) != 1 || len(again[0].Condemned) != 1 {
		t.Fatal("the marker was changed")
	}
}

func TestMarkerNeedsEveryShard(t *testing.T) {
	s, g, gen := open(t, t.TempDir()), testRegions(t), replica.Generation{Epoch: 1, Step: 2}
	frozen, parts := testParts(g, gen)
	var infos []replica.ShardInfo
	for _, p := range append(parts, frozen) {
		info, err := s.WriteShard(t.Context(), jobName, p.m, g.Regions, nil, p.read)
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, info)
	}
	for i, left := range infos {
		m := testMarker(gen)
		m.Shards = append(append(m.Shards, infos[:i]...), infos[i+1:]...)
		if err := s.WriteMarker(t.Context(), m); err == nil {
			t.Errorf("a marker without %v was written", left.Part)
		}
	}
	elsewhere := open(t, t.TempDir()) // another node's directory, under the same name
	for _, p := range parts[1:] {
		if _, err := elsewhere.WriteShard(t.Context(), jobName, p.m, g.Regions, nil, p.read); err != nil {
			t.Fatal(err)
		}
	}
	m := testMarker(gen)
	m.Shards = infos
	if err := elsewhere.WriteMarker(t.Context(), m); err == nil || !strings.Contains(err.Error(), "is missing in "+elsewhere.Dir()) || !strings.Contains(err.Error(), "durable_dir must be one file system that all nodes mount") {
		t.Errorf("a marker in a directory that is not shared: %v", err)
	}
	m.Shards[1].Bytes++
	if err := s.WriteMarker(t.Context(), m); err == nil || !strings.Contains(err.Error(), "private-0") {
		t.Errorf("a marker with a wrong size: %v", err)
	}
	m.Shards[1].Bytes--
	if err := s.WriteMarker(t.Context(), m); err != nil {
		t.Error(err)
	}
}

func TestWriteShardRefuses(t *testing.T) {
	s, g, gen := open(t, t.TempDir()), testRegions(t), replica.Generation{Epoch: 1, Step: 2}
	_, parts := testParts(g, gen)
	p := parts[0]
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	dirty := makePart(g, replica.OfGroup(0), gen, replica.Digest{})
	dirty.b[150] = 1 // between "weight" and what follows it
	dirty.m.Chunks[0] = hash(dirty.b[:chunk])
	dirty.m.Root = hash(dirty.m.RootInput())
	wrongRoot := p.m
	wrongRoot.Root[0] ^= 1
	for name, err := range map[string]error{
		"name":      second(s.WriteShard(t.Context(), "../etc", p.m, g.Regions, nil, p.read)),
		"regions":   second(s.WriteShard(t.Context(), jobName, p.m, g.Regions[1:], nil, p.read)),
		"root":      second(s.WriteShard(t.Context(), jobName, wrongRoot, g.Regions, nil, p.read)),
		"cancelled": second(s.WriteShard(cancelled, jobName, p.m, g.Regions, nil, p.read)),
		"gap":       second(s.WriteShard(t.Context(), jobName, dirty.m, g.Regions, nil, dirty.read)),
		"frozen":    second(s.WriteShard(t.Context(), jobName, p.m, g.Regions, &Frozen{p.m, g.Regions, p.read}, p.read)),
		"reader":    second(s.WriteShard(t.Context(), jobName, p.m, g.Regions, nil, func(int, []byte) ([]byte, error) { return nil, errors.New("slot was freed") })),
		"bytes": second(s.WriteShard(t.Context(), jobName, p.m, g.Regions, nil, func(i int, dst []byte) ([]byte, error) {
			b, err := p.read(i, dst)
			b[0] ^= 1
			return b, err
		})),
	} {
		if err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if found, skipped := find(t, s, job); len(found) != 0 || len(skipped) > 1 {
		t.Errorf("found %v, skipped %v", found, skipped)
	}
	if left, err := filepath.Glob(filepath.Join(s.dir, "*", "*", "*", "*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}

func second[T any](_ T, err error) error { return err }

// TestDamage bends every file of a generation in many ways: what Find can see it skips with a reason, what it can't, the
// reading finds. The older generation is always there.
func TestDamage(t *testing.T) {
	g := testRegions(t)
	older, newer := replica.Generation{Epoch: 1, Step: 2}, replica.Generation{Epoch: 1, Step: 4}
	dir := t.TempDir()
	s := open(t, dir)
	for _, gen := range []replica.Generation{older, newer} {
		if err := writeGeneration(t.Context(), s, g, gen); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, jobName, job.String(), generationDir(newer), "*"))
	if err != nil || len(files) != 7 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range files {
		whole, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		bend := map[string][]byte{"cut": whole[:len(whole)-1], "empty": {}, "longer": append(bytes.Clone(whole), 0)}
		for _, at := range []int{0, 4, 9, len(whole) / 2, len(whole) - 1} {
			b := bytes.Clone(whole)
			b[at] ^= 0x10
			bend[fmt.Sprint("flip at ", at)] = b
		}
		for how, b := range bend {
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
			found, skipped := find(t, s, job)
			if len(found) == 2 {
				if filepath.Ext(name) != shardExt || !strings.HasPrefix(how, "flip") {
					t.Errorf("%s %s: found", filepath.Base(name), how)
				}
				if err := s.Verify(t.Context(), found[0]); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), filepath.Base(name)) {
					t.Errorf("%s %s: Verify: %v", filepath.Base(name), how, err)
				}
			} else if len(skipped) != 1 || skipped[0].Reason == "" || !strings.HasSuffix(skipped[0].Path, "1-4") {
				t.Errorf("%s %s: skipped %v", filepath.Base(name), how, skipped)
			}
			checkWhole(t, s, g, found[len(found)-1])
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		if found, skipped := find(t, s, job); len(found) != 1 || len(skipped) != 1 {
			t.Errorf("%s removed: found %d, skipped %v", filepath.Base(name), len(found), skipped)
		}
		if err := os.WriteFile(name, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if found, skipped := find(t, s, job); len(found) != 2 || len(skipped) != 0 {
		t.Fatalf("all restored: found %d, skipped %v", len(found), skipped)
	}
}

func TestFlippedDataIsNamedWithItsOffset(t *testing.T) {
	s, g := open(t, t.TempDir()), testRegions(t)
	if err := writeGeneration(t.Context(), s, g, replica.Generation{Epoch: 1, Step: 2}); err != nil {
		t.Fatal(err)
	}
	found, _ := find(t, s, job)
	name := filepath.Join(s.dir, found[0].Path, "group-0.safetensors")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := s.OpenShard(found[0], replica.OfGroup(0))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	last := len(r.Manifest().Chunks) - 1
	if _, err := r.ReadChunk(0, nil); err != nil {
		t.Errorf("an unharmed chunk: %v", err)
	}
	if _, err := r.ReadChunk(last, nil); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "group-0.safetensors") || !strings.Contains(err.Error(), "offset") {
		t.Errorf("got %v", err)
	}
}

func TestForeignMarkers(t *testing.T) {
	s, g := open(t, t.TempDir()), testRegions(t)
	gen := replica.Generation{Epoch: 1, Step: 2}
	if err := writeGeneration(t.Context(), s, g, gen); err != nil {
		t.Fatal(err)
	}
	found, _ := find(t, s, job)
	name := filepath.Join(s.dir, found[0].Path, markerName)
	for want, bend := range map[string]func(m *Marker){
		"version 9":   func(m *Marker) { m.Version = 9 },
		"is of job":   func(m *Marker) { m.Job[0]++ },
		"opticks-2":   func(m *Marker) { m.JobName = "opticks-2" },
		"(1,3)":       func(m *Marker) { m.Generation.Step++ },
		"has file":    func(m *Marker) { m.Shards[0].File = "../../../etc/passwd" },
		"no shard of": func(m *Marker) { m.Shards = m.Shards[:2] },
		"layout":      func(m *Marker) { m.Layout.World = 5 },
	} {
		m := found[0].Marker
		m.Shards = append([]replica.ShardInfo(nil), m.Shards...)
		bend(&m)
		frame, err := wire.Append(nil, kindMarker, &m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, frame, 0o600); err != nil {
			t.Fatal(err)
		}
		if found, skipped := find(t, s, job); len(found) != 0 || len(skipped) != 1 || !strings.Contains(skipped[0].Reason, want) {
			t.Errorf("want %q, skipped %v", want, skipped)
		}
	}
}

// What is removed is gone with what nobody needs any more; what is read stays.
func TestRemove(t *testing.T) {
	s, g := open(t, t.TempDir()), testRegions(t)
	one, two := replica.Generation{Epoch: 1, Step: 1}, replica.Generation{Epoch: 1, Step: 2}
	if err := errors.Join(writeGeneration(t.Context(), s, g, one), writeGeneration(t.Context(), s, g, two)); err != nil {
		t.Fatal(err)
	}
	found, _ := find(t, s, job)
	r, err := s.OpenShard(found[1], replica.OfGroup(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(jobName, job, one); err != nil {
		t.Fatal(err)
	}
	if found, _ := find(t, s, job); len(found) != 2 {
		t.Errorf("what is read is gone: %v", found)
	}
	r.Close()
	if err := s.Remove(jobName, job, one); err != nil {
		t.Fatal(err)
	}
	found, _ = find(t, s, job)
	if len(found) != 1 {
		t.Fatalf("left: %v", found)
	}
	checkWhole(t, s, g, found[0]) // its frozen part is still there
	if err := s.Remove(jobName, job, two); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, jobName, job.String())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the run's directory: %v", err)
	}
}

// unsyncedFile takes bytes and remembers how many at most were not synced.
type unsyncedFile struct{ now, most int }

func (f *unsyncedFile) Write(b []byte) (int, error) {
	f.now += len(b)
	f.most = max(f.most, f.now)
	return len(b), nil
}
func (f *unsyncedFile) Sync() error  { f.now = 0; return nil }
func (f *unsyncedFile) Close() error { return nil }

type unsyncedDisk struct {
	disk
	file unsyncedFile
}

func (d *unsyncedDisk) create(string) (file, error) { return &d.file, nil }
func (d *unsyncedDisk) syncDir(string) error        { return nil }

// One sync of 40 GB at the end of a shard took longer than a call to the disk may, so the write failed each time.
func TestALargeFileIsSyncedWhileItIsWritten(t *testing.T) {
	d := &unsyncedDisk{}
	piece := make([]byte, 4<<20)
	err := (&tree{disk: d}).writeFile("x", func(string, string) error { return nil }, func(w io.Writer) error {
		for range 100 {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || d.file.now != 0 || d.file.most > syncMost+len(piece) {
		t.Errorf("%v; %d bytes are not synced, and %d were not at one time: want 0, and at most %d", err, d.file.now, d.file.most, syncMost+len(piece))
	}
}

// As much is synced at once as the disk takes in half a second: on a slow one a sync of 64 MiB took longer than a writer may show no progress.
func TestASlowDiskIsSyncedInSmallPieces(t *testing.T) {
	for _, rate := range []int{1 << 20, 10 << 20, 100 << 20, 4 << 30} { // bytes a second
		bytes, longest, syncs := syncLeast, time.Duration(0), 0
		for written := 0; written < 256<<20; written += bytes {
			took := time.Duration(float64(bytes) / float64(rate) * float64(time.Second))
			longest = max(longest, took)
			bytes = syncNext(bytes, took)
			syncs++
		}
		if longest > syncAim || bytes > syncMost || syncs > 16+2*(256<<20)/min(rate/2, syncMost) {
			t.Errorf("at %d bytes a second: %d syncs, the longest of %v, %d bytes at the end", rate, syncs, longest, bytes)
		}
	}
	if got := syncNext(64<<20, 10*time.Second); got != 64<<20/20 { // the disk is slow all of a sudden
		t.Errorf("after a long sync: %d", got)
	}
}
