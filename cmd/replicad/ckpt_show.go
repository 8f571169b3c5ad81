package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// shown is what `ckpt show --json` prints.
type shown struct {
	URL        string                     `json:"url"`
	Commit     format.Commit              `json:"commit"`
	Files      []format.File              `json:"files"`
	Tensors    []format.Tensor            `json:"tensors"`
	Beyond     []format.Beyond            `json:"beyond,omitempty"`
	Pins       []format.Pin               `json:"pins,omitempty"`
	Generators map[string][]string        `json:"generators,omitempty"` // by rank
	Loaders    map[string]json.RawMessage `json:"loaders,omitempty"`    // by rank
	Kept       []kept.File                `json:"kept_files,omitempty"`
	KeptError  string                     `json:"kept_files_error,omitempty"` // why they cannot be read
	Locked     error                      `json:"-"`                          // why what lies in it can't be read
}

func (c ckpt) show() *cobra.Command {
	var f common
	tensors := false
	cmd := f.add(&cobra.Command{
		Use:   "show WHERE[@STEP]",
		Short: "Show a generation: sizes, tensors, provenance, metrics, notes, kept files, generators, the loader's place",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := c.find(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			defer w.close()
			s, err := c.look(cmd.Context(), w)
			if err != nil {
				return err
			}
			if s.Locked != nil {
				printf(c.std.err, "tensors, generators and loaders are not shown: %v\n", s.Locked)
			}
			if f.json {
				return writeJSON(c.std.out, s)
			}
			return c.printShown(s, tensors)
		},
	}, false)
	cmd.Flags().BoolVar(&tensors, "tensors", false, "name every tensor; otherwise their number and size")
	return cmd
}

// look reads what is shown of the generation that is meant. It takes a moment, and a lease would be a pin among those that are shown.
func (c ckpt) look(ctx context.Context, w *where) (s shown, err error) {
	err = c.read(ctx, w, func(f catalog.Found) error {
		s = shown{URL: w.cat.URL(), Commit: f.Commit, Files: f.Index.Files, Tensors: f.Index.Tensors, Beyond: f.Index.Beyond, Locked: f.Readable()}
		return w.cat.Unleased(ctx, f, func() (err error) {
			if s.Locked == nil {
				err = s.own(ctx, w.cat.Reader, f)
			}
			if err != nil {
				return err
			}
			if s.Pins, err = w.cat.Pinned(ctx, f.Run, f.Generation); err != nil {
				return err
			}
			return s.carried(ctx, w.cat.Reader, f)
		})
	})
	return s, err
}

// maxOwn bounds the ranks whose own state is read: they say much the same.
const maxOwn = 8

// maxEpochs bounds the epochs that are printed: the newest.
const maxEpochs = 5

// own reads what the first ranks keep of their generators and loaders.
func (s *shown) own(ctx context.Context, cat *read.Reader, f catalog.Found) error {
	s.Generators, s.Loaders = make(map[string][]string), make(map[string]json.RawMessage)
	for rank := range min(f.Layout.World, maxOwn) {
		sh, err := cat.OpenShard(ctx, f, replica.OfRank(replica.Rank(rank)))
		if err != nil {
			return err
		}
		regions, err := catalog.Regions(sh, func(r replica.Region) bool { return r.Kind == replica.Private && r.DType == replica.U8 })
		sh.Close()
		if err != nil {
			return err
		}
		for _, b := range regions {
			if states, ok := format.Generators(b); ok {
				for _, g := range states {
					s.Generators[fmt.Sprint(rank)] = append(s.Generators[fmt.Sprint(rank)], g.String())
				}
			}
			if l, ok := format.Loaders(b); ok {
				s.Loaders[fmt.Sprint(rank)] = l
			}
		}
	}
	return nil
}

// carried lists the files that the run carries.
func (s *shown) carried(ctx context.Context, cat *read.Reader, f catalog.Found) error {
	err := cat.ReadKept(ctx, f, func(file kept.File, _ io.Reader) error {
		s.Kept = append(s.Kept, file)
		return nil
	})
	switch {
	case errors.Is(err, catalog.ErrLocked): // Locked says so of the whole
		s.KeptError, err = "encrypted: no key that was given opens them", nil
	case catalog.IsDamage(err):
		s.KeptError, err = "DAMAGED: "+err.Error(), nil
	}
	return err
}

