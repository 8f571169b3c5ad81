package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func (c ckptVerbs) show() *cobra.Command {
	var f common
	tensors := false
	cmd := f.add(&cobra.Command{
		Use:   "show WHERE[@STEP]",
		Short: "Show a generation: sizes, tensors, provenance, metrics, notes, kept files, generators, the loader's place",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := c.Find(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			defer w.Close()
			s, err := ckpt.Look(cmd.Context(), w)
			if err != nil {
				return err
			}
			if s.Locked != nil {
				console.Printf(c.std.err, "tensors, generators and loaders are not shown: %v\n", s.Locked)
			}
			if f.json {
				return console.JSON(c.std.out, s)
			}
			return c.printShown(s, tensors)
		},
	}, false)
	cmd.Flags().BoolVar(&tensors, "tensors", false, "name every tensor; otherwise their number and size")
	return cmd
}

// maxEpochs bounds the epochs that are printed: the newest.
const maxEpochs = 5

func (c ckptVerbs) printShown(s ckpt.Shown, tensors bool) error {
	com := s.Commit
	t := tabwriter.NewWriter(c.std.out, 0, 0, 2, ' ', 0)
	console.Printf(t, "job\t%s, run %v\n", com.Job, com.Run)
	console.Printf(t, "generation\tstep %d of epoch %d, at position %v\n", com.Generation.Step, com.Generation.Epoch, com.Position)
	console.Printf(t, "written\t%s (%s ago), write %d of cluster %v\n", time.UnixMilli(com.At).UTC().Format(time.RFC3339),
		console.Age(time.UnixMilli(com.At)), com.Write, com.Cluster)
	console.Printf(t, "size\t%s in %d files\n", console.Size(com.Bytes), com.Files)
	if com.Stripped {
		console.Printf(t, "stripped\tof its optimizer state (ckpt prune --strip-optimizer): nothing resumes from it\n")
	}
	if com.Sealed != nil {
		console.Printf(t, "encrypted\tto %s\n", strings.Join(com.Sealed.Recipients, ", "))
	}
	console.Printf(t, "ranks\t%d in %d groups\n", com.Layout.World, com.Layout.NumGroups())
	for _, o := range com.Lineage[max(0, len(com.Lineage)-maxEpochs):] {
		console.Printf(t, "epoch %d\tfrom step %d\n", o.Epoch, o.Start)
	}
	if com.From != nil {
		console.Printf(t, "from\t%s (world %d)\n", console.Line(com.From.String()), com.From.World)
	}
	if len(com.Metrics) > 0 {
		console.Printf(t, "metrics\t%s\n", metrics(com.Metrics))
	}
	for _, m := range []struct {
		what string
		of   map[string]string
	}{{"note", com.Notes}, {"from", com.Provenance}} {
		for _, k := range sortedKeys(m.of) {
			console.Printf(t, "%s\t%s = %s\n", m.what, replica.Line(k, 127), replica.Line(m.of[k], 300))
		}
	}
	for _, l := range com.Lacks {
		console.Printf(t, "lacks\t%s: %s: a restart is not the same run\n", l.Who(), replica.Line(l.Text, 300))
	}
	if com.Loader != nil {
		console.Printf(t, "loader\tepoch %d\n", *com.Loader)
	}
	if com.Keep != "" {
		console.Printf(t, "kept\t%s\n", replica.Line(com.Keep, 300))
	}
	printBeside(t, s)
	if s.Locked == nil {
		console.Printf(t, "tensors\t%s\n", tensorTotals(s.Tensors))
	}
	if err := t.Flush(); err != nil || !tensors {
		return err
	}
	console.Printf(t, "\nTENSOR\tTYPE\tSHAPE\tCLASS\tPLACEMENTS\tPIECES\n")
	for _, x := range s.Tensors {
		shape := "?"
		if x.Shape != nil || len(x.Pieces) > 0 && len(x.Pieces[0].Shape) == 0 { // what has no dimensions has none as a whole either
			shape = fmt.Sprint(x.Shape)
		}
		place := "-"
		if len(x.Placements) > 0 {
			place = fmt.Sprintf("%v over %v", x.Placements, x.Mesh)
		}
		console.Printf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", replica.Line(x.Name, 127), console.Line(x.DType), shape, console.Line(x.Class),
			replica.Line(place, 120), len(x.Pieces))
	}
	return t.Flush()
}

// printBeside shows what keeps a generation, which files its run carries, and what its first ranks have for themselves.
func printBeside(t io.Writer, s ckpt.Shown) {
	for _, p := range s.Pins {
		until := ""
		if p.Until > 0 {
			until = ", until " + time.Unix(p.Until, 0).UTC().Format(time.RFC3339)
		}
		console.Printf(t, "pinned\tby %s: %s%s\n", console.Line(p.Who), replica.Line(p.Why, 300), until)
	}
	for _, k := range s.Kept {
		console.Printf(t, "kept file\t%s, %s\n", replica.Line(k.Name, 255), console.Size(uint64(k.Bytes)))
	}
	if s.KeptError != "" {
		console.Printf(t, "kept files\t%s\n", replica.Line(s.KeptError, 300))
	}
	for _, rank := range sortedKeys(s.Generators) {
		console.Printf(t, "generators\trank %s: %s\n", rank, replica.Line(fmt.Sprint(s.Generators[rank]), 300))
	}
	for _, rank := range sortedKeys(s.Loaders) {
		console.Printf(t, "loaders\trank %s: %s\n", rank, replica.Line(string(s.Loaders[rank]), 300))
	}
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
		text += fmt.Sprintf("%d %s (%s)", count[k], console.Line(k), console.Size(bytes[k]))
	}
	return console.Dash(text)
}
