package dcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/formatstest"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/internal/durable/formats/pt"
	"github.com/replicad/replicad/replica"
)

func folder(t *testing.T, dir string) *formats.Folder {
	t.Helper()
	f, err := formats.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestWrittenAndRead(t *testing.T) {
	dir, all := t.TempDir(), formatstest.All()
	if err := WriteFolder(t.Context(), dir, all); err != nil {
		t.Fatal(err)
	}
	got, s, err := ReadFolder(folder(t, dir))
	if err != nil || len(s.Others)+len(s.Left) > 0 {
		t.Fatal(s, err)
	}
	formatstest.Same(t, got, all)
}

// sharded is a tensor of 4 x 6 in four pieces of two files, as FSDP2 over tensor parallelism lays them.
func sharded(t *testing.T, dir string) (whole formats.Tensor, s *Saved) {
	t.Helper()
	whole = formatstest.Tensor("w", replica.F32, 4, 6)
	b := formatstest.Bytes(t, whole)
	var out [2]bytes.Buffer
	x := Tensor{Name: "w", DType: replica.F32, Shape: whole.Shape}
	for i := range uint64(4) {
		at := []uint64{i / 2 * 2, i % 2 * 3}
		var piece []byte
		for row := at[0]; row < at[0]+2; row++ {
			piece = append(piece, b[(row*6+at[1])*4:(row*6+at[1]+3)*4]...)
		}
		file := &out[i%2]
		p := Piece{At: at, Shape: []uint64{2, 3}, File: []string{"__0_0.distcp", "__1_0.distcp"}[i%2], From: uint64(file.Len())}
		if err := pt.WriteOne(t.Context(), file, formatstest.Of("", replica.F32, p.Shape, piece)); err != nil {
			t.Fatal(err)
		}
		p.Bytes = uint64(file.Len()) - p.From
		x.Pieces = append(x.Pieces, p)
	}
	for i, name := range []string{"__0_0.distcp", "__1_0.distcp"} {
		if err := os.WriteFile(filepath.Join(dir, name), out[i].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return whole, &Saved{Tensors: []Tensor{x}}
}

func describe(t *testing.T, dir string, s *Saved) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, Metadata), s.describe(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestPieces(t *testing.T) {
	dir := t.TempDir()
	whole, s := sharded(t, dir)
	describe(t, dir, s)
	got, _, err := ReadFolder(folder(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	formatstest.Same(t, got, []formats.Tensor{whole})
}

func TestHostile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string, x *Tensor) error
		says   string
	}{
		"a piece is missing":   {func(_ string, x *Tensor) error { x.Pieces = x.Pieces[:3]; return nil }, "missing"},
		"a piece is elsewhere": {func(_ string, x *Tensor) error { x.Pieces[3].At = []uint64{1, 3}; return nil }, "overlap"},
		"another shape":        {func(_ string, x *Tensor) error { x.Pieces[0].Shape = []uint64{1, 3}; return nil }, "says F32[1 3]"},
		"another type":         {func(_ string, x *Tensor) error { x.DType = replica.I32; return nil }, "says I32"},
		"out of the folder":    {func(_ string, x *Tensor) error { x.Pieces[0].File = "../__0_0.distcp"; return nil }, "__0_0.distcp"},
		"beyond the file":      {func(_ string, x *Tensor) error { x.Pieces[2].Bytes = 1 << 40; return nil }, "it is cut"},
		"far beyond":           {func(_ string, x *Tensor) error { x.Pieces[2].From = 1<<63 - 1; return nil }, "it is cut"},
		"over each other":      {func(_ string, x *Tensor) error { x.Pieces[2].From = 3; return nil }, "over each other"},
		"a file is cut":        {func(dir string, _ *Tensor) error { return os.Truncate(filepath.Join(dir, "__1_0.distcp"), 300) }, "it is cut"},
		"a file is gone":       {func(dir string, _ *Tensor) error { return os.Remove(filepath.Join(dir, "__1_0.distcp")) }, "no such file"},
		"a long name":          {func(_ string, x *Tensor) error { x.Name = strings.Repeat("x", 4097); return nil }, "at most 4096"},
		"a large tensor":       {func(_ string, x *Tensor) error { x.Shape = []uint64{1 << 62, 1 << 62}; return nil }, "missing"},
	} {
		dir := t.TempDir()
		_, s := sharded(t, dir)
		if err := c.change(dir, &s.Tensors[0]); err != nil {
			t.Fatal(err)
		}
		describe(t, dir, s)
		if got, _, err := ReadFolder(folder(t, dir)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v; want %q", name, got, err, c.says)
		}
	}
}

func TestHostileMetadata(t *testing.T) {
	object := func(fields ...any) []byte {
		p := scribe{pickles.NewWriter()}
		p.object(metadata, "Metadata", fields...)
		return p.Bytes()
	}
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"os.system":    {[]byte("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R."), "os.system"},
		"our own code": {[]byte("cmine\nHook\n)\x81."), "mine.Hook"},
		"a module's":   {[]byte("c" + metadata + "\nos\n)\x81."), "metadata.os"},
		"a text":       {[]byte("\x8c\x01x."), "Metadata"},
		"no fields":    {object(), "state_dict_metadata"},
		"a number":     {object("state_dict_metadata", uint64(1)), "state_dict_metadata"},
	} {
		if s, err := Parse(c.b); err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrFormat) && !errors.Is(err, pickles.ErrRefused) {
			t.Errorf("%s: %+v, %v; want %q", name, s, err, c.says)
		}
	}
}

