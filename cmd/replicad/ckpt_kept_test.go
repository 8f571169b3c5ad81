package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/replica"
)

// What lies beside weights that are imported goes with the run: it is shown, copied, exported, and read by verify, which tells its damage from the state's.
func TestCkptKeptFiles(t *testing.T) {
	made, in, dir, other := t.TempDir(), filepath.Join(t.TempDir(), "in"), t.TempDir(), t.TempDir()
	catalogtest.WriteMade(t, made, durabletest.Make(replica.Generation{Epoch: 1, Step: 10}, 2), 0)
	expect(t, exitOK, []string{"export", made, in, "--to", "hf"})
	for _, name := range []string{"a.json", "b.json", "c.txt", "d.model", "e.md"} {
		if err := os.WriteFile(filepath.Join(in, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, exitOK, []string{"import", in, "--to", dir, "--job", "new"}, ", and 5 kept files (a.json, b.json, c.txt, d.model, ...)")
	expect(t, exitOK, []string{"show", dir}, "kept file", "e.md, 2 B")
	expect(t, exitOK, []string{"show", dir, "--json"}, `"kept_files": [`, `"name": "e.md"`)
	expect(t, exitOK, []string{"cp", dir, other}, "copied step 0")
	expect(t, exitOK, []string{"verify", other}, "good")
	out := filepath.Join(t.TempDir(), "out")
	expect(t, exitOK, []string{"export", other, out, "--to", "pt"}, ", and 5 kept files (a.json, ")
	if b, err := os.ReadFile(filepath.Join(out, "d.model")); err != nil || string(b) != "{}" {
		t.Errorf("%q, %v", b, err)
	}

	tars, err := filepath.Glob(filepath.Join(other, "new", "*", "kept.tar"))
	if err != nil || len(tars) != 1 || os.Remove(tars[0]) != nil {
		t.Fatal(tars, err)
	}
	expect(t, exitFailed, []string{"verify", other}, ": good, ", "kept.tar is missing", "the state does not need it", "of 1 of 1 generations the state is whole")
	expect(t, exitFailed, []string{"verify", other, "--json"}, `"good": true`, `"beside": true`)
	expect(t, exitOK, []string{"ls", other}, "good")
	expect(t, exitOK, []string{"show", other}, "kept files", "DAMAGED: ", "kept.tar is missing")
	expect(t, exitOK, []string{"export", other, filepath.Join(t.TempDir(), "out"), "--to", "hf"}, "note: the export has none of the files that were kept with the run")
	expect(t, exitOK, []string{"cp", other, t.TempDir()}, "note: the files kept with run ", "are not copied", "copied step 0")
	expect(t, exitOK, []string{"cp", dir, other}, "copied step 0")
	expect(t, exitOK, []string{"verify", other}, "good")
}

// The files that --keep-file names are read before a daemon is asked for anything; what cannot be kept is wrong usage.
func TestRunKeepFile(t *testing.T) {
	f, err := kept.Gather(nil)
	if f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err = kept.Gather([]string{dir + "/"}); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tar, err := kept.Open(f)
	if err != nil || tar.Bytes == 0 {
		t.Errorf("%+v, %v", tar, err)
	}
	args := []string{"run", "--socket", filepath.Join(dir, "s"), "--job", "j", "--world", "1"}
	for says, paths := range map[string][]string{"--keep-file: " + dir + "/gone: no such file": {dir + "/gone"}, "no file is in": {filepath.Join(dir, "empty")}} {
		more := slices.Clone(args)
		for _, p := range paths {
			more = append(more, "--keep-file", p)
		}
		if code, _, errout := try(t, append(more, "--", "true")...); code != exitUsage || !strings.Contains(errout, says) {
			t.Errorf("%v: code %d: %s", paths, code, errout)
		}
	}
}
