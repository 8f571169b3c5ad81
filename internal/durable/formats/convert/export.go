package convert

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/dcp"
	"github.com/replicad/replicad/internal/durable/formats/hf"
	"github.com/replicad/replicad/internal/durable/formats/pt"
	"github.com/replicad/replicad/replica"
)

// Names of formats.
const (
	HF          = "hf"
	DCP         = "dcp"
	PT          = "pt"
	Safetensors = "safetensors"
)

// Formats are those that an export may have.
var Formats = []string{HF, DCP, PT, Safetensors}

// Want is what is to be exported, and how.
type Want struct {
	Format  string
	Only    []string    // words and patterns that all must fit
	Map     []Rename    // nil: the name of a session's only model goes where only models are exported
	Dir     string      // which is not there, or empty
	Refused func(error) // told where the store takes no lease
	Moved   Moved
}

// Moved is told from several goroutines that bytes were read, of so many that will be; nil: nobody is.
type Moved func(bytes int, of uint64)

// counted tells of what is read of tensors, each of which is read so many times.
func (m Moved) counted(tensors []formats.Tensor, times uint64) {
	if m == nil {
		return
	}
	of := uint64(0)
	for _, t := range tensors {
		of += times * t.Bytes()
	}
	for i := range tensors {
		read := tensors[i].ReadAt
		tensors[i].ReadAt = func(p []byte, off uint64) error {
			err := read(p, off)
			m(len(p), of)
			return err
		}
	}
}

// Done is what was exported or imported.
type Done struct {
	Tensors int      `json:"tensors"`
	Bytes   uint64   `json:"bytes"`
	Kept    []string `json:"kept_files,omitempty"` // files that its run carries
	Notes   []string `json:"notes,omitempty"`      // what is to be known of it
	// Left are tensors that no generation or format can hold, and Opaque objects of classes that are no tensors', which an import left out.
	Left   []formats.Left `json:"left_out,omitempty"`
	Opaque []pt.Opaque    `json:"opaque,omitempty"`
}

// writers write a format into a folder that is there.
var writers = map[string]func(ctx context.Context, dir string, f catalog.Found, tensors []formats.Tensor, aliases map[string]string) error{
	HF: func(ctx context.Context, dir string, _ catalog.Found, tensors []formats.Tensor, aliases map[string]string) error {
		return hf.WriteFolder(ctx, dir, tensors, aliases, hf.ShardBytes)
	},
	DCP: func(ctx context.Context, dir string, _ catalog.Found, tensors []formats.Tensor, _ map[string]string) error {
		return dcp.WriteFolder(ctx, dir, tensors)
	},
	PT: func(ctx context.Context, dir string, _ catalog.Found, tensors []formats.Tensor, _ map[string]string) error {
		return formats.WriteFile(dir, "state.pt", func(w io.Writer) error { return pt.Write(ctx, w, tensors) })
	},
	Safetensors: func(ctx context.Context, dir string, f catalog.Found, tensors []formats.Tensor, aliases map[string]string) error {
		meta := maps.Clone(aliases)
		maps.Copy(meta, map[string]string{"format": "pt", "replicad": fmt.Sprintf("job %s, run %s, %s", f.Job, f.Run.Run, format.StepName(f.Generation))})
		return formats.WriteFile(dir, "state.safetensors", func(w io.Writer) error { return hf.WriteFile(ctx, w, meta, tensors) })
	},
}

