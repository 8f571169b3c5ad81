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
	negative               bool
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
	x := told{"FloatStorage", "0", 6, 0, []uint64{2, 3}, []uint64{3, 1}, "_rebuild_tensor_v2", "torch._utils", "storage", false}
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
		"os.system":          {pack(t, zip.Store, file{"a/data.pkl", []byte("cos\nsystem\n\x8c\x02ls\x85R.")}), "os.system"},
		"no storage":         {pack(t, zip.Store, file{"a/data.pkl", honest}), "data/0"},
		"a short storage":    {pack(t, zip.Store, file{"a/data.pkl", honest}, file{"a/data/0", make([]byte, 23)}), "23 bytes"},
		"a long storage":     {pack(t, zip.Store, file{"a/data.pkl", honest}, file{"a/data/0", make([]byte, 25)}), "25 bytes"},
		"beyond the storage": {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.skip = 1 })}, data), "at 1 of its storage"},
		"far beyond":         {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.skip = 1 << 62 })}, data), "of its storage"},
		"a large shape":      {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.shape, x.steps = []uint64{1 << 40, 1 << 40}, []uint64{1 << 40, 1} })}, data), "of its storage"},
		"transposed":         {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.steps = []uint64{1, 2} })}, data), ".contiguous()"},
		"expanded":           {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.steps = []uint64{0, 0} })}, data), ".contiguous()"},
		"many dimensions":    {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.shape = make([]uint64, 9) })}, data), "at most 8"},
		"a path as key":      {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.key = "../../../etc/passwd" })}, data), "etc/passwd"},
		"no class of torch":  {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.storage = "ComplexFloatStorage" })}, data), "torch.ComplexFloatStorage"},
		"a sparse tensor":    {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.function = "_rebuild_sparse_tensor" })}, data), "_rebuild_sparse_tensor"},
		"a negative view":    {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.negative = true })}, data), "resolve_neg"},
		"a file as storage":  {pack(t, zip.Store, file{"a/data.pkl", lie(func(x *told) { x.kind = "module" })}, data), "names no storage"},
	} {
		s, err := parse(c.b)
		if err == nil || !strings.Contains(err.Error(), c.says) || !errors.Is(err, ErrFormat) && !errors.Is(err, pickles.ErrRefused) {
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
	pickle := "\x80\x02X\x90\x01\x00\x00" + strings.Repeat("k", 400) + "q\x00}h\x00}h\x00}h\x00K\x01sss."
	if s, err := parse(pack(t, zip.Store, file{"a/data.pkl", []byte(pickle)})); err == nil || !strings.Contains(err.Error(), "at most 1024") {
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
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parse(b)
		if err != nil {
			return
		}
		for _, x := range s.Tensors { // each lies in the file
			if x.Bytes() > uint64(len(b)) {
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
			if x.Bytes() > 24 {
				t.Errorf("%q has %d bytes", x.Name, x.Bytes())
			}
			formatstest.Bytes(t, x)
		}
	})
}
