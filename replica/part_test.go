package replica

import (
	"bytes"
	"testing"
)

func manifest() Manifest {
	return Manifest{Part: OfGroup(1), Generation: Generation{2, 9}, Rank: 3, Geometry: Digest{7}, FrozenRoot: Digest{8}, Bytes: 2500, ChunkBytes: 1024, Chunks: []Digest{{1}, {2}, {3}}}
}

func TestChunks(t *testing.T) {
	for _, c := range []struct {
		bytes uint64
		chunk uint32
		want  int
	}{{0, 1024, 0}, {1, 1024, 1}, {1024, 1024, 1}, {1025, 1024, 2}, {5, 0, 0}} {
		if got := ChunkCount(c.bytes, c.chunk); got != c.want {
			t.Errorf("%d bytes in chunks of %d: %d, want %d", c.bytes, c.chunk, got, c.want)
		}
		var sum uint64
		for i := range c.want {
			off, n := ChunkSpan(i, c.bytes, c.chunk)
			if off != sum || n == 0 {
				t.Errorf("chunk %d of %d bytes: %d at %d, want it to start at %d", i, c.bytes, n, off, sum)
			}
			sum += n
		}
		if c.chunk != 0 && sum != c.bytes {
			t.Errorf("chunks of %d bytes sum up to %d", c.bytes, sum)
		}
	}
}

func TestManifestCheck(t *testing.T) {
	m := manifest()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Manifest){
		"kind":           func(m *Manifest) { m.Part.Kind = 3 },
		"no chunk size":  func(m *Manifest) { m.ChunkBytes = 0 },
		"chunk size":     func(m *Manifest) { m.ChunkBytes = 1<<30 + 1 },
		"chunks missing": func(m *Manifest) { m.Chunks = m.Chunks[:2] },
		"chunks over":    func(m *Manifest) { m.Chunks = append(m.Chunks, Digest{}) },
		"bytes":          func(m *Manifest) { m.Bytes = 1<<50 + 1 },
	} {
		m := manifest()
		change(&m)
		if m.Check() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestRootInput: the root covers what the bytes are and not who made them when: two replicas of one state have one root.
func TestRootInput(t *testing.T) {
	orig := manifest()
	in := orig.RootInput()
	if len(in) != 8+16+4*4+8+16+16*3 {
		t.Errorf("%d bytes of root input", len(in))
	}
	for name, change := range map[string]func(*Manifest){
		"generation": func(m *Manifest) { m.Generation.Step++ }, "rank": func(m *Manifest) { m.Rank++ }, "incarnation": func(m *Manifest) { m.Incarnation++ },
		"daemon made": func(m *Manifest) { m.Flags |= DaemonMade }, "lineage": func(m *Manifest) { m.Lineage = Lineage{{1, 0}} }, "group": func(m *Manifest) { m.Part.Index++ },
	} {
		m := manifest()
		change(&m)
		if !bytes.Equal(m.RootInput(), in) {
			t.Errorf("%s changes the root", name)
		}
	}
	for name, change := range map[string]func(*Manifest){
		"chunk": func(m *Manifest) { m.Chunks[1][5]++ }, "order": func(m *Manifest) { m.Chunks[0], m.Chunks[1] = m.Chunks[1], m.Chunks[0] }, "bytes": func(m *Manifest) { m.Bytes++ },
		"kind": func(m *Manifest) { m.Part.Kind = PrivatePart }, "chunk size": func(m *Manifest) { m.ChunkBytes *= 2 }, "geometry": func(m *Manifest) { m.Geometry[3]++ },
		"frozen root": func(m *Manifest) { m.FrozenRoot[3]++ }, "no update": func(m *Manifest) { m.Flags |= NoUpdate },
	} {
		m := manifest()
		change(&m)
		if bytes.Equal(m.RootInput(), in) {
			t.Errorf("%s leaves the root as it was", name)
		}
	}
}