// Export writes a generation into a folder, and a line into the job's log.
func Export(ctx context.Context, cat *catalog.Catalog, f catalog.Found, w Want) (d Done, err error) {
	if writers[w.Format] == nil {
		return d, fmt.Errorf("format %.40q: want one of %v", w.Format, Formats)
	}
	why := fmt.Sprintf("as %s to %s", w.Format, w.Dir)
	err = cat.Leased(ctx, f, "ckpt export "+why, w.Refused, func() error {
		g := newGeneration(ctx, cat.Reader, f)
		defer g.close()
		tensors, aliases, notes, err := g.export(w)
		if err != nil {
			return err
		}
		d = Done{Tensors: len(tensors), Notes: notes}
		for _, t := range tensors {
			d.Bytes += t.Bytes()
		}
		w.Moved.counted(tensors, 1)
		return atOnce(w.Dir, func(dir string) error {
			if err := writers[w.Format](ctx, dir, f, tensors, aliases); err != nil {
				return err
			}
			return d.writeKept(ctx, cat.Reader, f, w.Format, dir)
		})
	})
	if err != nil {
		return d, fmt.Errorf("export generation %v of job %s: %w", f.Generation, f.Job, err)
	}
	if err := cat.Log(ctx, f.Job, format.Log{Verb: "export", Run: f.Run.Run, Generations: []replica.Generation{f.Generation}, Why: why}); err != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("the export is whole, and `ckpt log` will not show it: %v", err))
	}
	return d, nil
}

// shortened are names that were too long for a region: a digest, and their end. What wrote them did not say the whole.
var shortened = regexp.MustCompile(`^[0-9a-f]{16}~`)

// export chooses tensors and gives them their names; aliases are further ones.
func (g *generation) export(w Want) (tensors []formats.Tensor, aliases map[string]string, notes []string, err error) {
	only := slices.Clone(w.Only)
	if w.Format == HF {
		only = append(only, onlyModel)
	}
	list, laid, err := g.chosenTensors(only)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(list) == 0 {
		return nil, nil, nil, errors.New("no tensor is left to export: see `replicad ckpt show --tensors`")
	}
	names := w.Map
	if names == nil && slices.Contains(only, onlyModel) {
		names = []Rename{{model, ""}}
	}
	orders, err := g.orders(laid)
	if err != nil {
		return nil, nil, nil, err
	}
	private, short := "", 0
	have := make(map[string]bool, len(list))
	for _, t := range list {
		out, err := g.tensor(t, laid, orders)
		if err != nil {
			return nil, nil, nil, err
		}
		if t.Class == "private" && len(t.Pieces) > 1 {
			private = t.Name
		}
		lost := shortened.MatchString(t.Called())
		if out.Name = renamed(t.Called(), names); out.Name == "" || w.Format == HF && lost && out.Name == t.Name {
			return nil, nil, nil, fmt.Errorf("tensor %q would be called %q: give it its whole name with --map FROM=TO", t.Name, out.Name)
		}
		if lost {
			short++
		}
		have[out.Name] = true
		tensors = append(tensors, out)
	}
	if private != "" {
		notes = append(notes, fmt.Sprintf("tensors that each rank has for itself, as %s, are those of rank 0", private))
	}
	if short > 0 {
		notes = append(notes, fmt.Sprintf("%d names are a digest and an end: what wrote the generation did not say the whole", short))
	}
	if w.Format == HF && !slices.ContainsFunc(list, func(t format.Tensor) bool {
		return strings.HasPrefix(t.Name, model) || strings.HasPrefix(t.Whole, model)
	}) && w.Map == nil {
		notes = append(notes, fmt.Sprintf("no name begins with %q, so names are as they are registered, as %s: --map FROM=TO gives others", model, tensors[0].Name))
	}
	all, err := g.aliases(laid)
	if err != nil {
		return nil, nil, nil, err
	}
	aliases = make(map[string]string)
	for alias, of := range all {
		if alias, of = renamed(alias, names), renamed(of, names); have[of] && !have[alias] {
			aliases[alias] = of
		}
	}
	return tensors, aliases, notes, formats.Unique(tensors)
}

// atOnce makes a folder that is there with all that write puts into it, or not at all.
func atOnce(dir string, write func(dir string) error) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there and not empty, or is no folder: name one that is not there", dir)
	}
	temp := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".unfinished-"+strings.ToLower(rand.Text()[:8]))
	if err := os.Mkdir(temp, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temp))
		}
	}()
	if err := write(temp); err != nil {
		return err
	}
	if err := syncDir(temp); err != nil {
		return err
	}
	if err := syscall.Rename(temp, dir); err != nil { // which replaces an empty folder, unlike os.Rename
		return fmt.Errorf("rename %s to %s: %w", temp, dir, err)
	}
	return syncDir(filepath.Dir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
