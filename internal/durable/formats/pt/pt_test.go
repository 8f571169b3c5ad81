package pt

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/formatstest"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/replica"
)

func parse(b []byte) (*Saved, error) {
	return read(bytes.NewReader(b), int64(len(b)), limits{directory: 1 << 20, visits: 10_000})
}

func TestWrittenAndRead(t *testing.T) {
	all := formatstest.All()
	var b bytes.Buffer
	if err := Write(t.Context(), &b, all); err != nil {
		t.Fatal(err)
	}
	s, err := parse(b.Bytes())
	if err != nil || len(s.Others) > 0 {
		t.Fatal(s, err)
	}
	formatstest.Same(t, s.Tensors, all)
	z, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File {
		at, err := f.DataOffset()
		if err != nil || at%64 != 0 || f.Method != zip.Store {
			t.Errorf("%s at %d: %v", f.Name, at, err)
		}
		r, err := f.Open()
		if err == nil {
			_, err = io.Copy(io.Discard, r) // which compares the checksum
		}
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
	for n := range b.Len() {
		if n%397 == 0 || n < 50 || n > b.Len()-50 {
			if _, err := parse(b.Bytes()[:n]); !errors.Is(err, ErrFormat) {
				t.Fatalf("cut at %d of %d: %v", n, b.Len(), err)
			}
		}
	}
	b.Reset()
	if err := WriteOne(t.Context(), &b, all[0]); err != nil {
		t.Fatal(err)
	}
	one, err := ReadOne(bytes.NewReader(b.Bytes()), int64(b.Len()))
	one.Name = all[0].Name
	if err != nil {
		t.Fatal(err)
	}
	formatstest.Same(t, []formats.Tensor{one}, all[:1])
	if s, err := parse(b.Bytes()); err != nil || len(s.Tensors) != 1 || s.Tensors[0].Name != "" {
		t.Errorf("%+v, %v", s, err)
	}
}

// file is one of a zip.
type file struct {
	name string
	body []byte
}

// pack makes a zip. A method other than Store compresses.
func pack(t testing.TB, method uint16, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.CreateHeader(&zip.FileHeader{Name: f.name, Method: method})
		if err == nil {
			_, err = w.Write(f.body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// told are the arguments of a tensor that lies.
type told struct {
	storage, key           string
	elements, skip         uint64
	shape, steps           []uint64
	function, module, kind string
	negative, old, view    bool
}

func (x told) pickle() []byte {
	p := pickles.NewWriter()
	p.Dict(func() {
		p.Text("x")
		p.Call(x.module, x.function, func() {
			p.Ref(func() {
				p.Text(x.kind)
				p.Class("torch", x.storage)
				p.Text(x.key)
				p.Text("cpu")
				p.Int(x.elements)
				switch {
				case x.view:
					p.Ints([]uint64{0, 0})
				case x.old:
					p.None()
				}
			})
			p.Int(x.skip)
			p.Ints(x.shape)
			p.Ints(x.steps)
			p.Bool(false)
			p.Dict(func() {})
			if x.negative {
				p.Dict(func() { p.Text("neg"); p.Bool(true) })
			}
		})
	})
	return p.Bytes()
}

func lie(change func(*told)) []byte {
	x := told{"FloatStorage", "0", 6, 0, []uint64{2, 3}, []uint64{3, 1}, "_rebuild_tensor_v2", "torch._utils", "storage", false, false, false}
	change(&x)
	return x.pickle()
}

func TestHostile(t *testing.T) {
	data := file{"a/data/0", make([]byte, 24)}
	honest := lie(func(*told) {})
	if s, err := parse(pack(t, zip.Store, file{"a/data.pkl", honest}, data)); err != nil || len(s.Tensors) != 1 {
		t.Fatal(s, err)
	}
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"no zip":             {[]byte("PK\x03\x04 no zip"), "zip"},
		"no pickle":          {pack(t, zip.Store, data), "data.pkl"},
		"compressed":         {pack(t, zip.Deflate, file{"a/data.pkl", honest}, data), "compressed"},
		"a bomb":             {pack(t, zip.Deflate, file{"a/data.pkl", make([]byte, 1<<20)}, data), "compressed"},
		"twice":              {pack(t, zip.Store, file{"a/data.pkl", honest}, data, data), "two files"},
		"big-endian":         {pack(t, zip.Store, file{"a/data.pkl", honest}, file{"a/byteorder", []byte("big")}, data), "endian"},
		"a program":          {pack(t, zip.Store, file{"a/data.pkl", honest}, file{"a/constants.pkl", nil}, data), "TorchScript"},
		"no storage":         {pack(t, zip.Store, file{"a/data.pkl", honest}), "data/0"},
		"a short storage":    {pack(t, zip.Store, file{"a/data.pkl", honest}, file{"a/data/0", make([]byte, 23)}), "23 bytes"},
		"a long storage":     {pack(t, zip.Store, file{"a/data.pkl", honest}, file{"a/data/0", make([]byte, 25)}), "25 bytes"},
		"beyond the storage": {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.skip = 1 })}, data), "at 1 of its storage"},
		"far beyond":         {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.skip = 1 << 62 })}, data), "of its storage"},
		"a large shape":      {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.shape, x.steps = []uint64{1 << 40, 1 << 40}, []uint64{1 << 40, 1} })}, data), "of its storage"},
		"far by strides":     {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.steps = []uint64{1 << 62, 1 << 62} })}, data), "of its storage"},
		"beyond by strides":  {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.steps = []uint64{3, 2} })}, data), "of its storage"},
		"another element":    {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.storage = "ComplexFloatStorage" })}, data), "6 elements of 8"},
		"a path as key":      {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.key = "../../../etc/passwd" })}, data), "etc/passwd"},
		"a file as storage":  {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.kind = "module" })}, data), "names no storage"},
	} {
		s, err := parse(c.b)
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrFormat) && !errors.Is(err, pickles.ErrRefused) {
			t.Errorf("%s: %+v, %v; want %q", name, s, err, c.says)
		}
	}
}

