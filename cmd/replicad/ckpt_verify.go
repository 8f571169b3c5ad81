package main

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func (c ckptVerbs) verify() *cobra.Command {
	var f common
	var all, repair, quiet, unmarked bool
	cmd := f.add(&cobra.Command{
		Use:   "verify WHERE[@STEP]",
		Short: "Read a generation whole, every byte against its digests",
		Long: ckptLong + `

Reads every file against its SHA-256 and every chunk against its digest, several at once, and records what
came of it beside the generation: ls, prune and daemons believe that. A file is named with the chunk that
differs. The files that the run carries (run --keep-file) are read too. Without a step it is the newest that no record calls damaged; what is newer is read before it, since
it may have been mended. Ends with 1 where a generation is damaged, or such files are. One that somebody deletes meanwhile is named,
and --all goes on.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := c.Find(cmd.Context(), args[0], f.name())
			if err != nil {
				return err
			}
			defer w.Close()
			out, err := ckpt.Verify(cmd.Context(), w, ckpt.Reading{All: all, Repair: repair, Record: !unmarked, Note: !quiet && !f.json})
			if err != nil {
				return err
			}
			return c.printVerdicts(out, f.json)
		},
	}, true)
	cmd.Flags().BoolVar(&all, "all", false, "every generation of the job")
	cmd.Flags().BoolVar(&repair, "repair", false, "write a frozen part that rotted anew from its twin")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress")
	cmd.Flags().BoolVar(&unmarked, "no-record", false, "do not record what came of it")
	return cmd
}

func (c ckptVerbs) printVerdicts(list []ckpt.Verdict, asJSON bool) error {
	if asJSON {
		if err := console.JSON(c.std.out, list); err != nil {
			return err
		}
	} else {
		for _, v := range list {
			state := "good"
			switch {
			case v.Deleted:
				state = "was deleted meanwhile"
			case !v.Good:
				state = "DAMAGED"
			}
			console.Printf(c.std.out, "%s step %d of %s: %s, %s\n", v.Job, v.Step, v.Run, state, console.Size(v.Bytes))
			for _, f := range v.Faults {
				remedy := ""
				switch {
				case f.Twin:
					remedy = " (its twin is whole: `ckpt verify --repair` writes it anew)"
				case f.Beside:
					remedy = " (the state does not need it. Remove it if it is there, and start the run with --resume and the same --keep-file, or copy it from another root)"
				}
				console.Printf(c.std.out, "  %s%s\n", console.Line(f.What), remedy)
			}
			if len(v.Faults) == 0 && v.Error != "" {
				console.Printf(c.std.out, "  %s\n", console.Line(v.Error))
			}
		}
	}
	return ckpt.Damaged(list)
}

func (c ckptVerbs) diff() *cobra.Command {
	var f common
	cmd := f.add(&cobra.Command{
		Use:   "diff WHERE[@STEP] WHERE[@STEP]",
		Short: "Compare two generations, tensor by tensor",
		Long: "Names tensors that are missing in the second, extra in it, or of another shape or type, and says of the\n" +
			"others how many elements differ and by how much at most. Ends with 1 where anything differs.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var ws [2]*place.Place
			for i, arg := range args {
				w, err := c.Find(cmd.Context(), arg, "")
				if err != nil {
					return err
				}
				defer w.Close()
				ws[i] = w
			}
			fs, list, err := ckpt.Diff(cmd.Context(), ws)
			if err != nil {
				return err
			}
			if f.json {
				if err := console.JSON(c.std.out, append([]catalog.Difference{}, list...)); err != nil {
					return err
				}
			} else {
				for _, d := range list {
					console.Printf(c.std.out, "%s (%d)\n", replica.Line(d.String(), 400), d.Index)
				}
			}
			if len(list) > 0 {
				return fmt.Errorf("%d differences between step %d and step %d", len(list), fs[0].Generation.Step, fs[1].Generation.Step)
			}
			if !f.json {
				console.Printf(c.std.out, "equal: %d tensors, %s\n", len(fs[0].Index.Tensors), console.Size(fs[0].Bytes))
			}
			return nil
		},
	}, false)
	return cmd
}

func (c ckptVerbs) pin() *cobra.Command {
	var f common
	var why string
	var long time.Duration
	cmd := f.add(&cobra.Command{
		Use:   "pin WHERE@STEP",
		Short: "Keep a generation, for good or for some time",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if long < 0 || long == 0 && cmd.Flags().Changed("for") {
				return usage.Wrong(fmt.Errorf("--for %v: want some time, as 36h; left out, the pin is for good", long))
			}
			return c.changePin(cmd.Context(), args[0], &f, "pin", func(w *place.Place) (catalog.Listed, error) {
				var until time.Time
				if long > 0 {
					until = time.Now().Add(long)
				}
				return ckpt.Pin(cmd.Context(), w, f.name(), why, until)
			})
		},
	}, true)
	cmd.Flags().StringVar(&why, "why", "", "what it is kept for")
	cmd.Flags().DurationVar(&long, "for", 0, "how long (0: until it is unpinned)")
	return cmd
}

func (c ckptVerbs) unpin() *cobra.Command {
	var f common
	return f.add(&cobra.Command{
		Use:   "unpin WHERE@STEP",
		Short: "Let a pinned generation go by the rules of retention",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changePin(cmd.Context(), args[0], &f, "unpin", func(w *place.Place) (catalog.Listed, error) {
				return ckpt.Unpin(cmd.Context(), w, f.name())
			})
		},
	}, true)
}

// changePin carries out a change of a pin, and prints what it changed.
func (c ckptVerbs) changePin(ctx context.Context, arg string, f *common, verb string,
	change func(w *place.Place) (catalog.Listed, error)) error {
	w, err := c.Find(ctx, arg, f.name())
	if err != nil {
		return err
	}
	defer w.Close()
	l, err := change(w)
	if err != nil {
		return err
	}
	if f.json {
		return console.JSON(c.std.out, ckpt.RowOf(l))
	}
	return console.Write(c.std.out, "%sned step %d of %s, run %s, as %s\n", verb, l.Generation.Step, l.Run.Job, l.Run.Run,
		format.Who(f.name()))
}
