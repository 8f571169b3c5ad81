package convert

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/formatstest"
	"github.com/replicad/replicad/internal/durable/formats/hf"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/internal/durable/formats/pt"
	"github.com/replicad/replicad/internal/durable/memory"
	"github.com/replicad/replicad/replica"
)

// imported is the generation that an import made.
func imported(t *testing.T, c *catalog.Catalog, name string) catalog.Found {
	t.Helper()
	found, _, err := c.Find(t.Context(), name, replica.JobID{})
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

// contents are the files of a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, n.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[n.Name()] = string(b)
	}
	return out
}

// What is exported, imported and exported again is the same files, byte for byte; of a safetensors file all but the words that name its job.
func TestRoundTrips(t *testing.T) {
	groups, want, _ := state(t)
	c, f := write(t, groups)
	for _, to := range []struct{ format, file string }{{HF, ""}, {DCP, ""}, {PT, "state.pt"}, {Safetensors, "state.safetensors"}} {
		dir := t.TempDir()
		first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
		var moved, whole atomic.Uint64
		count := func(bytes int, of uint64) { moved.Add(uint64(bytes)); whole.Store(of) }
		if d, err := Export(t.Context(), c, f, Want{Format: to.format, Dir: first, Moved: count}); err != nil || moved.Load() != d.Bytes || whole.Load() != d.Bytes {
			t.Fatalf("%s: it says that it moved %d bytes of %d, and has %d: %v", to.format, moved.Load(), whole.Load(), d.Bytes, err)
		}
		other := catalog.New(memory.New(), catalog.Options{Who: "ada"})
		moved.Store(0)
		done, err := Import(t.Context(), filepath.Join(first, to.file), other, Into{Job: "new", Step: 9, Owner: 5, Moved: count})
		if err != nil || moved.Load() != 2*done.Bytes || whole.Load() != 2*done.Bytes {
			t.Fatalf("%s: it says that it moved %d bytes of %d, and has twice %d: %v", to.format, moved.Load(), whole.Load(), done.Bytes, err)
		}
		g := imported(t, other, "new")
		if done.Format != to.format || done.Run != g.Run.Run || g.Generation != (replica.Generation{Epoch: 1, Step: 9}) || g.Owner != 5 || g.Layout.World != 1 || !strings.Contains(g.Provenance["imported"], to.format) {
			t.Errorf("%+v, %+v", done, g.Commit)
		}
		if faults, err := other.Verify(t.Context(), g, nil); err != nil || len(faults) > 0 {
			t.Errorf("%s: %v, %v", to.format, faults, err)
		}
		if _, err := Export(t.Context(), other, g, Want{Format: to.format, Dir: second}); err != nil {
			t.Fatal(err)
		}
		a, b := contents(t, first), contents(t, second)
		if to.format == Safetensors {
			formatstest.Same(t, back(t, filepath.Join(second, to.file)), want)
		} else if len(a) == 0 || fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("%s: other files", to.format)
		}
		if _, err := Import(t.Context(), filepath.Join(first, to.file), other, Into{Job: "new", Step: 10}); err == nil || !strings.Contains(err.Error(), "another name with --job") {
			t.Errorf("%s: a job that has generations: %v", to.format, err)
		}
		if lines, _, err := other.Logs(t.Context(), "new", 10); err != nil || len(lines) != 2 || lines[0].Verb != "import" {
			t.Errorf("%+v, %v", lines, err)
		}
	}
}