// bomb is a .metadata in which one record of a chunk is put so often into one list, two bytes each, and one record of a tensor with that list is the value of
// so many names.
func bomb(chunks, tensors int) []byte {
	var o bytes.Buffer
	o.WriteString("\x80\x02")
	text := func(s string) { o.WriteString("X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s) }
	object := func(module, class string) { o.WriteString("c" + module + "\n" + class + "\n)\x81") }
	number := func(n int) { o.WriteString("J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n)))) }
	object(metadata, "Metadata")
	o.WriteString("}(")
	text("state_dict_metadata")
	o.WriteString("}(")
	for i := range tensors {
		text(fmt.Sprint("t", i))
		if i > 0 {
			o.WriteString("h\x01")
			continue
		}
		object(metadata, "TensorStorageMetadata")
		o.WriteString("}(")
		text("properties")
		object(metadata, "TensorProperties")
		o.WriteString("(ctorch\nfloat32\ntb")
		text("size")
		number(4)
		o.WriteString("\x85")
		text("chunks")
		o.WriteString("](")
		object(metadata, "ChunkStorageMetadata")
		o.WriteString("}(")
		text("offsets")
		number(0)
		o.WriteString("\x85")
		text("sizes")
		number(4)
		o.WriteString("\x85ubq\x00" + strings.Repeat("h\x00", chunks-1) + "eubq\x01")
	}
	o.WriteString("u")
	text("storage_data")
	o.WriteString("}(")
	for i := range tensors {
		object(metadata, "MetadataIndex")
		o.WriteString("}(")
		text("fqn")
		text(fmt.Sprint("t", i))
		text("offset")
		number(0)
		o.WriteString("\x85ub")
		object(filesystem, "_StorageInfo")
		o.WriteString("}(")
		text("relative_path")
		text("__0_0.distcp")
		text("offset")
		number(1000 * i)
		text("length")
		number(900)
		o.WriteString("ub")
	}
	o.WriteString("uub.")
	return o.Bytes()
}

// A small .metadata that stands for millions of pieces is refused at the first of them; so is one whose fields are looked at too often.
func TestRecordsInManyPlaces(t *testing.T) {
	if s, err := Parse(bomb(1, 3)); err != nil || len(s.Tensors) != 3 {
		t.Fatal(s, err)
	}
	for says, parsed := range map[string]func() (*Saved, error){
		"listed twice":             func() (*Saved, error) { return Parse(bomb(100_000, 20)) },
		"more than 100 values":     func() (*Saved, error) { return parse(bomb(1, 60), 100) },
		"stand for more than 1000": func() (*Saved, error) { return parse(bomb(1, 300), 1000) },
	} {
		if s, err := parsed(); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v, %v; want %q", s, err, says)
		}
	}
}

func FuzzParse(f *testing.F) {
	s := Saved{Tensors: []Tensor{{"w", replica.F32, []uint64{4, 6}, []Piece{{[]uint64{0, 0}, []uint64{2, 6}, "a", 0, 100}, {[]uint64{2, 0}, []uint64{2, 6}, "a", 100, 100}}}, {"n", replica.BF16, []uint64{}, []Piece{{[]uint64{}, []uint64{}, "a", 200, 100}}}}}
	f.Add(s.describe())
	for _, name := range []string{"torch26.metadata", "torch215.metadata"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			return
		}
		for _, x := range s.Tensors {
			if x.DType.Size() == 0 || len(x.Shape) > replica.MaxDims {
				t.Errorf("%+v", x)
			}
			for _, p := range x.Pieces {
				if strings.Contains(p.File, "/") || p.From+p.Bytes > 1<<64-2 {
					t.Errorf("%+v", p)
				}
			}
		}
		again, err := Parse(s.describe())
		if err != nil || len(again.Tensors) != len(s.Tensors) || len(s.Tensors) > 0 && !reflect.DeepEqual(again.Tensors, s.Tensors) {
			t.Errorf("%+v came back as %+v: %v", s.Tensors, again, err)
		}
	})
}

// testdata has what two versions of torch write of a state dict with tensors in pieces, a number and a text.
func TestMetadataOfTorch(t *testing.T) {
	for _, name := range []string{"torch26.metadata", "torch215.metadata"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Parse(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		i := slices.IndexFunc(s.Tensors, func(x Tensor) bool { return x.Name == "model.w" })
		if i < 0 || len(s.Others) == 0 || len(s.Tensors[i].Pieces) != 2 || !slices.Equal(s.Tensors[i].Shape, []uint64{4, 6}) || s.Tensors[i].DType != replica.BF16 {
			t.Errorf("%s: %+v", name, s)
		}
		for n := range b {
			if _, err := Parse(b[:n]); err == nil {
				t.Fatalf("%s, cut at %d: taken", name, n)
			}
		}
	}
}