// TestLeftOut: what no generation can hold costs its tensor, what is no tensor its value, and not the file.
func TestLeftOut(t *testing.T) {
	data := file{"a/data/0", make([]byte, 24)}
	for name, c := range map[string]struct {
		pickle []byte
		says   string
	}{
		"many dimensions":  {lie(func(x *told) { x.shape, x.steps = make([]uint64, 9), make([]uint64, 9) }), "9 dimensions, at most 8"},
		"complex doubles":  {lie(func(x *told) { x.storage = "ComplexDoubleStorage" }), "torch.ComplexDoubleStorage"},
		"quantised":        {lie(func(x *told) { x.function = "_rebuild_qtensor" }), "_rebuild_qtensor"},
		"a sparse tensor":  {lie(func(x *told) { x.function = "_rebuild_sparse_tensor" }), "_rebuild_sparse_tensor"},
		"a negative view":  {lie(func(x *told) { x.negative = true }), "resolve_neg"},
		"expanded by much": {lie(func(x *told) { x.shape, x.steps = []uint64{1 << 30, 6}, []uint64{0, 1} }), ".contiguous()"},
		"another storage":  {lie(func(x *told) { x.storage = "NoStorage" }), "torch.NoStorage"},
	} {
		d := data
		if name == "complex doubles" {
			d.body = make([]byte, 96)
		}
		s, err := parse(pack(t, zip.Store, file{"a/data.pkl", c.pickle}, d))
		if err != nil || len(s.Tensors) != 0 || len(s.Left) != 1 || s.Left[0].Name != "x" || !strings.Contains(s.Left[0].Why, c.says) {
			t.Errorf("%s: %+v, %v; want %q", name, s, err, c.says)
		}
	}
	for name, c := range map[string]struct {
		pickle string
		want   Opaque
	}{
		"the root":     {"cos\nsystem\n\x8c\x02ls\x85R.", Opaque{"", "os.system"}},
		"a namespace":  {"}\x8c\x04argscargparse\nNamespace\n)\x81}\x8c\x02lrG?\xf0\x00\x00\x00\x00\x00\x00sbs.", Opaque{"args", "argparse.Namespace"}},
		"a list's":     {"}\x8c\x03cfg]comegaconf.listconfig\nListConfig\n)\x81}bas.", Opaque{"cfg.0", "omegaconf.listconfig.ListConfig"}},
		"a class that": {"}\x8c\x01cctorch._C\n_rebuild_it\n)Rs.", Opaque{"c", "torch._C._rebuild_it"}},
	} {
		s, err := parse(pack(t, zip.Store, file{"a/data.pkl", []byte(c.pickle)}, data))
		if err != nil || len(s.Tensors)+len(s.Left) != 0 || len(s.Opaque) != 1 || s.Opaque[0] != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, s, err, c.want)
		}
	}
	s, err := parse(pack(t, zip.Store, file{"a/data.pkl", []byte("}\x8c\x01aK\x01\x85}\x86ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R\x8c\x01kK\x01s\x86s.")}, data))
	if err != nil || fmt.Sprint(s.Others) != "[a.0.0.0 a.1.k]" {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestStrides: tensors are read in the order of their shape, however they lie.
func TestStrides(t *testing.T) {
	body := make([]byte, 24)
	for i := range 6 {
		body[4*i] = byte(i)
	}
	for name, c := range map[string]struct {
		change func(*told)
		want   string
	}{
		"transposed":   {func(x *told) { x.shape, x.steps = []uint64{3, 2}, []uint64{1, 3} }, "[0 3 1 4 2 5]"},
		"every second": {func(x *told) { x.shape, x.steps, x.skip = []uint64{2}, []uint64{2}, 1 }, "[1 3]"},
		"expanded":     {func(x *told) { x.shape, x.steps, x.skip = []uint64{2, 2}, []uint64{0, 1}, 4 }, "[4 5 4 5]"},
		"rows":         {func(x *told) { x.shape, x.steps = []uint64{2, 2}, []uint64{3, 1} }, "[0 1 3 4]"},
		"one row":      {func(x *told) { x.shape, x.steps = []uint64{1, 3}, []uint64{77, 1} }, "[0 1 2]"},
	} {
		s, err := parse(pack(t, zip.Store, file{"a/data.pkl", lie(c.change)}, file{"a/data/0", body}))
		if err != nil || len(s.Tensors) != 1 {
			t.Fatalf("%s: %+v, %v", name, s, err)
		}
		var got []byte
		for i, b := range formatstest.Bytes(t, s.Tensors[0]) {
			if i%4 == 0 {
				got = append(got, b)
			}
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

// old is a file of the format before torch 1.6, of one tensor.
func old(object []byte, keys string, storages ...[]byte) []byte {
	b := []byte("\x80\x02" + oldMagic + "\x80\x02M\xe9\x03." + "\x80\x02}X\x0d\x00\x00\x00little_endian\x88s.")
	b = append(append(b, object...), keys...)
	for _, s := range storages {
		b = append(b, byte(len(s)/4), 0, 0, 0, 0, 0, 0, 0)
		b = append(b, s...)
	}
	return b
}

func TestBeforeTorch16(t *testing.T) {
	honest, keys := lie(func(x *told) { x.old = true; x.shape, x.steps = []uint64{3, 2}, []uint64{1, 3} }), "\x80\x02]X\x01\x00\x00\x000a."
	body := make([]byte, 24)
	for i := range 6 {
		body[4*i] = byte(i)
	}
	whole := old(honest, keys, body)
	s, err := parse(whole)
	if err != nil || len(s.Tensors) != 1 || s.Tensors[0].Name != "x" {
		t.Fatal(s, err)
	}
	if b := formatstest.Bytes(t, s.Tensors[0]); b[4] != 3 || b[8] != 1 {
		t.Error(b)
	}
	for n := range whole {
		if s, err := parse(whole[:n]); !errors.Is(err, ErrFormat) {
			t.Fatalf("cut at %d: %+v, %v", n, s, err)
		}
	}
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"bytes behind it":   {append(bytes.Clone(whole), 1), "follow its storages"},
		"a storage less":    {old(honest, "\x80\x02]."), "no storage"},
		"one that nobody":   {old(honest, "\x80\x02](X\x01\x00\x00\x000X\x01\x00\x00\x001e.", body, body), "nothing says"},
		"twice":             {old(honest, "\x80\x02](X\x01\x00\x00\x000X\x01\x00\x00\x000e.", body, body), "is there twice"},
		"more elements":     {old(honest, keys, append(bytes.Clone(body), 0, 0, 0, 0)), "28 bytes"},
		"a storage's view":  {old(lie(func(x *told) { x.old, x.view = true, true }), keys, body), "view of another"},
		"an unknown type":   {old(lie(func(x *told) { x.old, x.storage = true, "NoStorage" }), keys, body), "torch.NoStorage"},
		"big-endian":        {bytes.Replace(whole, []byte("little_endian\x88"), []byte("little_endian\x89"), 1), "big-endian"},
		"another version":   {bytes.Replace(whole, []byte("M\xe9\x03"), []byte("M\xe8\x03"), 1), "version 1000"},
		"no list of keys":   {old(honest, "\x80\x02K\x01."), "int64"},
		"very many of them": {bytes.Replace(whole, append([]byte{6, 0, 0, 0, 0, 0, 0, 0}, body...), append([]byte{6, 0, 0, 0, 0, 0, 0, 0x7f}, body...), 1), "it is cut"},
	} {
		if s, err := parse(c.b); err == nil || !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v; want %q", name, s, err, c.says)
		}
	}
}

// Two files of a zip may be said to lie in one place: each tensor would be part of another.
func TestStoragesOverEachOther(t *testing.T) {
	var b bytes.Buffer
	if err := Write(t.Context(), &b, []formats.Tensor{formatstest.Tensor("a", replica.U8, 64), formatstest.Tensor("b", replica.U8, 64)}); err != nil {
		t.Fatal(err)
	}
	z, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) (local int64) {
		for _, f := range z.File {
			if f.Name == "archive/data/"+name {
				data, err := f.DataOffset()
				if err != nil {
					t.Fatal(err)
				}
				local = data - int64(localHeader+len(f.Name)+len(f.Extra))
			}
		}
		return local
	}
	from, to := fmt.Appendf(nil, "%s", le(at("1"))), le(at("0"))
	raw := b.Bytes()
	list := bytes.Index(raw, []byte("PK\x01\x02"))
	if n := bytes.Count(raw[list:], from); n != 1 {
		t.Fatalf("%d places in the list of files", n)
	}
	raw = append(raw[:list:list], bytes.Replace(raw[list:], from, to, 1)...)
	if s, err := parse(raw); err == nil || !strings.Contains(err.Error(), "over each other") {
		t.Errorf("%+v, %v", s, err)
	}
}

func le(n int64) []byte { return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)} }

