package convert

import (
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
		"control":          {make: func(d string) error { return saved(d, one("a\x1b[31m")) }, path: "x.pt", says: "control character"},
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
	g, err := newSealed(t.Context(), []formats.Tensor{x}, replica.Generation{Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
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
