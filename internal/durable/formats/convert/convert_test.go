package convert

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/formatstest"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// piece is what a group has of a tensor.
type piece struct {
	formats.Tensor
	class  replica.Class
	shared bool // false: the rank's own
	lies   *format.Shard
	order  []int // of its dimensions in memory, if it is another
}

func (p piece) region() replica.Region {
	r := replica.Region{Name: p.Name, DType: p.DType, Class: p.class, Shape: p.Shape, Bytes: p.Bytes()}
	if !p.shared {
		r.Kind, r.Class = replica.Private, replica.Volatile
	}
	return r
}

// capsule packs a layout as the Python package does.
func capsule(lies map[string]format.Shard, orders map[string][]int) piece {
	text, err := json.Marshal(map[string]any{"version": 1, "tensors": lies, "orders": orders})
	if err != nil {
		panic(err) // a test's own layout
	}
	b := append(binary.LittleEndian.AppendUint64([]byte("RPCAP001"), uint64(len(text))), text...)
	b = append(b, make([]byte, 4096-len(b))...)
	return piece{formatstest.Of(format.LayoutRegion, replica.U8, []uint64{4096}, b), replica.Frozen, true, nil, nil}
}

// sealed is one part of a rank that has these pieces.
func sealedPart(t *testing.T, list []piece, part replica.Part, g replica.Generation, frozen replica.Digest) catalog.Part {
	t.Helper()
	var regions []replica.Region
	for _, p := range list {
		regions = append(regions, p.region())
	}
	geometry, err := replica.NewGeometry(regions)
	if err != nil {
		t.Fatal(err)
	}
	size := map[replica.PartKind]uint64{replica.ReplicatedPart: geometry.ReplicatedBytes, replica.PrivatePart: geometry.PrivateBytes, replica.FrozenPart: geometry.FrozenBytes}[part.Kind]
	b := make([]byte, size)
	for i, r := range geometry.Regions {
		if safetensors.Belongs(r, part.Kind) {
			copy(b[r.Offset:r.Offset+r.Bytes], formatstest.Bytes(t, list[i].Tensor))
		}
	}
	const chunk = 256
	out := catalog.Part{Regions: geometry.Regions, Manifest: replica.Manifest{Cluster: replica.ClusterID{1}, Job: replica.JobID{0xab}, Part: part, Generation: g, Geometry: safetensors.Hash(geometry.DigestInput(part.Kind)), Bytes: size,
		FrozenRoot: frozen, ChunkBytes: chunk, Lineage: replica.Lineage{{Epoch: 1}}, Regions: geometry.Of(part.Kind)},
		Read: func(i int, dst []byte) ([]byte, error) {
			off, n := replica.ChunkSpan(i, size, chunk)
			return dst[:copy(dst[:n], b[off:off+n])], nil
		}}
	if err := digest(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

const job = "lm"

// write makes a generation of as many groups, each of one rank.
func write(t *testing.T, groups [][]piece) (*catalog.Catalog, catalog.Found) {
	t.Helper()
	return writeTo(t, memory.New(), groups)
}

func writeTo(t *testing.T, st *memory.Store, groups [][]piece) (*catalog.Catalog, catalog.Found) {
	t.Helper()
	ctx, c := t.Context(), catalog.New(st, catalog.Options{Who: "ada"})
	r, err := c.Begin(ctx, format.Run{Job: job, ID: replica.JobID{0xab}})
	if err != nil {
		t.Fatal(err)
	}
	fleet := catalog.Fleet{Cluster: replica.ClusterID{1}, Name: "f", Epoch: 1}
	if err := c.Claim(ctx, r, fleet); err != nil {
		t.Fatal(err)
	}
	a := catalog.Attempt{Run: r, Generation: replica.Generation{Epoch: 1, Step: 7}, Write: 3}
	roots, layout := make(map[replica.Part]replica.Digest), replica.Layout{World: uint32(len(groups))}
	var files []format.Written
	for i, list := range groups {
		layout.Groups = append(layout.Groups, replica.GroupID(i))
		lies, orders := make(map[string]format.Shard), make(map[string][]int)
		for _, p := range list {
			if p.lies != nil {
				lies[p.Name] = *p.lies
			}
			if p.order != nil {
				orders[p.Name] = p.order
			}
		}
		list = append(list, capsule(lies, orders))
		frozen := sealedPart(t, list, replica.FrozenOf(replica.GroupID(i)), a.Generation, replica.Digest{})
		group := sealedPart(t, list, replica.OfGroup(replica.GroupID(i)), a.Generation, frozen.Manifest.Root)
		private := sealedPart(t, list, replica.OfRank(replica.Rank(i)), a.Generation, replica.Digest{})
		f, err := c.WriteFrozen(ctx, r, frozen)
		if err != nil {
			t.Fatal(err)
		}
		g, err := c.WriteGroup(ctx, a, group)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.WriteObject(ctx, a, fmt.Sprintf("private-%d", i), private)
		if err != nil {
			t.Fatal(err)
		}
		roots[group.Manifest.Part], roots[private.Manifest.Part] = group.Manifest.Root, private.Manifest.Root
		files = append(files, f, g, p)
	}
	said := format.Commit{Position: replica.Position{Epoch: 1, Step: 7}, Layout: layout, Lineage: replica.Lineage{{Epoch: 1}}}
	if _, err := c.Commit(ctx, a, fleet, said, roots, files); err != nil {
		t.Fatal(err)
	}
	found, err := c.Get(ctx, r, a.Generation)
	if err != nil {
		t.Fatal(err)
	}
	return c, found
}

// cut is one box of a tensor.
func cut(t *testing.T, x formats.Tensor, at, of []uint64) formats.Tensor {
	t.Helper()
	whole, size := formatstest.Bytes(t, x), x.DType.Size()
	var b []byte
	var walk func(d int, off uint64)
	walk = func(d int, off uint64) {
		if d == len(of) {
			b = append(b, whole[off*size:(off+1)*size]...)
			return
		}
		for i := range of[d] {
			walk(d+1, off*x.Shape[d]+at[d]+i)
		}
	}
	if x.Bytes() > 0 {
		walk(0, 0)
	}
	return formatstest.Of(x.Name, x.DType, of, b)
}

// state is what four groups have: every type replicated; rows and columns of matrices, of which one is not divided evenly; a grid; a flat
// parameter with padding; frozen ones; a buffer of each rank's own.
func state(t *testing.T) (groups [][]piece, want []formats.Tensor, own formats.Tensor) {
	t.Helper()
	groups = make([][]piece, 4)
	add := func(x formats.Tensor, class replica.Class, placements []string, box func(i uint64) (at, of []uint64)) {
		want = append(want, x)
		for i := range groups {
			p := piece{Tensor: x, class: class, shared: true}
			if box != nil {
				at, of := box(uint64(i))
				p.Tensor = cut(t, x, at, of)
				p.lies = &format.Shard{Shape: x.Shape, Local: of, At: at, Placements: placements, Mesh: []uint64{4}}
			}
			groups[i] = append(groups[i], p)
		}
	}
	for i, x := range formatstest.All() {
		x.Name = "model." + x.Name
		add(x, replica.Class(i%3), nil, nil)
	}
	add(formatstest.Tensor("model.rows", replica.F32, 7, 33), replica.Window, []string{"shard(0)"}, func(i uint64) (at, of []uint64) {
		begin, end := min(2*i, 7), min(2*i+2, 7)
		return []uint64{begin, 0}, []uint64{end - begin, 33}
	})
	add(formatstest.Tensor("model.columns", replica.BF16, 5, 16, 3), replica.Frozen, []string{"shard(1)"}, func(i uint64) (at, of []uint64) { return []uint64{0, 4 * i, 0}, []uint64{5, 4, 3} })
	add(formatstest.Tensor("optim.model.rows.exp_avg", replica.F32, 6, 8), replica.Window, []string{"shard(0)", "shard(1)"}, func(i uint64) (at, of []uint64) {
		return []uint64{i / 2 * 3, i % 2 * 4}, []uint64{3, 4}
	})
	add(formatstest.Tensor("model.everywhere", replica.F64, 3), replica.Volatile, []string{"replicate"}, func(uint64) (at, of []uint64) { return []uint64{0}, []uint64{3} })
	flat := formatstest.Tensor("model._flat_param", replica.F32, 10)
	want = append(want, flat)
	padded := formatstest.Of(flat.Name, flat.DType, []uint64{12}, append(formatstest.Bytes(t, flat), make([]byte, 8)...))
	for i := range groups {
		at := []uint64{3 * uint64(i)}
		groups[i] = append(groups[i], piece{cut(t, padded, at, []uint64{3}), replica.Window, true, &format.Shard{Shape: flat.Shape, Local: []uint64{3}, At: at, Placements: []string{"flat shard"}, Mesh: []uint64{4}}, nil})
		mean := formatstest.Of("model.running_mean", replica.F32, []uint64{2}, bytes.Repeat([]byte{byte(i + 1)}, 8))
		if i == 0 {
			own = mean
		}
		groups[i] = append(groups[i], piece{Tensor: mean}, piece{Tensor: formatstest.Tensor("replicad.own", replica.U8, 64)})
	}
	return groups, append(want, own), own
}

// back reads what an export has written.
func back(t *testing.T, path string) []formats.Tensor {
	t.Helper()
	s, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.folder.Close() })
	return s.tensors
}

