package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

var (
	gen   = replica.Generation{Epoch: 2, Step: 1200}
	place = Place{Job: durabletest.JobName, Run: RunName(time.Date(2026, 11, 25, 17, 16, 0, 0, time.UTC), durabletest.Job)}
)

// object is a file of parts, whole.
func object(t testing.TB, parts ...durabletest.Part) (*Object, []byte) {
	t.Helper()
	var sources []Source
	for _, p := range parts {
		sources = append(sources, Source{p.Manifest, p.Regions})
	}
	o, head, err := NewObject(sources)
	if err != nil {
		t.Fatal(err)
	}
	b := bytes.Clone(head)
	for i, p := range o.Parts {
		err := p.Layout.Spans(0, p.Manifest.Bytes, func(from, to, _ uint64, gap bool) error {
			if !gap {
				b = append(b, parts[i].Bytes[from:to]...)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return o, b
}

// generation makes index and COMMIT of what durabletest makes.
func generation(t testing.TB) (*Index, []byte, *Commit, []byte) {
	t.Helper()
	g := durabletest.Make(gen, 2)
	var files []Written
	layouts := make(map[uint32]map[string]Shard)
	add := func(n Name, parts ...durabletest.Part) {
		o, b := object(t, parts...)
		f := File{Key: n.String(), Bytes: uint64(len(b)), Header: o.Head, SHA256: Sum(b)}
		if n.Twin == 'a' {
			n.Twin = 'b'
			f.Twin = n.String()
		}
		files = append(files, Written{File: f, Object: o})
	}
	commit := &Commit{Job: place.Job, Run: durabletest.Job, Generation: gen, Position: replica.Position{Epoch: 3, Step: 1200}, Write: durabletest.Write, Layout: g.Layout,
		Lineage: replica.Lineage{{Epoch: 1}}, Geometries: []replica.Digest{{3}, {4}}, Metrics: map[string]Metric{"loss": 1.5}, Notes: map[string]string{"lr": "0.1"}, KeptFiles: &Ref{KeptKey, 2048, Sum(nil)}, At: 1}
	for i, p := range g.Groups {
		add(Name{Kind: ShardKind, Generation: gen, Write: durabletest.Write, Shard: "group-" + string(rune('0'+i))}, p)
		f := g.Frozen[i]
		add(Name{Kind: SharedKind, Group: f.Manifest.Part.Index, Root: f.Manifest.Root, Twin: 'a'}, f)
		for _, r := range f.Regions {
			if r.Name == LayoutRegion {
				l, err := ParseLayout(f.Bytes[r.Offset : r.Offset+r.Bytes])
				if err != nil {
					t.Fatal(err)
				}
				layouts[f.Manifest.Part.Index] = l
			}
		}
	}
	add(Name{Kind: ShardKind, Generation: gen, Write: durabletest.Write, Shard: "node-b"}, g.Private...)
	x := NewIndex(place.Job, durabletest.Job, gen, durabletest.Write, files, layouts)
	xb, err := x.Seal()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range x.Files {
		commit.Bytes += f.Bytes
		commit.Files++
		if f.Twin != "" {
			commit.Frozen = append(commit.Frozen, f.Key, f.Twin)
		}
	}
	commit.Index = Ref{Name{Kind: IndexKind, Generation: gen, Write: durabletest.Write}.String(), uint64(len(xb)), Sum(xb)}
	cb, err := commit.Seal()
	if err != nil {
		t.Fatal(err)
	}
	return x, xb, commit, cb
}

func TestNames(t *testing.T) {
	root := replica.Digest{9}
	for want, n := range map[string]Name{
		"commits/step-00001200.e2.json":                                 {Kind: CommitKind, Generation: gen},
		"epochs/000002.json":                                            {Kind: ClaimKind, Epoch: 2},
		"epochs/000002.00ff00ff00ff00ff.json":                           {Kind: ClaimKind, Epoch: 2, Fleet: "00ff00ff00ff00ff"},
		"frozen/group-1-09000000000000000000000000000000.b.safetensors": {Kind: SharedKind, Group: 1, Root: root, Twin: 'b'},
		"pins/step-00001200.e2-ada-1.json":                              {Kind: PinKind, Generation: gen, Who: "ada-1"},
		"reads/step-00001200.e2.1700000000.good-n1.json":                {Kind: ReadKind, Generation: gen, At: 1700000000, Good: true, Who: "n1"},
		"reads/step-00001200.e2.3.1700000000.bad-n1.json":               {Kind: ReadKind, Generation: gen, Number: 3, At: 1700000000, Who: "n1"},
		"reads/step-00001200.e2.1700000000.bad-n1.json":                 {Kind: ReadKind, Generation: gen, At: 1700000000, Who: "n1"},
		"run.json": {Kind: RunKind},
		"kept.tar": {Kind: KeptKind},
		"step-00001200.e2/group-0.w17.safetensors":                                     {Kind: ShardKind, Generation: gen, Write: 17, Shard: "group-0"},
		"step-00001200.e2/node-gpu.rack-1.w17.safetensors":                             {Kind: ShardKind, Generation: gen, Write: 17, Shard: "node-gpu.rack-1"},
		"step-00001200.e2/node-b.w1.0123cdef89ab4567.w17.0123cdef89ab4567.safetensors": {Kind: ShardKind, Generation: gen, Write: 17, Shard: "node-b.w1.0123cdef89ab4567", Seal: "0123cdef89ab4567"},
		"step-00001200.e2/index.w17.json":                                              {Kind: IndexKind, Generation: gen, Write: 17},
		"summary.json":                                                                 {Kind: SummaryKind},
		"trash/step-00001200.e2.json":                                                  {Kind: TrashKind, Generation: gen},
	} {
		if n.String() != want || ParseName(want) != n {
			t.Errorf("%+v is %s, and %s is read as %+v", n, n, want, ParseName(want))
		}
	}
	for _, bad := range []string{"", "commits/step-1200.e2.json", "commits/step-00001200.e02.json", "commits/step-00001200.e2.json/x", "epochs/2.json", "epochs/000002..json", "epochs/000002.00FF00ff00ff00ff.json", "epochs/000002.00ff.json", "pins/step-00001200.e2-.json",
		"step-00001200.e2/group-0.w017.safetensors", "step-00001200.e2/group-0.w17.0123CDEF89AB4567.safetensors", "step-00001200.e2/group-0.w17.0123cdef.safetensors", "step-00001200.e2/../x.w1.safetensors", "frozen/group-1-0900.a.safetensors", "step-99999999999999.e1/index.w1.json", "summary.json2", "kept.tar/x", "kept.tar.gz"} {
		if n := ParseName(bad); n.Kind != Stray {
			t.Errorf("%q is read as %+v", bad, n)
		}
	}
	if _, digits, ok := ParseRunName(place.Run); !ok || digits != "ab010203" || place.Check() != nil {
		t.Errorf("%s: %q, %v", place.Run, digits, ok)
	}
	for _, bad := range []string{"20261125T1716Z-AB010203", "20261125T1716Z-ab01020", "ab010203-0000-0000-0000-000000000000", "30261125T1716Z-ab010203", "20261325T1716Z-ab010203"} {
		if _, _, ok := ParseRunName(bad); ok {
			t.Errorf("%q is a run", bad)
		}
	}
	for in, want := range map[string]string{"Ada Lovelace@host": "ada-lovelace-host", "..": "somebody", "": "somebody", strings.Repeat("é", 50): "somebody"} {
		if got := Who(in); got != want || replica.CheckName(got) != nil {
			t.Errorf("Who(%q) = %q", in, got)
		}
	}
}

// TestKeptFilesOfACommit: a commit names one place for the files that its run carries, within bounds.
func TestKeptFilesOfACommit(t *testing.T) {
	for name, bad := range map[string]Ref{"elsewhere": {"../kept.tar", 2048, Sum(nil)}, "a shard": {"step-00001200.e2/group-0.w17.safetensors", 2048, Sum(nil)}, "no digest": {KeptKey, 2048, "ab"}, "too large": {KeptKey, MaxDocument + 1, Sum(nil)}} {
		_, _, c, _ := generation(t)
		c.KeptFiles = &bad
		b, err := c.Seal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseCommit(b, place, durabletest.Job, gen); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "want kept.tar") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestGeneration: what is written is read back, and says where each tensor lies.
func TestGeneration(t *testing.T) {
	x, xb, c, cb := generation(t)
	got, err := ParseCommit(cb, place, durabletest.Job, gen)
	if err != nil || !reflect.DeepEqual(got, c) || !got.Same(c) {
		t.Fatalf("%+v, %v", got, err)
	}
	again, err := ParseIndex(xb, got, nil)
	if err != nil {
		t.Fatal(err)
	}
	if js, _ := json.Marshal(again); string(js) != mustJSON(t, x) {
		t.Error("the index comes back different")
	}
	var weight Tensor
	for _, tensor := range x.Tensors {
		if tensor.Name == "weight" {
			weight = tensor
		}
	}
	if !reflect.DeepEqual(weight.Shape, []uint64{10, 7}) || len(weight.Pieces) != 2 || !reflect.DeepEqual(weight.Pieces[1].At, []uint64{5, 0}) || weight.Placements[0] != "shard(0)" {
		t.Errorf("weight: %+v", weight)
	}
	if len(x.Beyond) != 2 || x.Beyond[0].Name != "sgd" {
		t.Errorf("beyond: %+v", x.Beyond)
	}
	g := durabletest.Make(gen, 2)
	_, file := object(t, g.Groups[1])
	p := weight.Pieces[1]
	r := g.Groups[1].Regions[0]
	if !bytes.Equal(file[p.From:p.From+p.Bytes], g.Groups[1].Bytes[r.Offset:r.Offset+r.Bytes]) {
		t.Error("the piece of weight does not lie where the index says")
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestForeign: a COMMIT or an index of another job, run, step, epoch or write is refused, and so is one that its files do not fit.
func TestForeign(t *testing.T) {
	x, xb, c, cb := generation(t)
	for name, err := range map[string]error{
		"job":        second(ParseCommit(cb, Place{"other", place.Run}, durabletest.Job, gen)),
		"run":        second(ParseCommit(cb, place, replica.JobID{1}, gen)),
		"run's name": second(ParseCommit(cb, Place{place.Job, "20261125T1716Z-00000000"}, replica.JobID{}, gen)),
		"step":       second(ParseCommit(cb, place, durabletest.Job, replica.Generation{Epoch: 2, Step: 1201})),
		"epoch":      second(ParseCommit(cb, place, durabletest.Job, replica.Generation{Epoch: 3, Step: 1200})),
		"kind":       second(ParseCommit(xb, place, durabletest.Job, gen)),
		"cut":        second(ParseCommit(cb[:len(cb)-3], place, durabletest.Job, gen)),
		"longer":     second(ParseCommit(append(bytes.Clone(cb), '{'), place, durabletest.Job, gen)),
		"index":      second(ParseIndex(append(bytes.Clone(xb), ' '), c, nil)),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bend := func(change func(x *Index)) error {
		var y Index
		if err := json.Unmarshal([]byte(mustJSON(t, x)), &y); err != nil {
			t.Fatal(err)
		}
		change(&y)
		b, err := y.Seal()
		if err != nil {
			t.Fatal(err)
		}
		d := *c
		d.Index.Bytes, d.Index.SHA256 = uint64(len(b)), Sum(b)
		return second(ParseIndex(b, &d, nil))
	}
	if err := bend(func(*Index) {}); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(x *Index){
		"other write":        func(x *Index) { x.Write++ },
		"other step":         func(x *Index) { x.Generation.Step++ },
		"file of another":    func(x *Index) { x.Files[0].Key = "step-00001200.e2/group-0.w16.safetensors" },
		"file outside":       func(x *Index) { x.Files[0].Key = "../x" },
		"another twin":       func(x *Index) { x.Files[1].Twin = x.Files[3].Twin },
		"size":               func(x *Index) { x.Files[0].Bytes++ },
		"no file":            func(x *Index) { x.Files = x.Files[:len(x.Files)-1] },
		"part twice":         func(x *Index) { x.Parts[0].Part = x.Parts[2].Part },
		"part missing":       func(x *Index) { x.Parts = x.Parts[:len(x.Parts)-1] },
		"file of a part":     func(x *Index) { x.Parts[0].File = 99 },
		"frozen root":        func(x *Index) { x.Parts[0].FrozenRoot[0]++ },
		"piece beyond":       func(x *Index) { x.Tensors[0].Pieces[0].From = 1 << 60 },
		"piece in a header":  func(x *Index) { x.Tensors[0].Pieces[0].From = 8 },
		"shape that lies":    func(x *Index) { x.Tensors[0].Pieces[0].Shape = []uint64{1 << 40, 1 << 40} },
		"unknown type":       func(x *Index) { x.Tensors[0].DType = "F31" },
		"header beyond file": func(x *Index) { x.Files[0].Header = x.Files[0].Bytes + 1 },
	} {
		if err := bend(change); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestFlips: no flipped bit of a document passes.
func TestFlips(t *testing.T) {
	_, _, c, cb := generation(t)
	for i := range cb {
		for bit := range 8 {
			b := bytes.Clone(cb)
			b[i] ^= 1 << bit
			got, err := ParseCommit(b, place, durabletest.Job, gen)
			if err == nil && !reflect.DeepEqual(got, c) {
				t.Fatalf("byte %d, bit %d: passed as something else", i, bit)
			}
		}
	}
}

// TestWhatCannotBe: documents whose digests are right, and which say what no writer of ours says.
func TestWhatCannotBe(t *testing.T) {
	x, _, c, _ := generation(t)
	commit := func(change func(*Commit)) error {
		d := *c
		change(&d)
		b, err := d.Seal()
		if err != nil {
			t.Fatal(err)
		}
		_, err = ParseCommit(b, place, durabletest.Job, gen)
		return err
	}
	index := func(change func(*Index)) error {
		y := *x
		y.Tensors = slices.Clone(x.Tensors)
		change(&y)
		b, err := y.Seal()
		if err != nil {
			t.Fatal(err)
		}
		d := *c
		d.Index.Bytes, d.Index.SHA256 = uint64(len(b)), Sum(b)
		_, err = ParseIndex(b, &d, nil)
		return err
	}
	raw := func(old, new string) error {
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(b), old, new, 1)
		if changed == string(b) {
			t.Fatalf("%s has no %s", b, old)
		}
		_, err = ParseCommit(enclosed("commit", []byte(changed)), place, durabletest.Job, gen)
		return err
	}
	for name, got := range map[string]struct {
		err  error
		says string
	}{
		"geometries":    {commit(func(c *Commit) { c.Geometries = make([]replica.Digest, 1<<10) }), "1024 geometries of"},
		"a field twice": {raw(`"owner":`, `"owner":1,"owner":`), `"owner" is there twice`},
		"in other case": {raw(`"owner":`, `"Owner":1,"owner":`), `"Owner" is none of its fields`},
		"by escape":     {raw(`"owner":`, `"own\u0065r":1,"owner":`), `"owner" is there twice`},
		"within":        {raw(`"layout":{`, `"layout":{"world":3,`), `"world" is there twice`},
		"of notes":      {raw(`"notes":{`, `"notes":{"a":"1","a":"2",`), `"a" is there twice`},
		"a shape":       {index(func(x *Index) { x.Tensors[0].Shape = []uint64{1 << 40, 1 << 40} }), "whose pieces have"},
		"two pieces of one": {index(func(x *Index) {
			x.Tensors[0].Pieces = append(slices.Clone(x.Tensors[0].Pieces), x.Tensors[0].Pieces[0])
		}), "two pieces of"},
		"bytes twice": {index(func(x *Index) {
			for range 100 {
				x.Tensors = append(x.Tensors, x.Tensors[0])
			}
		}), "where other tensors leave"},
	} {
		if got.err == nil || !errors.Is(got.err, ErrCorrupt) || !strings.Contains(got.err.Error(), got.says) {
			t.Errorf("%s: %v; want %q", name, got.err, got.says)
		}
	}
	for name, err := range map[string]error{ // what may be there is taken
		"untouched":      commit(func(*Commit) {}),
		"index":          index(func(*Index) {}),
		"keys in a case": raw(`"notes":{`, `"notes":{"a":"1","A":"2",`),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewer(t *testing.T) {
	b := bytes.Replace([]byte(`{"replicad":"root","format":1,"sha256":"","body":{}}`), []byte(`:1,`), []byte(`:2,`), 1)
	if err := ParseRoot(b); !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "format 2") {
		t.Error(err)
	}
	root, err := SealRoot()
	if err != nil || ParseRoot(root) != nil {
		t.Error(err, ParseRoot(root))
	}
}

// What the decoder passes over, once refuses: fields that are none of a document's, and values that no program has written.
func TestPassedOver(t *testing.T) {
	_, _, c, _ := generation(t)
	body := mustJSON(t, c)
	for _, key := range []string{
		`"-":0,`, `"Replayable":true,`, `"replayable":{"x":1},`, `"replayable":0,`, `"replayable":true,"replayable":true,`,
	} {
		b, err := Seal("commit", json.RawMessage(strings.Replace(body, `"options":{`, `"options":{`+key, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseCommit(b, place, durabletest.Job, gen); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", key, err)
		}
	}
	if p := planOf(reflect.TypeFor[Shard]()); p.fields["-"] != nil {
		t.Error("a field that JSON does not have is read")
	}
}

// A commit of a program of before has an option that nothing read: it is read as before, and the same key elsewhere is refused.
func TestFormerKeys(t *testing.T) {
	_, _, c, cb := generation(t)
	body := mustJSON(t, c)
	for at, want := range map[string]error{`"options":{`: nil, `"layout":{`: ErrCorrupt} {
		b, err := Seal("commit", json.RawMessage(strings.Replace(body, at, at+`"replayable":true,`, 1)))
		if err != nil || bytes.Equal(b, cb) {
			t.Fatal(err)
		}
		if got, err := ParseCommit(b, place, durabletest.Job, gen); !errors.Is(err, want) || err == nil && !reflect.DeepEqual(got, c) {
			t.Errorf("in %s: %+v, %v", at, got, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	for _, f := range []float64{0, -1.25, 1e300, math.NaN(), math.Inf(1), math.Inf(-1)} {
		b, err := json.Marshal(Metric(f))
		var m Metric
		if err2 := json.Unmarshal(b, &m); err != nil || err2 != nil || math.Float64bits(float64(m)) != math.Float64bits(f) && !math.IsNaN(f) {
			t.Errorf("%v is written as %s and read as %v: %v, %v", f, b, m, err, err2)
		}
	}
	if err := json.Unmarshal([]byte(`"1e5"`), new(Metric)); err == nil {
		t.Error("a text that is a number")
	}
}

// TestObject: the header of a file says what is in it, and a header that lies is refused.
func TestObject(t *testing.T) {
	g := durabletest.Make(gen, 2)
	for _, parts := range [][]durabletest.Part{{g.Groups[0]}, {g.Frozen[1]}, {g.Private[0]}, g.Private} {
		o, b := object(t, parts...)
		got, err := ParseObject(b[:o.Head], uint64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range got.Parts {
			want := Canonical(parts[i].Manifest)
			if !reflect.DeepEqual(p.Manifest, want) || !reflect.DeepEqual(p.Regions, parts[i].Regions) {
				t.Errorf("%v comes back as %+v, want %+v", want.Part, p.Manifest, want)
			}
		}
		if _, err := ParseObject(b[:o.Head], uint64(len(b))+1); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a longer file: %v", err)
		}
		if _, err := ParseObject(b[:o.Head-1], uint64(len(b))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a cut header: %v", err)
		}
		for i := range min(o.Head, 3000) {
			bent := bytes.Clone(b[:o.Head])
			bent[i] ^= 4
			if other, err := ParseObject(bent, uint64(len(b))); err == nil && !reflect.DeepEqual(other, got) && bytes.Contains(bent, []byte(`"part.0"`)) && other.Parts[0].Manifest.Root != got.Parts[0].Manifest.Root {
				t.Fatalf("byte %d: passed as %+v", i, other)
			}
		}
	}
	for name, parts := range map[string][]durabletest.Part{"twice": {g.Private[0], g.Private[0]}, "mixed": {g.Groups[0], g.Private[0]}, "none": {}} {
		var sources []Source
		for _, p := range parts {
			sources = append(sources, Source{p.Manifest, p.Regions})
		}
		if _, _, err := NewObject(sources); err == nil {
			t.Errorf("%s: made", name)
		}
	}
	bad := g.Groups[0].Manifest
	bad.Root[0] ^= 1
	if _, _, err := NewObject([]Source{{bad, g.Groups[0].Regions}}); err == nil {
		t.Error("a manifest that does not hash to its root")
	}
	if _, _, err := NewObject([]Source{{g.Groups[0].Manifest, g.Groups[0].Regions[1:]}}); err == nil {
		t.Error("other regions")
	}
}

// TestLargestHeader: regions with the longest names, and the digests of a part of so many bytes, fit together.
func TestLargestHeader(t *testing.T) {
	var regions []replica.Region
	for i := range replica.MaxRegions {
		regions = append(regions, replica.Region{Name: strings.Repeat("x", replica.MaxRegionName-5) + string([]byte{byte('a' + i>>16), byte('a' + i>>12&15), byte('a' + i>>8&15), byte('a' + i>>4&15), byte('a' + i&15)}), DType: replica.F32, Shape: []uint64{1 << 20, 4}, Bytes: 1 << 24})
	}
	g, err := replica.NewGeometry(regions)
	if err != nil {
		t.Fatal(err)
	}
	m := replica.Manifest{Job: durabletest.Job, Generation: gen, Geometry: safetensors.Hash(g.DigestInput(0)), Bytes: g.ReplicatedBytes, ChunkBytes: 1 << 20, Chunks: make([]replica.Digest, replica.ChunkCount(g.ReplicatedBytes, 1<<20))}
	m.Root = safetensors.Hash(m.RootInput())
	o, _, err := NewObject([]Source{{m, g.Regions}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d regions, %d GiB, %d chunks: a header of %d MB", len(regions), m.Bytes>>30, len(m.Chunks), o.Head/1e6)
}

func TestOwnState(t *testing.T) {
	g := durabletest.Make(gen, 2)
	p := g.Private[1]
	for _, r := range p.Regions {
		if r.Name != "replicad.own" {
			continue
		}
		b := p.Bytes[r.Offset : r.Offset+r.Bytes]
		if s, ok := Generators(b); !ok || len(s) != 1 || s[0].String() != "python's generator" {
			t.Errorf("%v, %v", s, ok)
		}
		if l, ok := Loaders(b); !ok || string(l) != `{"train":{"batch":41,"epoch":3}}` {
			t.Errorf("%s, %v", l, ok)
		}
	}
	if _, ok := Generators(make([]byte, 100)); ok {
		t.Error("zeros have generators")
	}
}

// python is the interpreter of the checkout's environment, with the safetensors package.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{filepath.Join("..", "..", "..", ".venv", "bin", "python"), "python3"} {
		if exec.Command(name, "-c", "import safetensors.numpy").Run() == nil {
			return name
		}
	}
	t.Skip("no Python with the safetensors package")
	return ""
}

// TestJudge: the safetensors package reads each kind of file, with the same tensors, and writes one whose header is read here.
func TestJudge(t *testing.T) {
	interpreter, g := python(t), durabletest.Make(gen, 2)
	for name, parts := range map[string][]durabletest.Part{"group": {g.Groups[0]}, "frozen": {g.Frozen[0]}, "node": g.Private} {
		o, b := object(t, parts...)
		dir := t.TempDir()
		file, back := filepath.Join(dir, "f.safetensors"), filepath.Join(dir, "g.safetensors")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(interpreter, "-c", `
import ctypes, json, sys
import safetensors
from safetensors import safe_open, deserialize, serialize_file
raw = dict(deserialize(open(sys.argv[1], "rb").read()))
with safe_open(sys.argv[1], "np") as f:
    meta = f.metadata()
    assert sorted(f.keys()) == sorted(raw)
names = {"F32": "float32", "F64": "float64", "U8": "uint8", "U64": "uint64", "I64": "int64", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn"}
kept = {k: ctypes.create_string_buffer(bytes(v["data"]), max(len(v["data"]), 1)) for k, v in raw.items()}
if hasattr(safetensors, "TensorSpec"):  # since 0.8
    tensors = {k: safetensors.TensorSpec(dtype=names[v["dtype"]], shape=v["shape"], data_ptr=ctypes.addressof(kept[k]), data_len=len(v["data"])) for k, v in raw.items()}
else:
    tensors = {k: {"dtype": names[v["dtype"]], "shape": v["shape"], "data": bytes(v["data"])} for k, v in raw.items()}
serialize_file(tensors, sys.argv[2], meta)
print(json.dumps({k: [v["dtype"], v["shape"], bytes(v["data"]).hex()] for k, v in raw.items()}))
`, file, back).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		var read map[string][]any
		if err := json.Unmarshal(out, &read); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i, p := range o.Parts {
			for j, r := range p.Layout.Regions {
				n++
				got := read[p.Prefix+r.Name]
				if len(got) != 3 || got[0] != r.DType.String() || got[2] != hexOf(parts[i].Bytes[r.Offset:r.Offset+r.Bytes]) || mustJSON(t, got[1]) != mustJSON(t, append([]uint64{}, p.Layout.Tensors[j].Shape...)) {
					t.Errorf("%s: %s%s is read as %.80v", name, p.Prefix, r.Name, got)
				}
			}
		}
		if len(read) != n {
			t.Errorf("%s: %d tensors are read, there are %d", name, len(read), n)
		}
		written, err := os.ReadFile(back)
		if err != nil {
			t.Fatal(err)
		}
		length, err := safetensors.HeaderLength([8]byte(written[:8]))
		if err != nil {
			t.Fatal(err)
		}
		h, err := safetensors.ParseHeader(written[8:8+length], uint64(len(written))-8-length)
		if err != nil || len(h.Tensors) != n || h.Metadata["part.0"] == "" {
			t.Errorf("%s, as the package writes it: %v", name, err)
		}
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}