// An import that breaks off at any call of the store leaves nothing, and the next one comes through.
func TestBrokenOff(t *testing.T) {
	dir := t.TempDir()
	if err := formats.WriteFile(dir, "x.safetensors", func(w io.Writer) error { return hf.WriteFile(t.Context(), w, nil, formatstest.All()) }); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil { // the run carries it
		t.Fatal(err)
	}
	broken := errors.New("the power went")
	for n := 0; ; n++ {
		st := memory.New()
		var mu sync.Mutex // calls come several at once
		changes, failed := 0, false
		st.Before = func(call memory.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if failed || !call.Changes() {
				return nil
			}
			if changes++; changes == n+1 {
				failed = true
				return broken
			}
			return nil
		}
		c := catalog.New(st, catalog.Options{Who: "ada"})
		_, err := Import(t.Context(), dir, c, Into{Job: "new"})
		if !failed {
			if err != nil || n < 5 {
				t.Errorf("%d changes: %v", n, err)
			}
			return
		}
		found, _, ferr := c.Find(t.Context(), "new", replica.JobID{})
		if ferr != nil || (err == nil) != (len(found) == 1) {
			t.Errorf("broken off at change %d: %v; there is %+v, %v", n, err, found, ferr)
		}
		if err != nil {
			if runs, rerr := c.Runs(t.Context(), "new"); !errors.Is(err, broken) || rerr != nil || len(runs) > 0 {
				t.Errorf("broken off at change %d: %v; runs %+v, %v", n, err, runs, rerr)
			}
			if _, err := Import(t.Context(), dir, c, Into{Job: "new"}); err != nil {
				t.Errorf("after one that broke off at change %d: %v", n, err)
			}
		}
	}
}

// A trainer's folder may have whole weights beside DeepSpeed's shards: these are taken.
func TestWeightsBesideShards(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "zero_to_fp32.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := formats.WriteFile(dir, "model.safetensors", func(w io.Writer) error { return hf.WriteFile(t.Context(), w, nil, formatstest.All()) }); err != nil {
		t.Fatal(err)
	}
	formatstest.Same(t, back(t, dir), formatstest.All())
}

func TestImportRefuses(t *testing.T) {
	one := func(name string) []formats.Tensor { return []formats.Tensor{formatstest.Tensor(name, replica.U8, 3)} }
	file := func(dir, name, text string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600) }
	saved := func(dir string, list []formats.Tensor) error {
		return formats.WriteFile(dir, "x.pt", func(w io.Writer) error { return pt.Write(t.Context(), w, list) })
	}
	for name, c := range map[string]struct {
		make func(dir string) error
		path string
		into Into
		says string
	}{
		"nothing":         {path: "absent", says: "no such file"},
		"an empty folder": {says: "nothing in it is known"},
		"an empty file":   {make: func(d string) error { return file(d, "x", "") }, path: "x", says: "no format that is known"},
		"a text":          {make: func(d string) error { return file(d, "x", "hello world") }, path: "x", says: `begins with "hello wor"`},
		"a bare pickle":   {make: func(d string) error { return file(d, "x.pt", "\x80\x02cos\nsystem\n.") }, path: "x.pt", says: "a bare pickle"},
		"pickled weights": {make: func(d string) error { return file(d, "pytorch_model.bin", "x") }, says: "import one file, as pytorch_model.bin"},
		"a pipe":          {make: func(d string) error { return syscall.Mkfifo(filepath.Join(d, "x"), 0o600) }, path: "x", says: "no regular file"},
		"a device":        {path: "/dev/zero", says: "no regular file"},
		"ZeRO":            {make: func(d string) error { return file(d, "zero_pp_rank_0_mp_rank_00_optim_states.pt", "") }, says: "zero_to_fp32.py"},
		"ZeRO by tags": {make: func(d string) error {
			return errors.Join(file(d, "latest", "global_step5"), os.Mkdir(filepath.Join(d, "global_step5"), 0o700))
		}, says: "zero_to_fp32.py"},
		"no tensors":       {make: func(d string) error { return saved(d, nil) }, path: "x.pt", says: "no tensors"},
		"control":          {make: func(d string) error { return saved(d, one("a\x1b[31m")) }, path: "x.pt", says: "control characters"},
		"no name":          {make: func(d string) error { return saved(d, one("")) }, path: "x.pt", says: "want a name"},
		"our names":        {make: func(d string) error { return saved(d, one("replicad.layout")) }, path: "x.pt", says: "replicad's own"},
		"two by one name":  {make: func(d string) error { return saved(d, append(one("a"), one("b")...)) }, path: "x.pt", into: Into{Map: []Rename{{"a", "c"}, {"b", "c"}}}, says: `called "c"`},
		"a job's bad name": {make: func(d string) error { return saved(d, one("a")) }, path: "x.pt", into: Into{Job: "../x"}, says: "x"},
	} {
		dir := t.TempDir()
		if c.make != nil {
			if err := c.make(dir); err != nil {
				t.Fatal(err)
			}
		}
		st := memory.New()
		if c.into.Job == "" {
			c.into.Job = "new"
		}
		path := c.path
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		cat := catalog.New(st, catalog.Options{Who: "ada"})
		if _, err := Import(t.Context(), path, cat, c.into); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if jobs, err := cat.Jobs(t.Context()); err != nil || len(jobs) > 0 {
			t.Errorf("%s: left %q, %v", name, jobs, err)
		}
	}
}