func stripped(list []formats.Tensor) (out []formats.Tensor) {
	for _, x := range list {
		if !strings.HasPrefix(x.Name, optimizers) {
			x.Name = strings.TrimPrefix(x.Name, model)
			out = append(out, x)
		}
	}
	return out
}

func TestExport(t *testing.T) {
	groups, want, _ := state(t)
	c, f := write(t, groups)
	for _, to := range []struct{ format, file string }{{HF, ""}, {DCP, ""}, {PT, "state.pt"}, {Safetensors, "state.safetensors"}} {
		dir := filepath.Join(t.TempDir(), "out")
		done, err := Export(t.Context(), c, f, Want{Format: to.format, Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		expected := want
		if to.format == HF {
			expected = stripped(want)
		}
		formatstest.Same(t, back(t, filepath.Join(dir, to.file)), expected)
		if notes := fmt.Sprint(done.Notes); done.Tensors != len(expected) || !strings.Contains(notes, "model.running_mean, are those of rank 0") {
			t.Errorf("%s: %+v", to.format, done)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*")); err != nil || len(left) > 0 {
			t.Errorf("%s left %q, %v", to.format, left, err)
		}
	}
	lines, _, err := c.Logs(t.Context(), job, 10)
	if err != nil || len(lines) != 4 || lines[0].Verb != "export" || !strings.HasPrefix(lines[0].Why, "as hf to ") {
		t.Errorf("%+v, %v", lines, err)
	}
	if pins, err := c.Pinned(t.Context(), f.Run, f.Generation); err != nil || len(pins) > 0 {
		t.Errorf("a lease is left: %+v, %v", pins, err)
	}
}

// What the index has no room for, the headers of the files say.
func TestExportWithoutTensorsInTheIndex(t *testing.T) {
	groups, want, _ := state(t)
	c, f := write(t, groups)
	index := *f.Index
	index.Tensors = nil
	f.Index = &index
	dir := filepath.Join(t.TempDir(), "out")
	if _, err := Export(t.Context(), c, f, Want{Format: DCP, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	formatstest.Same(t, back(t, dir), want)
}

func TestOnlyAndMap(t *testing.T) {
	groups, _, _ := state(t)
	c, f := write(t, groups)
	for _, x := range []struct {
		want  Want
		names []string // of what is there and not; the latter begin with -
	}{
		{Want{Format: PT, Only: []string{"model"}}, []string{"rows", "columns", "-optim.model.rows.exp_avg"}},
		{Want{Format: PT, Only: []string{"trained"}}, []string{"model.rows", "-model.columns", "optim.model.rows.exp_avg", "-replicad.layout", "-replicad.own"}},
		{Want{Format: HF, Only: []string{"trained"}}, []string{"rows", "-columns"}},
		{Want{Format: DCP, Only: []string{"model.c*"}}, []string{"model.columns", "-model.rows"}},
		{Want{Format: HF, Only: []string{"model.c*"}, Map: []Rename{{"model.col", "x."}, {"model.", "y."}}}, []string{"x.umns"}},
		{Want{Format: PT, Only: []string{"model"}, Map: []Rename{}}, []string{"model.rows"}},
	} {
		x.want.Dir = filepath.Join(t.TempDir(), "out")
		if _, err := Export(t.Context(), c, f, x.want); err != nil {
			t.Fatalf("%+v: %v", x.want, err)
		}
		path := x.want.Dir
		if x.want.Format == PT {
			path = filepath.Join(path, "state.pt")
		}
		var names []string
		for _, t := range back(t, path) {
			names = append(names, t.Name)
		}
		for _, n := range x.names {
			if absent := strings.HasPrefix(n, "-"); slices.Contains(names, strings.TrimPrefix(n, "-")) == absent {
				t.Errorf("%+v: %s in %q", x.want, n, names)
			}
		}
	}
}

func TestExportRefuses(t *testing.T) {
	groups, _, _ := state(t)
	c, f := write(t, groups)
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	odd := func(placements []string, at []uint64, shape ...uint64) (*catalog.Catalog, catalog.Found) {
		x := formatstest.Tensor("model.x", replica.F32, shape...)
		p := piece{x, replica.Window, true, &format.Shard{Shape: []uint64{8}, Local: shape, At: at, Placements: placements, Mesh: []uint64{2}}, nil}
		if placements == nil {
			p.lies = nil
		}
		q := p
		q.Tensor = formatstest.Tensor("model.x", replica.F32, 4)
		return write(t, [][]piece{{p}, {q}})
	}
	beside := func(of string, shape ...uint64) (*catalog.Catalog, catalog.Found) { // a tensor that the program does not name, and one that it does
		shard := func(at uint64) piece {
			return piece{formatstest.Tensor(of, replica.F32, 4), replica.Window, true, &format.Shard{Shape: []uint64{8}, Local: []uint64{4}, At: []uint64{at}, Placements: []string{"shard(0)"}, Mesh: []uint64{2}}, nil}
		}
		plain := func(shape ...uint64) piece {
			return piece{formatstest.Tensor("model.x", replica.F32, shape...), replica.Window, true, nil, nil}
		}
		return write(t, [][]piece{{shard(0), plain(4)}, {shard(4), plain(shape...)}})
	}
	for name, x := range map[string]struct {
		want Want
		of   func() (*catalog.Catalog, catalog.Found)
		says string
	}{
		"format":    {want: Want{Format: "onnx"}, says: "want one of [hf dcp pt safetensors]"},
		"full":      {want: Want{Format: PT, Dir: full}, says: "not empty"},
		"a file":    {want: Want{Format: PT, Dir: filepath.Join(full, "x")}, says: "no folder"},
		"no parent": {want: Want{Format: PT, Dir: filepath.Join(full, "y", "z")}, says: "no such file"},
		"pattern":   {want: Want{Format: PT, Only: []string{"[x"}}, says: "pattern"},
		"nothing":   {want: Want{Format: PT, Only: []string{"x"}}, says: "no tensor is left"},
		"one name":  {want: Want{Format: PT, Map: []Rename{{"model.rows", "x"}, {"model.columns", "x"}}}, says: `two tensors are called "x"`},
		"no name":   {want: Want{Format: PT, Map: []Rename{{"model.rows", ""}}}, says: "--map"},
		"partial":   {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) { return odd([]string{"partial"}, nil, 4) }, says: "partial sum"},
		"nowhere":   {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) { return odd([]string{"shard(0, every 2)"}, nil, 4) }, says: "shard(0, every 2)"},
		"over":      {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) { return odd([]string{"shard(0)"}, []uint64{0}, 4) }, says: "fill"},
		"order": {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) {
			return write(t, [][]piece{{{formatstest.Tensor("model.x", replica.F32, 4, 3), replica.Window, true, nil, []int{1, 0}}}})
		}, says: "in the order [1 0] of its dimensions"},
		"other shape":  {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) { return beside("model.y", 5) }, says: "other shapes"},
		"own groups":   {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) { return odd(nil, nil, 4) }, says: "does not say how these belong together"},
		"within a one": {want: Want{Format: PT}, of: func() (*catalog.Catalog, catalog.Found) { return beside("model", 4) }, says: "does not say how these belong together"},
	} {
		cat, found := c, f
		if x.of != nil {
			cat, found = x.of()
		}
		if x.want.Dir == "" {
			x.want.Dir = filepath.Join(t.TempDir(), "out")
		}
		_, err := Export(t.Context(), cat, found, x.want)
		if err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v, want %q", name, err, x.says)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(x.want.Dir), ".*")); len(left) > 0 {
			t.Errorf("%s left %q", name, left)
		}
		if _, err := os.Stat(x.want.Dir); name != "full" && name != "a file" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %s is there: %v", name, x.want.Dir, err)
		}
	}
}

