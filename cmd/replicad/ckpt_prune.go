package main

import (
	"errors"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/spf13/cobra"
)

func (c ckptVerbs) prune() *cobra.Command {
	var f common
	p := ckpt.Policy{Grace: 24 * time.Hour, Idle: 24 * time.Hour}
	dry := false
	cmd := f.add(&cobra.Command{
		Use:   "prune WHERE",
		Short: "Delete generations that no rule keeps, and what nobody needs",
		Long: ckptLong + `

Keeps what any rule keeps, and never deletes the last good generation. Each deletion leaves a line in
` + "`ckpt log`" + `. What broken-off writes left goes when it is older than the grace.

--strip-optimizer is for runs that have ended: what stays keeps parameters and buffers, and loses the state of optimizers (tensors
whose names begin with optim.). Nothing can resume from such a generation. Pinned ones stay as they are. A run that may be live
is refused: its newest commit or claim is younger than --idle.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := c.Find(cmd.Context(), args[0], f.name())
			if err != nil {
				return err
			}
			defer w.Close()
			if err := p.Complete(); err != nil {
				return err
			}
			rows, err := ckpt.Prune(cmd.Context(), w, p, dry)
			if rows == nil {
				return err
			}
			return errors.Join(c.printPruned(rows, dry, f.json), err)
		},
	}, true)
	fl := cmd.Flags()
	fl.IntVar(&p.Last, "keep", 3, "so many of the newest good ones of each run")
	fl.IntVar(&p.Every, "every", 0, "and those of each multiple of so many steps")
	fl.BoolVar(&p.Epochs, "each-epoch", false, "and the newest of each epoch of the loader")
	fl.IntVar(&p.Best.N, "best", 0, "and so many by --metric")
	fl.StringVar(&p.Best.Metric, "metric", "loss", "which metric --best goes by")
	fl.BoolVar(&p.Largest, "largest", false, "the largest metric is the best, not the smallest")
	fl.Var(&p.Younger, "younger", "and those that are younger, as 7d or 36h")
	fl.IntVar(&p.Runs, "keep-runs", 3, "former runs that go by these rules; of older ones nothing stays")
	fl.DurationVar(&p.Grace, "grace", p.Grace, "how old what no commit names must be; 1h or more")
	fl.BoolVar(&p.Alone, "nobody-writes", false, "--grace may be shorter than 1h")
	_ = fl.MarkHidden("nobody-writes") // it is there; for tests
	fl.BoolVar(&p.Strip, "strip-optimizer", false, "and strip what stays of its optimizers' state; nothing resumes from it then")
	fl.DurationVar(&p.Idle, "idle", p.Idle, "with --strip-optimizer: a run has ended that wrote nothing for so long")
	fl.BoolVar(&dry, "dry-run", false, "say what and why, delete nothing")
	return cmd
}

func (c ckptVerbs) printPruned(rows []ckpt.PruneRow, dry, asJSON bool) error {
	if asJSON {
		return console.JSON(c.std.out, rows)
	}
	for _, r := range rows {
		what := "kept"
		switch {
		case !r.Kept && dry:
			what = "would delete"
		case !r.Kept && r.Error != "":
			what = "NOT deleted"
		case !r.Kept:
			what = "deleted"
		}
		console.Printf(c.std.out, "%s: %s step %d of %s, %s: %s\n", what, r.Job, r.Step, r.Run, console.Size(r.Bytes),
			console.Line(r.Reason))
		if r.Strip != nil {
			console.Printf(c.std.out, "  %v\n", r.Strip)
		}
		if r.Error != "" {
			console.Printf(c.std.out, "  %s\n", console.Line(r.Error))
		}
	}
	return nil
}