// TestNamesOfFiles: whole names, however long, and aliases come out of each format as they went in, of one group and of several.
func TestNamesOfFiles(t *testing.T) {
	long := "model." + strings.Repeat("layers.experts.", 260) + "weight" // 3,912 bytes
	list := []formats.Tensor{formatstest.Tensor("model.emb", replica.F32, 2, 3), formatstest.Tensor(long, replica.BF16, 4), formatstest.Tensor(strings.Repeat("é", 100), replica.C64, 2), formatstest.Tensor("z", replica.F4X2, 2, 2)}
	dir := t.TempDir()
	meta := map[string]string{"format": "pt", "head": "model.emb", "replicad": "x", "note": "not a name"}
	if err := formats.WriteFile(dir, "x.safetensors", func(w io.Writer) error { return hf.WriteFile(t.Context(), w, meta, list) }); err != nil {
		t.Fatal(err)
	}
	for _, perGroup := range []int{0, 1, 3} {
		c := catalog.New(memory.New(), catalog.Options{Who: "ada"})
		if _, err := Import(t.Context(), filepath.Join(dir, "x.safetensors"), c, Into{Job: "new", perGroup: perGroup}); err != nil {
			t.Fatal(err)
		}
		f := imported(t, c, "new")
		if n := map[int]uint32{0: 1, 1: 4, 3: 2}[perGroup]; f.Layout.World != n {
			t.Errorf("a world of %d, want %d", f.Layout.World, n)
		}
		if faults, err := c.Verify(t.Context(), f, nil); err != nil || len(faults) > 0 {
			t.Errorf("%v, %v", faults, err)
		}
		for to, file := range map[string]string{HF: "", DCP: "", PT: "state.pt", Safetensors: "state.safetensors"} {
			out := filepath.Join(t.TempDir(), "out")
			d, err := Export(t.Context(), c, f, Want{Format: to, Dir: out, Map: []Rename{{"model.", "m."}}})
			if err != nil || d.Tensors != len(list) {
				t.Fatalf("%s: %+v, %v", to, d, err)
			}
			s, err := open(filepath.Join(out, file))
			if err != nil {
				t.Fatal(err)
			}
			var want []formats.Tensor
			for _, x := range list {
				x.Name = renamed(x.Name, []Rename{{"model.", "m."}})
				want = append(want, x)
			}
			formatstest.Same(t, s.tensors, want)
			if (to == HF || to == Safetensors) && fmt.Sprint(s.aliases) != "map[head:m.emb]" {
				t.Errorf("%s: aliases %v", to, s.aliases)
			}
			if err := s.folder.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestLeftOutOfAnImport: what can't be held is named, and --only chooses by the file's names and by those that a tensor gets.
func TestLeftOutOfAnImport(t *testing.T) {
	const text = `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"six":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[2,5]},"b.c":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}`
	dir := t.TempDir()
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text+"123456"...)
	if err := os.WriteFile(filepath.Join(dir, "x.safetensors"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		only []string
		want string
		left int
		says string
	}{
		{nil, "model.a model.b.c", 1, ""}, {[]string{"b.*"}, "model.b.c", 0, ""}, {[]string{"model.a"}, "model.a", 0, ""}, {[]string{"!six"}, "model.a model.b.c", 0, ""},
		{[]string{"!b.*", "!model.six"}, "model.a", 0, ""}, {[]string{"six"}, "", 0, `"F6_E2M3" is unknown`}, {[]string{"x"}, "", 0, "none of its 3 tensors fits --only"}, {[]string{"["}, "", 0, "--only"},
	} {
		cat := catalog.New(memory.New(), catalog.Options{Who: "ada"})
		d, err := Import(t.Context(), filepath.Join(dir, "x.safetensors"), cat, Into{Job: "new", Only: c.only})
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v; want %q", c.only, err, c.says)
			}
			continue
		}
		if err != nil || len(d.Left) != c.left || strings.Contains(strings.Join(d.Notes, "\n"), `tensor "six" was left out`) != (c.left > 0) {
			t.Fatalf("%q: %+v, %v", c.only, d, err)
		}
		f := imported(t, cat, "new")
		var names []string
		for _, x := range f.Index.Tensors {
			names = append(names, x.Name)
		}
		if strings.Join(names, " ") != c.want || (f.Provenance["left out"] != "") != (c.left > 0) {
			t.Errorf("%q: %q, %v", c.only, names, f.Provenance)
		}
	}
}

// TestObjectsOfAnImport: objects of other classes are named by class and place; a file of nothing else says what to do.
func TestObjectsOfAnImport(t *testing.T) {
	p := pickles.NewWriter()
	p.Dict(func() {
		p.Text("args")
		p.Object("argparse", "Namespace", func() { p.Dict(func() {}) })
	})
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: "a/data.pkl"})
	if err == nil {
		_, err = w.Write(p.Bytes())
	}
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.pt")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Import(t.Context(), path, catalog.New(memory.New(), catalog.Options{Who: "ada"}), Into{Job: "new"})
	if err == nil || !strings.Contains(err.Error(), `"argparse.Namespace"`) || !strings.Contains(err.Error(), "state_dict()") || len(d.Opaque) != 1 || !strings.Contains(d.Notes[0], `"argparse.Namespace"`) {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestSplit(t *testing.T) {
	var list []formats.Tensor
	for range 10 {
		list = append(list, formatstest.Tensor("12345", replica.U8, 1))
	}
	for want, got := range map[string][][]formats.Tensor{"4 4 2": split(list, 4, 1000), "10": split(list, 10, 50), "5 5": split(list, 10, 29), "1 1 1": split(list[:3], 9, 1)} {
		var n []string
		for _, g := range got {
			n = append(n, fmt.Sprint(len(g)))
		}
		if strings.Join(n, " ") != want {
			t.Errorf("%v, want %s", n, want)
		}
	}
}

// A file that changes between the reads is no generation.
func TestChangedMeanwhile(t *testing.T) {
	x := formatstest.Tensor("a", replica.U8, 3)
	read, n := x.ReadAt, byte(0)
	x.ReadAt = func(p []byte, off uint64) error { // of one chunk, once each time
		err := read(p, off)
		p[0] += n
		n++
		return err
	}
	one, err := newSealed(t.Context(), 0, []formats.Tensor{x}, nil, replica.Generation{Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	g := &whole{generation: one.generation, groups: []*sealed{one}}
	c := catalog.New(memory.New(), catalog.Options{Who: "ada"})
	if _, err := g.write(t.Context(), c, Into{Job: "new"}, "x"); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Error(err)
	}
	if jobs, err := c.Jobs(t.Context()); err != nil || len(jobs) > 0 {
		t.Errorf("left %q, %v", jobs, err)
	}
}

func TestNames(t *testing.T) {
	// What replicad._torch.tensors._short makes of them.
	for name, want := range map[string]string{
		"weight":                       "weight",
		strings.Repeat("a", 127):       strings.Repeat("a", 127),
		strings.Repeat("a", 127) + "b": "383c56e0e342bbba~" + strings.Repeat("a", 109) + "b",
		strings.Repeat("é", 80) + "x":  "c5bfff5b36bfcc07~" + strings.Repeat("é", 54) + "x",
	} {
		if got := short(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	for text, want := range map[string]Rename{"a=b": {"a", "b"}, "=model.": {"", "model."}, "model.=": {"model.", ""}, "a=b=c": {"a", "b=c"}} {
		if r, err := ParseRename(text); err != nil || r != want {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
	if _, err := ParseRename("model"); err == nil {
		t.Error("no =")
	}
	if got := renamed("model.a", []Rename{{"x", "y"}, {"model.", ""}, {"model.a", "z"}}); got != "a" {
		t.Error(got)
	}
}
