package shm

import (
	"bytes"
	"testing"

	"github.com/replicad/replicad/replica"
)

func goldenSpec(t testing.TB) Spec {
	t.Helper()
	g, err := parseRegionTable(goldenFile(t, "region_records"))
	if err != nil {
		t.Fatal(err)
	}
	s := Spec{Era: 2, Rank: 3, Geometry: g, ChunkBytes: 4096, Slots: 4, Ring: 16}
	for i := range 16 {
		s.Cluster[i], s.Job[i] = 0xa0+byte(i), 0xb0+byte(i)
	}
	return s
}

// The vectors are what C thinks of the same arena.
func TestGoldenArena(t *testing.T) {
	s, page := goldenSpec(t), goldenFile(t, "control")
	h, err := layOut(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.marshal(s); !bytes.Equal(got, page[:headerBytes]) {
		t.Errorf("header\n%x, want\n%x", got, page[:headerBytes])
	}
	back, n, err := parseHeader(page)
	back.Geometry = s.Geometry
	if err != nil || int(n) != len(s.Geometry.Regions) || back.check() != nil {
		t.Errorf("parsed %+v with %d regions: %v", back, n, err)
	}
	for off, want := range map[int]uint64{wordStep: 7696581394597, wordGood: 7696581394592, wordFence: 6, wordCommitted: 7696581394584, wordCandidate: 7696581394588, wordCadence: 1,
		wordIncarnation: 12, wordPID: 4711, wordStart: 123456, wordSkipped: 2, wordCaptured: 37, wordHolder: 12,
		wordOf(Place{Slot, 3}): 107, wordOf(Place{Ring, 15}): 920, wordOf(Place{Frozen, 0}): 11} {
		if got := le64(page[off:]); got != want {
			t.Errorf("word at %d: %d, want %d", off, got, want)
		}
	}
}

func TestGoldenMeta(t *testing.T) {
	b, part := goldenFile(t, "meta"), goldenFile(t, "part")
	m, err := parseMeta(b, Slot, uint64(len(part)), 512)
	if err != nil {
		t.Fatal(err)
	}
	if m.Generation != replica.Word(7696581394592).Generation() || m.Flags != replica.NoUpdate || m.Count != 10 || m.Incarnation != 12 || m.PinTerm != 5 || m.PinN != 6 || m.Rank != 3 {
		t.Errorf("meta %+v", m)
	}
	for i, d := range m.Digests {
		off, n := replica.ChunkSpan(i, m.Bytes, 512)
		if got := Hash(part[off : off+n]); got != d {
			t.Errorf("chunk %d: %v, want %v", i, got, d)
		}
	}
	man := replica.Manifest{Part: replica.OfGroup(0), Flags: m.Flags, Geometry: GeometryDigest(goldenSpec(t).Geometry, replica.ReplicatedPart), FrozenRoot: m.FrozenRoot,
		Bytes: m.Bytes, ChunkBytes: 512, Chunks: m.Digests}
	if got := Root(&man); got != m.Root {
		t.Errorf("root %v, want %v", got, m.Root)
	}
	if !bytes.Equal(m.marshal(), b) {
		t.Errorf("encodes to\n%x, want\n%x", m.marshal(), b)
	}
}

// Places must not overlap and must lie inside the arena, whatever the sizes.
func TestPlacesAreDisjoint(t *testing.T) {
	for _, s := range []Spec{testSpec(t), func() Spec { s := testSpec(t); s.Mirror = true; return s }(), func() Spec { s := testSpec(t); s.Mirror, s.Slots, s.Ring = true, 3, -1; return s }()} {
		s = s.withDefaults()
		h, err := layOut(s)
		if err != nil {
			t.Fatal(err)
		}
		a := &Arena{spec: s, head: h, places: placesOf(h)}
		used := make([]byte, h.ArenaBytes)
		take := func(what any, off, n uint64) {
			for i := off; i < off+n; i++ {
				if used[i]++; used[i] > 1 {
					t.Fatalf("%v overlaps at %d", what, i)
				}
			}
		}
		take("control", 0, pageBytes)
		take("regions", h.RegionsOffset, uint64(h.RegionCount)*replica.RegionRecordBytes)
		for _, p := range a.Places() {
			off, n := a.span(p)
			take(p, off, n)
			take(p, a.metaOf(p), metaBytes+16*uint64(replica.ChunkCount(n, s.ChunkBytes)))
		}
		for i := range h.Staging {
			take("staging", h.StagingOffset+uint64(i)*h.StagingStride, h.VolatileBytes)
		}
	}
}

func TestSpecDefaults(t *testing.T) {
	s := testSpec(t)
	if got := s.withDefaults(); got.Slots != 4 || got.Ring != 11 {
		t.Errorf("rank: %d slots, ring of %d", got.Slots, got.Ring)
	}
	s.Mirror = true
	if got := s.withDefaults(); got.Slots != 0 || got.Ring != 11 {
		t.Errorf("mirror of a private part: %d slots, ring of %d", got.Slots, got.Ring)
	}
	for what, bad := range map[string]func(*Spec){
		"one slot":     func(s *Spec) { s.Slots = 1 },
		"five slots":   func(s *Spec) { s.Slots = 5 },
		"ring of 17":   func(s *Spec) { s.Ring = 17 },
		"no job":       func(s *Spec) { s.Job = replica.JobID{} },
		"no regions":   func(s *Spec) { s.Geometry = replica.Geometry{} },
		"huge chunks":  func(s *Spec) { s.ChunkBytes = 1 << 31 },
		"rank too big": func(s *Spec) { s.Rank = replica.MaxRanks },
	} {
		s := testSpec(t)
		bad(&s)
		if a, err := Create(s); err == nil {
			_ = a.Close()
			t.Errorf("%s: not refused", what)
		}
	}
}

func FuzzHeader(f *testing.F) {
	page := goldenFile(f, "control")
	f.Add(page[:headerBytes])
	g := goldenSpec(f).Geometry
	f.Fuzz(func(t *testing.T, b []byte) {
		s, n, err := parseHeader(b)
		if err != nil {
			return
		}
		s.Geometry = g
		if s.check() != nil {
			return
		}
		h, err := layOut(s)
		if err != nil {
			return
		}
		h.RegionCount = n
		back, _, err := parseHeader(h.marshal(s))
		back.Geometry = g
		if err != nil || !bytes.Equal(h.marshal(back), h.marshal(s)) {
			t.Fatalf("%+v comes back as %+v: %v", s, back, err)
		}
	})
}

func FuzzMeta(f *testing.F) {
	f.Add(goldenFile(f, "meta"), uint64(1344), uint32(512))
	f.Add(make([]byte, metaBytes), uint64(0), uint32(4096))
	f.Fuzz(func(t *testing.T, b []byte, n uint64, chunk uint32) {
		if n > maxArenaBytes || chunk == 0 || n/uint64(chunk) > 1<<16 {
			return // of the daemon's own making
		}
		m, err := parseMeta(b, Ring, n, chunk)
		if err != nil {
			return
		}
		back, err := parseMeta(m.marshal(), Ring, n, chunk)
		if err != nil || !bytes.Equal(back.marshal(), m.marshal()) {
			t.Fatalf("%+v comes back as %+v: %v", m, back, err)
		}
	})
}