// Bytes that rotted are in no export, and neither is half of one.
func TestExportOfDamage(t *testing.T) {
	groups, _, _ := state(t)
	c, f := write(t, groups)
	f.Index.Parts = slices.Clone(f.Index.Parts)
	i := slices.IndexFunc(f.Index.Parts, func(p format.PartAt) bool { return p.Part == replica.OfGroup(2) })
	f.Index.Parts[i].Root[0] ^= 1
	dir := filepath.Join(t.TempDir(), "out")
	if _, err := Export(t.Context(), c, f, Want{Format: PT, Dir: dir}); !catalog.IsDamage(err) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Export(ctx, c, f, Want{Format: PT, Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if names, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
}

// A program without replicad.layout whose groups have pieces of one tensor does not say how they belong together.
func TestPiecesOfNobodyKnows(t *testing.T) {
	x := format.Tensor{Name: "x", DType: "F32", Class: "window", Pieces: []format.Piece{{Index: 1, Shape: []uint64{4}}, {Index: 0, Shape: []uint64{4}}}}
	if _, _, err := pieces(x, false); err == nil || !strings.Contains(err.Error(), "does not say how these belong together") {
		t.Error(err)
	}
	if shape, list, err := pieces(x, true); err != nil || len(list) != 1 || list[0].part != replica.OfGroup(0) || !slices.Equal(shape, []uint64{4}) {
		t.Error(shape, list, err)
	}
}