func (c ckpt) printShown(s shown, tensors bool) error {
	com := s.Commit
	t := tabwriter.NewWriter(c.std.out, 0, 0, 2, ' ', 0)
	printf(t, "job\t%s, run %v\n", com.Job, com.Run)
	printf(t, "generation\tstep %d of epoch %d, at position %v\n", com.Generation.Step, com.Generation.Epoch, com.Position)
	printf(t, "written\t%s (%s ago), write %d of cluster %v\n", time.UnixMilli(com.At).UTC().Format(time.RFC3339), age(time.UnixMilli(com.At)), com.Write, com.Cluster)
	printf(t, "size\t%s in %d files\n", size(com.Bytes), com.Files)
	if com.Stripped {
		printf(t, "stripped\tof its optimizer state (ckpt prune --strip-optimizer): nothing resumes from it\n")
	}
	if com.Sealed != nil {
		printf(t, "encrypted\tto %s\n", strings.Join(com.Sealed.Recipients, ", "))
	}
	printf(t, "ranks\t%d in %d groups\n", com.Layout.World, com.Layout.NumGroups())
	for _, o := range com.Lineage[max(0, len(com.Lineage)-maxEpochs):] {
		printf(t, "epoch %d\tfrom step %d\n", o.Epoch, o.Start)
	}
	if com.From != nil {
		printf(t, "from\t%s (world %d)\n", line(com.From.String()), com.From.World)
	}
	if len(com.Metrics) > 0 {
		printf(t, "metrics\t%s\n", metrics(com.Metrics))
	}
	for _, m := range []struct {
		what string
		of   map[string]string
	}{{"note", com.Notes}, {"from", com.Provenance}} {
		for _, k := range sortedKeys(m.of) {
			printf(t, "%s\t%s = %s\n", m.what, replica.Line(k, 127), replica.Line(m.of[k], 300))
		}
	}
	for _, l := range com.Lacks {
		printf(t, "lacks\t%s: %s: a restart is not the same run\n", l.Who(), replica.Line(l.Text, 300))
	}
	if com.Loader != nil {
		printf(t, "loader\tepoch %d\n", *com.Loader)
	}
	if com.Keep != "" {
		printf(t, "kept\t%s\n", replica.Line(com.Keep, 300))
	}
	for _, p := range s.Pins {
		until := ""
		if p.Until > 0 {
			until = ", until " + time.Unix(p.Until, 0).UTC().Format(time.RFC3339)
		}
		printf(t, "pinned\tby %s: %s%s\n", line(p.Who), replica.Line(p.Why, 300), until)
	}
	for _, k := range s.Kept {
		printf(t, "kept file\t%s, %s\n", replica.Line(k.Name, 255), size(uint64(k.Bytes)))
	}
	if s.KeptError != "" {
		printf(t, "kept files\t%s\n", replica.Line(s.KeptError, 300))
	}
	for _, rank := range sortedKeys(s.Generators) {
		printf(t, "generators\trank %s: %s\n", rank, replica.Line(fmt.Sprint(s.Generators[rank]), 300))
	}
	for _, rank := range sortedKeys(s.Loaders) {
		printf(t, "loaders\trank %s: %s\n", rank, replica.Line(string(s.Loaders[rank]), 300))
	}
	if s.Locked == nil {
		printf(t, "tensors\t%s\n", tensorTotals(s.Tensors))
	}
	if err := t.Flush(); err != nil || !tensors {
		return err
	}
	printf(t, "\nTENSOR\tTYPE\tSHAPE\tCLASS\tPLACEMENTS\tPIECES\n")
	for _, x := range s.Tensors {
		shape := "?"
		if x.Shape != nil || len(x.Pieces) > 0 && len(x.Pieces[0].Shape) == 0 { // what has no dimensions has none as a whole either
			shape = fmt.Sprint(x.Shape)
		}
		place := "-"
		if len(x.Placements) > 0 {
			place = fmt.Sprintf("%v over %v", x.Placements, x.Mesh)
		}
		printf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", replica.Line(x.Name, 127), line(x.DType), shape, line(x.Class), replica.Line(place, 120), len(x.Pieces))
	}
	return t.Flush()
}

// tensorTotals says how many there are, and how large, by class.
func tensorTotals(list []format.Tensor) string {
	count, bytes := make(map[string]int), make(map[string]uint64)
	for _, x := range list {
		count[x.Class]++
		for _, p := range x.Pieces {
			bytes[x.Class] += p.Bytes
		}
	}
	text := ""
	for _, k := range sortedKeys(count) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d %s (%s)", count[k], line(k), size(bytes[k]))
	}
	return dash(text)
}
