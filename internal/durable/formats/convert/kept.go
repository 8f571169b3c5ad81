package convert

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/damage"
	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/kept"
)

// ownNames are patterns of what a format's own files may be called in the folder itself: a program that reads it would take others of such a name for them.
var ownNames = map[string][]string{
	HF:          {"model*.safetensors", "model*.safetensors.index.json"},
	DCP:         {".metadata", "*.distcp"},
	PT:          {"state.pt"},
	Safetensors: {"state.safetensors"},
}

// taken tells whether a kept file would lie where a format has its own.
func taken(format, name string) bool {
	first, _, _ := strings.Cut(name, "/")
	return slices.ContainsFunc(ownNames[format], func(pattern string) bool {
		ok, _ := path.Match(pattern, first) // the patterns are good
		return ok
	})
}

// beside are the ends of names of what lies beside weights and says how to use them: configurations, tokenizers, templates, a model card.
var beside = []string{".json", ".txt", ".model", ".tiktoken", ".jinja", ".md"}

// keep packs the files beside the weights of a folder of Hugging Face's, for the run to carry; nil: there are none, or they are too many.
func (s *source) keep(d *Done) []byte {
	if s.format != HF {
		return nil
	}
	names, err := s.folder.Names()
	if err != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("files beside the weights were not taken along: %v", err))
		return nil
	}
	var files []kept.Source
	room := int64(kept.MaxBytes)
	for _, name := range names {
		if !slices.ContainsFunc(beside, func(end string) bool { return strings.HasSuffix(name, end) }) || strings.HasSuffix(name, ".index.json") || strings.HasPrefix(name, ".") {
			continue
		}
		b, err := s.folder.Small(name, room)
		if err != nil {
			d.Notes = append(d.Notes, fmt.Sprintf("a file beside the weights was not taken along: %v", err))
			continue
		}
		room -= int64(len(b))
		files, d.Kept = append(files, kept.Source{Name: name, Data: b}), append(d.Kept, name)
	}
	if len(files) == 0 {
		return nil
	}
	tar, err := kept.Pack(files)
	if err != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("the %d files beside the weights were not taken along: they are %v", len(files), err))
		d.Kept = nil
	}
	return tar
}

// writeKept puts the files that a generation's run carries beside the weights, but for those that would be taken for such.
func (d *Done) writeKept(ctx context.Context, cat *read.Reader, f find.Found, format, dir string) error {
	folders := map[string]bool{}
	err := cat.ReadKept(ctx, f, func(file kept.File, content io.Reader) error {
		if taken(format, file.Name) {
			d.Notes = append(d.Notes, fmt.Sprintf("the kept file %q is left out: %s has files of its own that are called so", file.Name, format))
			return nil
		}
		name := filepath.FromSlash(file.Name)
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		for p := filepath.Dir(name); p != "."; p = filepath.Dir(p) {
			folders[p] = true
		}
		d.Kept = append(d.Kept, file.Name)
		return formats.WriteFile(dir, name, func(w io.Writer) error {
			_, err := io.Copy(w, content)
			return err
		})
	})
	if damage.Is(err) {
		d.Notes = append(d.Notes, fmt.Sprintf("the export has none of the files that were kept with the run: %v", err))
		return nil
	}
	if err != nil {
		return err
	}
	for p := range folders {
		if err := syncDir(filepath.Join(dir, p)); err != nil {
			return err
		}
	}
	return nil
}
