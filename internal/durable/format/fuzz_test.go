package format

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// FuzzName: a key is read in exactly the form that is written, and leads nowhere else.
func FuzzName(f *testing.F) {
	for _, s := range []string{"commits/step-00001200.e2.json", "pins/step-00001200.e2-ada.json", "reads/step-00001200.e2.17.bad-n.json", "step-00000001.e1/node-b.w1.safetensors", "frozen/group-0-09000000000000000000000000000000.a.safetensors", "../x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		n := ParseName(key)
		if n.Kind != Stray && (n.String() != key || place.Under(key) != place.Prefix()+key) {
			t.Fatalf("%q is read as %+v, which is %q", key, n, n.String())
		}
		if _, _, ok := ParseRunName(key); ok && (len(key) != len(place.Run) || Place{"a", key}.Check() != nil) {
			t.Fatalf("%q is a run", key)
		}
		if replica.CheckName(Who(key)) != nil {
			t.Fatalf("%q is called %q", key, Who(key))
		}
	})
}

// enclosed wraps a body that was mutated, so that the parsers behind the checksum are reached.
func enclosed(kind string, body []byte) []byte {
	b, err := Seal(kind, json.RawMessage(body))
	if err != nil {
		return body
	}
	return b
}

// FuzzCommit: what is taken is of the place, and is written as it was read.
func FuzzCommit(f *testing.F) {
	_, _, c, cb := generation(f)
	body, _ := json.Marshal(c)
	f.Add(body)
	f.Add(cb)
	_, c = encrypted(f)
	body, _ = json.Marshal(c)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, b := range [][]byte{body, enclosed("commit", body)} {
			c, err := ParseCommit(b, place, replica.JobID{}, gen)
			if err != nil {
				continue
			}
			again, err := c.Seal()
			if err != nil {
				t.Fatal(err)
			}
			d, err := ParseCommit(again, place, c.Run, gen)
			if err != nil || mustEqual(t, c) != mustEqual(t, d) {
				t.Fatalf("%+v comes back as %+v: %v", c, d, err)
			}
		}
	})
}

func mustEqual(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// FuzzIndex: every file of an index that is taken lies below the run, and every piece within its file.
func FuzzIndex(f *testing.F) {
	x, _, c, _ := generation(f)
	body, _ := json.Marshal(x)
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		b := enclosed("index", body)
		d := *c
		d.Index.Bytes, d.Index.SHA256 = uint64(len(b)), Sum(b)
		x, err := ParseIndex(b, &d, nil)
		if err != nil {
			return
		}
		for _, file := range x.Files {
			if n := ParseName(file.Key); n.Kind != SharedKind && (n.Kind != ShardKind || n.Generation != gen) {
				t.Fatalf("file %q", file.Key)
			}
		}
		for _, tensor := range x.Tensors {
			for _, p := range tensor.Pieces {
				if file := x.Files[p.File]; p.From+p.Bytes > file.Bytes || p.From < file.Header {
					t.Fatalf("%+v in a file of %d", p, file.Bytes)
				}
			}
		}
	})
}

// FuzzDocuments: no other document makes a parser fail otherwise than by an error.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(`{"job":"opticks","id":"ab010203-0000-0000-0000-000000000000","owner":0,"order":1,"began":0}`))
	f.Add([]byte(`{"run":"20261125T1716Z-ab010203","generation":{"epoch":2,"step":1200},"position":{"epoch":2,"step":1},"sha256":"00"}`))
	f.Add([]byte(`{"generation":{"epoch":2,"step":1200},"who":"ada","at":1}`))
	f.Add([]byte(`{"verb":"prune","who":"ada","host":"h","at":1}`))
	pin, read := Name{Kind: PinKind, Generation: gen, Who: "ada"}, Name{Kind: ReadKind, Generation: gen, Who: "ada", At: 1, Good: true}
	f.Fuzz(func(t *testing.T, body []byte) {
		for kind, parse := range map[string]func(b []byte) (any, error){
			"run":     func(b []byte) (any, error) { return ParseRun(b, place) },
			"claim":   func(b []byte) (any, error) { return ParseClaim(b, place, durabletest.Job, 2) },
			"hint":    func(b []byte) (any, error) { return ParseHint(b) },
			"summary": func(b []byte) (any, error) { return ParseSummary(b, place) },
			"pin":     func(b []byte) (any, error) { return ParsePin(b, pin) },
			"trash":   func(b []byte) (any, error) { return ParseTrash(b, gen) },
			"read":    func(b []byte) (any, error) { return ParseRead(b, read) },
			"log":     func(b []byte) (any, error) { return ParseLog(b) },
		} {
			if _, err := parse(body); err == nil && !bytes.Contains(body, []byte(`"`+kind+`"`)) {
				t.Fatalf("%s: taken without its envelope", kind)
			}
			if v, err := parse(enclosed(kind, body)); err == nil {
				if b, err := json.Marshal(v); err != nil || len(b) == 0 {
					t.Fatalf("%s: %v", kind, err)
				}
			}
		}
	})
}

