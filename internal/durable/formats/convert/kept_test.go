package convert

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/memory"
)

// below are the files of a folder and of those in it.
func below(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// An export has the files that the run carries, in their folders, but for those that have the name of one of its own; damage of them costs no export.
func TestExportOfKeptFiles(t *testing.T) {
	groups, _, _ := state(t)
	m := memory.New()
	c, f := writeTo(t, m, groups)
	given := map[string]string{"config.json": "{}", "tok/tokenizer.json": "[1]", "tok/sub/empty": "", "model.safetensors": "W", "model.safetensors.index.json": "W", "2_Dense/model.safetensors": "D", ".metadata": "M", "__0_0.distcp": "M", "state.pt/x": "P", "state.safetensors": "S"}
	own := map[string][]string{HF: {"model.safetensors", "model.safetensors.index.json"}, DCP: {".metadata", "__0_0.distcp"}, PT: {"state.pt/x"}, Safetensors: {"state.safetensors"}}
	var sources []kept.Source
	for name, text := range given {
		sources = append(sources, kept.Source{Name: name, Data: []byte(text)})
	}
	tar, err := kept.Pack(sources)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := c.KeepFiles(t.Context(), f.Run, func() ([]byte, error) { return tar, nil })
	if err != nil {
		t.Fatal(err)
	}
	bare := f
	f.KeptFiles = &ref
	for _, to := range Formats {
		dir := t.TempDir()
		done, err := Export(t.Context(), c, f, Want{Format: to, Dir: filepath.Join(dir, "with")})
		if err != nil {
			t.Fatal(err)
		}
		if without, err := Export(t.Context(), c, bare, Want{Format: to, Dir: filepath.Join(dir, "without")}); err != nil || len(without.Kept) > 0 {
			t.Fatal(without, err)
		}
		want, notes := below(t, filepath.Join(dir, "without")), strings.Join(done.Notes, "\n")
		for name, text := range given {
			if !slices.Contains(own[to], name) {
				want[name] = text
			} else if !strings.Contains(notes, fmt.Sprintf("%q is left out", name)) {
				t.Errorf("%s: %s does not name %s", to, notes, name)
			}
		}
		if got := below(t, filepath.Join(dir, "with")); !maps.Equal(got, want) || len(done.Kept) != len(given)-len(own[to]) {
			t.Errorf("%s: %v and %v, want %v", to, done.Kept, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
	m.Bend(f.Run.Under(ref.Key), func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	dir := filepath.Join(t.TempDir(), "out")
	done, err := Export(t.Context(), c, f, Want{Format: HF, Dir: dir})
	if err != nil || len(below(t, dir)) != 1 || !strings.Contains(strings.Join(done.Notes, "\n"), "the export has none of the files that were kept") {
		t.Errorf("%+v, %v", done, err)
	}
}

// An import of a folder of Hugging Face's takes the small files beside the weights along, and says of others that it did not.
func TestImportKeepsFiles(t *testing.T) {
	groups, _, _ := state(t)
	c, f := write(t, groups)
	dir := filepath.Join(t.TempDir(), "in")
	if _, err := Export(t.Context(), c, f, Want{Format: HF, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"config.json", "merges.txt", "spiece.model", "chat_template.jinja", "README.md", ".hidden.json", "pytorch_model.bin"} {
		put(name, "of "+name)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	brought := func(job string) (Imported, map[string]string) {
		t.Helper()
		other := catalog.New(memory.New(), catalog.Options{Who: "ada"})
		done, err := Import(t.Context(), dir, other, Into{Job: job})
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(t.TempDir(), "out")
		if _, err := Export(t.Context(), other, imported(t, other, job), Want{Format: HF, Dir: out}); err != nil {
			t.Fatal(err)
		}
		got := below(t, out)
		delete(got, "model.safetensors")
		return done, got
	}
	done, got := brought("new")
	want := []string{"README.md", "chat_template.jinja", "config.json", "merges.txt", "spiece.model"}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(done.Kept, want) || !slices.Equal(names, want) || got["config.json"] != "of config.json" {
		t.Errorf("%v, %v", done.Kept, got)
	}
	if notes := strings.Join(done.Notes, "\n"); !strings.Contains(notes, "folder.json is no regular file") {
		t.Error(notes)
	}
	put("vocab.json", "")
	if err := os.Truncate(filepath.Join(dir, "vocab.json"), kept.MaxBytes); err != nil {
		t.Fatal(err)
	}
	done, got = brought("large")
	if notes := strings.Join(done.Notes, "\n"); !strings.Contains(notes, "vocab.json has 67108864 bytes, at most ") || !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
		t.Errorf("%v, %v", notes, slices.Sorted(maps.Keys(got)))
	}
}
