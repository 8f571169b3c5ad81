package main

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// Commands and --from go on without any one of the small objects that lie beside generations: it is deleted, emptied, flipped, or cannot be read. What is
// one generation's costs that one alone.
func TestCommandsWithoutAnObject(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20} {
		catalogtest.Write(t, dir, step, 1)
	}
	expect(t, 0, []string{"verify", dir + "@10"})
	expect(t, 0, []string{"pin", dir + "@10", "--why", "paper"})
	harms := map[string]func(name string) error{
		"deleted": os.Remove,
		"emptied": func(name string) error { return os.Truncate(name, 0) },
		"refused": func(name string) error { // it is there, and cannot be read
			if err := os.Remove(name); err != nil {
				return err
			}
			return os.Symlink("/etc/hostname", name)
		},
		"flipped": func(name string) error {
			b, err := os.ReadFile(name)
			if err == nil {
				b[len(b)/2] ^= 4
				err = os.WriteFile(name, b, 0o600)
			}
			return err
		},
	}
	var keys []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".json") {
			keys = append(keys, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		of := replica.Step(0)
		if parts := strings.SplitN(key, "/", 3); len(parts) == 3 {
			if n := format.ParseName(parts[2]); n.Kind == format.CommitKind || n.Kind == format.IndexKind {
				of = n.Generation.Step
			}
		}
		for j, harm := range slices.Sorted(maps.Keys(harms)) {
			at := filepath.Join(t.TempDir(), "there")
			if err := os.CopyFS(at, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := harms[harm](filepath.Join(at, key)); err != nil {
				t.Fatal(err)
			}
			want := replica.Step(20)
			if of == 20 {
				want = 10
			}
			f := runFlags{from: at}
			from, err := f.origin(t.Context(), stdio{err: &bytes.Buffer{}})
			f.lease.End()
			if err != nil || from.Failed != "" || from.Generation.Step != want {
				t.Errorf("%s %s: --from: %+v, %v", key, harm, from, err)
			}
			to, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			verbs := [][]string{{"ls", at}, {"show", at}, {"log", at}, {"cp", at, to}, {"verify", "--no-record", to}, {"export", at, out, "--to", "safetensors"}, {"verify", "--no-record", at + "@10"}}
			if (i+j)%len(harms) != 0 {
				verbs = verbs[:2]
			} else if of == 10 {
				verbs = verbs[:len(verbs)-1]
			}
			for _, args := range verbs {
				if code, out, errout := try(t, append([]string{"ckpt"}, args...)...); code != 0 {
					t.Errorf("%s %s: %q: code %d: %s%s", key, harm, args[0], code, out, errout)
				}
			}
		}
	}
	t.Logf("%d objects", len(keys))
}
