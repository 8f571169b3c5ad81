package hf

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/formatstest"
	"github.com/replicad/replicad/internal/durable/safetensors"
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

func TestFolders(t *testing.T) {
	all := formatstest.All()
	for most, files := range map[uint64]int{1 << 30: 1, 60: 14, 1: 45} {
		dir := t.TempDir()
		if err := WriteFolder(t.Context(), dir, all, map[string]string{"second": all[0].Name}, most); err != nil {
			t.Fatal(err)
		}
		got, err := ReadFolder(folder(t, dir))
		if err != nil {
			t.Fatal(err)
		}
		formatstest.Same(t, got.Tensors, all)
		names, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		if err != nil || files == 1 && len(names) != 1 || files > 1 && len(names) < 2 {
			t.Errorf("shards of %d: %q, %v", most, names, err)
		}
		text, err := os.ReadFile(filepath.Join(dir, Index))
		if files == 1 {
			if !errors.Is(err, os.ErrNotExist) {
				t.Error("one file has an index")
			}
			continue
		}
		var x index
		if err := json.Unmarshal(text, &x); err != nil || len(x.WeightMap) != len(all) {
			t.Errorf("%s: %v", text, err)
		}
		sum := uint64(0)
		for _, a := range all {
			sum += a.Bytes()
		}
		if x.Metadata.TotalSize != sum {
			t.Errorf("total size %d, want %d", x.Metadata.TotalSize, sum)
		}
	}
}

// Elements may be read where they lie, and the file is the same whoever writes it.
func TestAligned(t *testing.T) {
	var b, again bytes.Buffer
	all := formatstest.All()
	for _, w := range []*bytes.Buffer{&b, &again} {
		if err := WriteFile(t.Context(), w, map[string]string{"format": "pt"}, all); err != nil {
			t.Fatal(err)
		}
	}
	n, err := safetensors.HeaderLength([8]byte(b.Bytes()[:8]))
	if err != nil || !bytes.Equal(b.Bytes(), again.Bytes()) {
		t.Fatal(err)
	}
	h, err := safetensors.ParseHeader(b.Bytes()[8:8+n], uint64(b.Len())-8-n)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range h.Tensors {
		if (h.Size+x.Begin)%x.DType.Size() != 0 {
			t.Errorf("%s of %v begins at %d", x.Name, x.DType, x.Begin)
		}
	}
}

func TestHostileFolders(t *testing.T) {
	all := formatstest.All()
	write := func(t *testing.T, dir, name string, tensors []formats.Tensor) {
		t.Helper()
		err := formats.WriteFile(dir, name, func(w io.Writer) error { return WriteFile(t.Context(), w, nil, tensors) })
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		index string
		says  string
	}{
		"up":            {`{"weight_map":{"w.U8":"../a.safetensors"}}`, "of this folder"},
		"pickles":       {`{"weight_map":{"w.U8":"pytorch_model.bin"}}`, "safetensors"},
		"absent":        {`{"weight_map":{"w.U8":"c.safetensors"}}`, "no such file"},
		"elsewhere":     {`{"weight_map":{"w.U8":"b.safetensors"}}`, "lies in b.safetensors"},
		"not said":      {`{"weight_map":{"w.U8":"a.safetensors"}}`, "lies in a.safetensors"},
		"nothing":       {`{}`, "no tensors"},
		"no map":        {`{"weight_map":[]}`, "index"},
		"no JSON":       {`{"weight_map":{"a":`, "index"},
		"in two shards": {`{"weight_map":{"w.U8":"a.safetensors","number.U8":"a.safetensors","nothing.U8":"a.safetensors","x":"c.safetensors"}}`, `lies in c.safetensors, the index says "a.safetensors"`},
		"not listed":    {`{"weight_map":{"w.U8":"a.safetensors"}}`, "the index does not list it"},
		"more than has": {`{"weight_map":{"w.U8":"a.safetensors","number.U8":"a.safetensors","nothing.U8":"a.safetensors","x":"a.safetensors"}}`, `"x"`},
	} {
		dir := t.TempDir()
		write(t, dir, "a.safetensors", all[:3])
		write(t, dir, "b.safetensors", all[3:4])
		if name == "in two shards" {
			write(t, dir, "c.safetensors", all[:1])
		}
		if err := os.WriteFile(filepath.Join(dir, Index), []byte(c.index), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFolder(folder(t, dir)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v; want %q", name, got, err, c.says)
		}
	}
	dir := t.TempDir()
	write(t, dir, "a.safetensors", all[:3])
	write(t, dir, "b.safetensors", all[3:4])
	if got, err := ReadFolder(folder(t, dir)); err == nil || !strings.Contains(err.Error(), "no index") {
		t.Errorf("%v, %v", got, err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "a.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 7, 8, 100, len(whole) - 1} {
		cut := filepath.Join(t.TempDir(), "a.safetensors")
		if err := os.WriteFile(cut, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFolder(folder(t, filepath.Dir(cut))); !errors.Is(err, safetensors.ErrFormat) {
			t.Errorf("cut at %d: %v, %v", n, got, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":3},"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../a.safetensors"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		where, err := ParseIndex(b)
		if (err == nil) == (len(where) == 0) {
			t.Errorf("%v, %v", where, err)
		}
		for _, file := range where {
			if slices.Contains([]string{"", "."}, filepath.Base(file)) || filepath.Base(file) != file {
				t.Errorf("%q", file)
			}
		}
	})
}
