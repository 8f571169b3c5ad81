package catalog

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// ranged counts what is read of objects.
type ranged struct {
	store.Store
	requests, bytes atomic.Int64
}

func (c *ranged) ReadRange(ctx context.Context, key string, off int64, b []byte) error {
	c.requests.Add(1)
	c.bytes.Add(int64(len(b)))
	return c.Store.ReadRange(ctx, key, off, b)
}

// TestReadSpan: chunks that are read at once are the chunks, in one request that asks for no other byte.
func TestReadSpan(t *testing.T) {
	st := &ranged{Store: memory.New()}
	c := over(st, 4)
	mustWrite(t, c, gen(7), 2)
	found, _ := finds(t, c)
	made := durabletest.Make(gen(7), 2)
	spans := 0
	for _, p := range append(append(made.Groups, made.Frozen...), made.Private...) {
		sh, err := c.OpenShard(t.Context(), found[0], p.Manifest.Part)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Manifest.Chunks {
			for n := 1; i+n <= len(p.Manifest.Chunks); n++ {
				from, _ := replica.ChunkSpan(i, p.Manifest.Bytes, durabletest.Chunk)
				to := min(from+uint64(n)*durabletest.Chunk, p.Manifest.Bytes)
				want := int64(0) // gaps between regions lie in no file
				for _, r := range sh.Regions() {
					if safetensors.Belongs(r, p.Manifest.Part.Kind) {
						want += max(0, int64(min(to, r.Offset+r.Bytes))-int64(max(from, r.Offset)))
					}
				}
				st.requests.Store(0)
				st.bytes.Store(0)
				got, err := sh.ReadSpan(i, n, nil)
				if err != nil || !bytes.Equal(got, p.Bytes[from:to]) || st.bytes.Load() != want || st.requests.Load() != min(want, 1) {
					t.Fatalf("%v, %d chunks from %d on: %v; %d requests of %d bytes, want 1 of %d", p.Manifest.Part, n, i, err, st.requests.Load(), st.bytes.Load(), want)
				}
				spans++
			}
		}
		for _, bad := range [][2]int{{-1, 1}, {0, 0}, {0, len(p.Manifest.Chunks) + 1}, {len(p.Manifest.Chunks), 1}} {
			if _, err := sh.ReadSpan(bad[0], bad[1], nil); err == nil {
				t.Errorf("chunks %v of %d were read", bad, len(p.Manifest.Chunks))
			}
		}
		sh.Close()
	}
	if spans < 100 {
		t.Errorf("%d spans were read", spans)
	}
}

// TestReadSpanOfDamage: a chunk that rotted is named; of a frozen part the twin gives it.
func TestReadSpanOfDamage(t *testing.T) {
	m := memory.New()
	c := over(m, 4)
	mustWrite(t, c, gen(7), 1)
	found, _ := finds(t, c)
	f := found[0]
	made := durabletest.Make(gen(7), 1)
	for _, p := range []durabletest.Part{made.Groups[0], made.Frozen[0]} {
		at, _ := f.Index.Part(p.Manifest.Part)
		file := f.Index.Files[at.File]
		m.Bend(f.Run.Under(file.Key), func(b []byte) []byte { b[file.Header+durabletest.Chunk/2] ^= 1; return b })
		sh, err := c.OpenShard(t.Context(), f, p.Manifest.Part)
		if err != nil {
			t.Fatal(err)
		}
		got, err := sh.ReadSpan(0, len(p.Manifest.Chunks), nil)
		if file.Twin != "" {
			if err != nil || !bytes.Equal(got, p.Bytes) {
				t.Errorf("%v: %v", p.Manifest.Part, err)
			}
		} else if want := fmt.Sprintf("%s: chunk 0", file.Key); err == nil || !strings.Contains(err.Error(), want) || !damage.Is(err) {
			t.Errorf("%v, want %s", err, want)
		}
		sh.Close()
	}
	for _, p := range made.Frozen {
		sh, err := c.OpenShard(t.Context(), f, p.Manifest.Part)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := f.Index.Part(p.Manifest.Part)
		m.Bend(f.Run.Under(f.Index.Files[at.File].Key), func([]byte) []byte { return nil })
		if got, err := sh.ReadSpan(0, len(p.Manifest.Chunks), nil); err != nil || !bytes.Equal(got, p.Bytes) {
			t.Errorf("%v with one twin left: %v", p.Manifest.Part, err)
		}
		sh.Close()
	}
}