// A list of files that would fill the memory is not read.
func TestLongDirectory(t *testing.T) {
	var files []file
	name := strings.Repeat("x", 60000)
	for i := range (1<<20)/len(name) + 2 {
		files = append(files, file{fmt.Sprint(name, i), nil})
	}
	if s, err := parse(pack(t, zip.Store, files...)); err == nil || !strings.Contains(err.Error(), "list of files") {
		t.Errorf("%+v, %v", s, err)
	}
}

// Dicts that hold themselves, and those that grow without end, are given up.
func TestEndless(t *testing.T) {
	var growing strings.Builder
	growing.WriteString("\x80\x02]q\x00")
	for i := range 30 {
		growing.WriteString("(" + strings.Repeat(fmt.Sprintf("h%c", i), 10) + fmt.Sprintf("tq%c", i+1))
	}
	// As the arguments of a tensor they are refused, and not printed.
	args := strings.TrimSuffix(growing.String(), "q\x1e")
	if s, err := parse(pack(t, zip.Store, file{"a/data.pkl", []byte(args + "q\x1ectorch._utils\n_rebuild_tensor_v2\n((h\x1eh\x1eh\x1eh\x1eh\x1etQh\x1eh\x1eh\x1e\x89NtR.")})); err == nil || len(err.Error()) > 1000 {
		t.Errorf("%+v, %v", s, err)
	}
	for name, pickle := range map[string]string{"itself": "\x80\x02]q\x00h\x00a.", "growing": growing.String() + "."} {
		if s, err := parse(pack(t, zip.Store, file{"a/data.pkl", []byte(pickle)})); err == nil || !strings.Contains(err.Error(), "refers to itself") {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// One long key, used again and again, makes names that are longer and longer.
func TestLongNames(t *testing.T) {
	pickle := "\x80\x02X\x40\x06\x00\x00" + strings.Repeat("k", 1600) + "q\x00}h\x00}h\x00}h\x00K\x01sss."
	if s, err := parse(pack(t, zip.Store, file{"a/data.pkl", []byte(pickle)})); err == nil || !strings.Contains(err.Error(), "at most 4096") {
		t.Errorf("%+v, %v", s, err)
	}
}

func FuzzRead(f *testing.F) {
	var b bytes.Buffer
	if err := Write(f.Context(), &b, formatstest.All()[:6]); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(pack(f, zip.Store, file{"a/data.pkl", lie(func(*told) {})}, file{"a/data/0", make([]byte, 24)}))
	f.Add(pack(f, zip.Deflate, file{"a/data.pkl", lie(func(*told) {})}))
	f.Add(old(lie(func(x *told) { x.old = true }), "\x80\x02]X\x01\x00\x00\x000a.", make([]byte, 24)))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parse(b)
		if err != nil {
			return
		}
		for _, x := range s.Tensors { // each lies in the file
			if x.Bytes() > max(uint64(len(b)), smallest) {
				t.Errorf("%q has %d bytes in a file of %d", x.Name, x.Bytes(), len(b))
			}
			formatstest.Bytes(t, x)
		}
	})
}

// FuzzPickle is FuzzRead behind the zip.
func FuzzPickle(f *testing.F) {
	f.Add(lie(func(*told) {}))
	f.Add(lie(func(x *told) { x.skip = 1 }))
	p := pickles.NewWriter()
	p.List(func() {
		for i, x := range formatstest.All()[:3] {
			rebuild(p, x, i)
		}
	})
	f.Add(p.Bytes())
	f.Fuzz(func(t *testing.T, pickle []byte) {
		b := pack(t, zip.Store, file{"a/data.pkl", pickle}, file{"a/data/0", make([]byte, 24)}, file{"a/data/1", make([]byte, 1)}, file{"a/data/2", nil})
		s, err := parse(b)
		if err != nil {
			return
		}
		for _, x := range s.Tensors {
			if x.Bytes() > smallest {
				t.Errorf("%q has %d bytes", x.Name, x.Bytes())
			}
			formatstest.Bytes(t, x)
		}
	})
}