// FuzzSpooled: what a note in a spool names lies in the spool, and holds the parts that it lists, with their roots.
func FuzzSpooled(f *testing.F) {
	p := durabletest.Make(gen, 1).Groups[0]
	o, head, err := NewObject([]Source{{p.Manifest, p.Regions}})
	if err != nil {
		f.Fatal(err)
	}
	part := p.Manifest.Part
	body, err := json.Marshal(&Spooled{Job: "opticks", ID: p.Manifest.Job, Node: "n1", Generation: gen, Number: 3, Object: "group-0", Parts: []replica.Part{part}, Roots: []Rooted{{part, p.Manifest.Root}},
		Said: Commit{Layout: durabletest.Make(gen, 1).Layout}, Pieces: []SpoolPiece{{"n1+1.spool", head, o.Size()}}})
	if err != nil {
		f.Fatal(err)
	}
	if s, err := ParseSpooled(enclosed("spooled", body)); err != nil {
		f.Fatal(err)
	} else if got, err := s.Packed(0); err != nil || got.Manifest.Root != p.Manifest.Root {
		f.Fatalf("%+v, %v", got, err)
	}
	f.Add(body)
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := ParseSpooled(enclosed("spooled", body))
		if err != nil {
			return
		}
		for i, piece := range s.Pieces {
			if strings.ContainsRune(piece.File, '/') || piece.File == ".." {
				t.Fatalf("file %q", piece.File)
			}
			if packed, err := s.Packed(i); err == nil {
				if root, ok := s.Root(packed.Manifest.Part); !ok || root != packed.Manifest.Root || packed.Manifest.Job != s.ID {
					t.Fatalf("it holds %+v", packed.Manifest)
				}
			}
		}
	})
}

// FuzzObject: what a header that is taken says lies within its file. The digests, which no mutation could guess, are made to fit.
func FuzzObject(f *testing.F) {
	g := durabletest.Make(gen, 2)
	for _, parts := range [][]durabletest.Part{{g.Groups[0]}, g.Private, {g.Frozen[0]}} {
		o, b := object(f, parts...)
		f.Add(b[8:o.Head], uint64(len(b))-o.Head)
	}
	f.Fuzz(func(t *testing.T, text []byte, data uint64) {
		h, err := safetensors.ParseHeader(text, data)
		if err != nil {
			return
		}
		head, err := safetensors.AppendHeader(h.Metadata, h.Tensors)
		if err != nil {
			return
		}
		o, err := ParseObject(head, uint64(len(head))+data)
		if err != nil {
			return
		}
		for _, p := range o.Parts {
			if safetensors.Hash(p.Manifest.RootInput()) != p.Manifest.Root || p.At+p.Layout.Size() > o.Data {
				t.Fatalf("%v at %d of %d", p.Manifest.Part, p.At, o.Data)
			}
		}
		var sources []Source
		for _, p := range o.Parts {
			sources = append(sources, Source{p.Manifest, p.Regions})
		}
		again, _, err := NewObject(sources)
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		if len(again.Parts) != len(o.Parts) || again.Data != o.Data {
			t.Fatalf("%+v comes back as %+v", o, again)
		}
	})
}

// FuzzCapsule: nothing that a region may hold makes more than an error.
func FuzzCapsule(f *testing.F) {
	g := durabletest.Make(gen, 2)
	for _, r := range g.Frozen[0].Regions {
		if r.Name == LayoutRegion {
			f.Add(g.Frozen[0].Bytes[r.Offset : r.Offset+r.Bytes])
		}
	}
	for _, r := range g.Private[0].Regions {
		if r.Name == "replicad.own" {
			f.Add(g.Private[0].Bytes[r.Offset : r.Offset+r.Bytes])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if l, err := ParseLayout(b); err == nil {
			for name, s := range l {
				if s.check() != nil {
					t.Fatalf("%s: %+v", name, s)
				}
			}
		}
		if s, ok := Generators(b); ok && s.Check() != nil {
			t.Fatal(s.Check())
		}
		Loaders(b)
	})
}

// TestSeedsAreTaken: the fuzz targets begin from what is taken; a seed that every parser refuses at once would search nothing.
func TestSeedsAreTaken(t *testing.T) {
	x, _, c, _ := generation(t)
	body, _ := json.Marshal(c)
	if _, err := ParseCommit(enclosed("commit", body), place, replica.JobID{}, gen); err != nil {
		t.Error(err)
	}
	body, _ = json.Marshal(x)
	b := enclosed("index", body)
	d := *c
	d.Index.Bytes, d.Index.SHA256 = uint64(len(b)), Sum(b)
	_, e := encrypted(t)
	body, _ = json.Marshal(e)
	if _, err := ParseCommit(enclosed("commit", body), place, replica.JobID{}, gen); err != nil {
		t.Error(err)
	}
	if y, err := ParseIndex(b, &d, nil); err != nil || !reflect.DeepEqual(y.Files, x.Files) {
		t.Error(err)
	}
}
