package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// written is a file below the directory of the first generation that a job writes.
func written(f *testing.F, kind wire.Kind, name string) (body []byte) {
	s, g, gen := open(f, f.TempDir()), testRegions(f), replica.Generation{Epoch: 1, Step: 2}
	if err := writeGeneration(f.Context(), s, g, gen); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, jobName, job.String(), generationDir(gen), name))
	if err != nil {
		f.Fatal(err)
	}
	_, body, err = wire.Read(bytes.NewReader(b), maxMarker)
	if err != nil {
		f.Fatal(err)
	}
	return body
}

// framed is a frame whose checksum is right, around what a disk or somebody else put into it.
func framed(t *testing.T, kind wire.Kind, v any) []byte {
	b, err := wire.Append(nil, kind, v)
	if err != nil {
		t.Skip(err) // more than a frame holds, or nothing that CBOR has
	}
	return b
}

// FuzzMarker: a marker that is taken lists every part of its layout under its own name, and is written as it was read.
func FuzzMarker(f *testing.F) {
	body := written(f, kindMarker, markerName)
	f.Add(body)
	f.Add(body[:len(body)-1])
	f.Add([]byte{0xa0})
	gen := generationDir(replica.Generation{Epoch: 1, Step: 2})
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := parseMarker(body, jobName, job, gen); err == nil {
			t.Fatalf("a body without a frame is read as %+v", m)
		}
		m, err := parseMarker(framed(t, kindMarker, cbor.RawMessage(body)), jobName, job, gen)
		if err != nil {
			return
		}
		for rank, group := range m.Layout.Groups {
			for _, p := range []replica.Part{replica.OfGroup(group), replica.OfRank(replica.Rank(rank))} {
				if s, ok := m.Shard(p); !ok || !filepath.IsLocal(s.File) {
					t.Fatalf("%v of a marker that was taken: %+v, %v", p, s, ok)
				}
			}
		}
		again, err := parseMarker(framed(t, kindMarker, m), jobName, job, gen)
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v comes back as %+v: %v", m, again, err)
		}
	})
}

// FuzzManifest: the manifest that is taken has a layout whose pieces cover each chunk once. The digests, which no mutation could
// guess, are made to fit.
func FuzzManifest(f *testing.F) {
	for _, name := range []string{"group-0.manifest", "private-0.manifest"} {
		body := written(f, kindManifest, name)
		f.Add(body)
		f.Add(body[:len(body)/2])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		frame := framed(t, kindManifest, cbor.RawMessage(body))
		if rec, err := parseSide(body); err == nil {
			t.Fatalf("a body without a frame is read as %+v", rec)
		}
		var rec sideRecord
		if wire.Decode(frame, kindManifest, &rec) != nil || rec.Manifest.Bytes > 1<<20 {
			return // larger ones take long to walk, and are no other
		}
		m := &rec.Manifest
		if m.Check() == nil {
			m.Geometry = hash((replica.Geometry{Regions: rec.Regions}).DigestInput(m.Part.Kind))
			m.Root = hash(m.RootInput())
		}
		got, err := parseSide(framed(t, kindManifest, &rec))
		if err != nil {
			return
		}
		l, err := safetensors.NewLayout(&got.Manifest, got.Regions)
		if err != nil {
			return
		}
		for i := range got.Manifest.Chunks {
			off, n := replica.ChunkSpan(i, got.Manifest.Bytes, got.Manifest.ChunkBytes)
			next := uint64(0)
			err := l.Spans(off, n, func(from, to, at uint64, gap bool) error {
				if from != next || to <= from || to > n || !gap && at+to-from > l.Size() {
					t.Fatalf("chunk %d of %d bytes has a piece from %d to %d, at %d of %d", i, n, from, to, at, l.Size())
				}
				next = to
				return nil
			})
			if err != nil || next != n {
				t.Fatalf("chunk %d: pieces up to %d of %d: %v", i, next, n, err)
			}
		}
		if head, err := safetensors.AppendHeader(metadata(&got.Manifest), l.Tensors); err == nil {
			h, err := safetensors.ParseHeader(head[8:], l.Size())
			if err == nil {
				err = l.Matches(h)
			}
			if err != nil {
				t.Fatalf("the header that is written for %+v: %v", got, err)
			}
		}
	})
}
