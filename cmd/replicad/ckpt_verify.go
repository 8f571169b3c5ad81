package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// verdict is a line of `ckpt verify --json`.
type verdict struct {
	Job     string          `json:"job"`
	Run     string          `json:"run"`
	Step    replica.Step    `json:"step"`
	Epoch   replica.Epoch   `json:"epoch"`
	Good    bool            `json:"good"`
	Deleted bool            `json:"deleted,omitempty"` // meanwhile: nothing is known of it, and nothing is wrong
	Bytes   uint64          `json:"bytes"`
	Faults  []catalog.Fault `json:"faults,omitempty"`
	Error   string          `json:"error,omitempty"`
}

func (c ckpt) verify() *cobra.Command {
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
			h := how{all: all, repair: repair, record: !unmarked, tell: !quiet && !f.json}
			var out []verdict
			err = w.Again(func() error {
				out, err = c.verified(cmd.Context(), w, h)
				return err
			})
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

// how are the flags of verify.
type how struct{ all, repair, record, tell bool }

// verified reads what is meant, and says what came of each.
func (c ckpt) verified(ctx context.Context, w *place.Place, h how) (out []verdict, err error) {
	var todo []catalog.Found
	out = []verdict{}
	take := func(skipped []catalog.Skipped) {
		for _, s := range skipped {
			if s.Whole != nil {
				todo = append(todo, *s.Whole) // it may have been mended since
			} else if s.State == catalog.Damaged {
				out = append(out, verdict{Job: s.Run.Job, Run: s.Run.Run, Step: s.Generation.Step, Epoch: s.Generation.Epoch, Error: s.Reason})
				c.markSeen(ctx, w, s.Run, s.Generation, h.record)
			}
		}
	}
	switch {
	case h.all:
		found, skipped, err := w.Every(ctx)
		if err != nil {
			return nil, err
		}
		todo = found
		take(skipped)
	case w.At != nil:
		found, err := w.Named(ctx)
		if l, lerr := w.Listed(ctx); lerr == nil && catalog.IsDamage(err) {
			c.markSeen(ctx, w, l.Run, l.Generation, h.record)
		}
		if err != nil {
			return nil, err
		}
		todo = append(todo, found)
	default:
		found, passed, err := w.Newest(ctx)
		if take(passed); err == nil {
			todo = append(todo, found)
		} else if len(todo) == 0 {
			return nil, err
		}
	}
	for _, f := range todo {
		v, err := c.verify1(ctx, w, f, h)
		if v.Deleted = h.all && errors.Is(err, catalog.ErrNone); err != nil && !v.Deleted {
			return nil, err
		}
		if out = append(out, v); v.Good && !h.all {
			break
		}
	}
	return out, nil
}

// markSeen records damage that was seen without a read.
func (c ckpt) markSeen(ctx context.Context, w *place.Place, r catalog.Run, g replica.Generation, record bool) {
	if !record {
		return
	}
	if err := w.Cat.MarkSeen(ctx, r, g); err != nil {
		console.Printf(c.std.err, "not recorded: %v\n", err)
	}
}

// verify1 reads one generation, and records what came of it where the store takes that.
func (c ckpt) verify1(ctx context.Context, w *place.Place, found catalog.Found, h how) (v verdict, err error) {
	v = verdict{Job: found.Job, Run: found.Run.Run, Step: found.Generation.Step, Epoch: found.Generation.Epoch, Bytes: found.Bytes}
	var progress func(read, of uint64)
	if h.tell {
		progress = c.progress(fmt.Sprintf("step %d", v.Step))
	}
	read := func() error {
		v, err = c.reads(ctx, w, found, v, progress, h)
		return err
	}
	if !h.record {
		return v, read()
	}
	err = w.Cat.Leased(ctx, found, "ckpt verify", func(err error) {
		if errors.Is(err, store.ErrRefused) {
			h.record = false // read alone is allowed here
			console.Printf(c.std.err, "not recorded: %v\n", err)
		}
	}, read)
	return v, err
}

func (c ckpt) reads(ctx context.Context, w *place.Place, found catalog.Found, v verdict, progress func(read, of uint64), h how) (verdict,
	error) {
	faults, bad := w.Cat.Verify(ctx, found, progress)
	if ctx.Err() != nil {
		return v, context.Cause(ctx)
	}
	v.Faults, v.Good = faults, bad == nil
	if bad != nil {
		if len(faults) == 0 {
			return v, bad // the store did not answer: nothing is known of the generation
		}
		v.Error = bad.Error()
	}
	if h.repair && len(faults) > 0 {
		if err := w.Cat.Repair(ctx, found, faults); err != nil {
			return v, err
		}
	}
	if h.record {
		return v, w.Cat.MarkRead(ctx, found, bad)
	}
	return v, nil
}

// progress tells how far a read is, each tenth of it.
func (c ckpt) progress(what string) func(read, of uint64) {
	var mu sync.Mutex
	told, began := uint64(0), time.Now()
	return func(read, of uint64) {
		mu.Lock()
		defer mu.Unlock()
		if tenth := read * 10 / max(of, 1); tenth > told {
			told = tenth
			console.Printf(c.std.err, "%s: %d %% of %s, %s/s\n", what, 10*tenth, console.Size(of),
				console.Size(uint64(float64(read)/max(time.Since(began).Seconds(), 0.001))))
		}
	}
}

func (c ckpt) printVerdicts(list []verdict, asJSON bool) error {
	bad, beside := 0, 0
	for _, v := range list {
		if !v.Good && !v.Deleted {
			bad++
		}
		if slices.ContainsFunc(v.Faults, func(f catalog.Fault) bool { return f.Beside }) {
			beside++
		}
	}
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
	if bad > 0 {
		return fmt.Errorf("%d of %d generations are damaged", bad, len(list))
	}
	if beside > 0 {
		return fmt.Errorf("of %d of %d generations the state is whole, and the files that their run carries are damaged", beside, len(list))
	}
	return nil
}

func (c ckpt) diff() *cobra.Command {
	var f common
	cmd := f.add(&cobra.Command{
		Use:   "diff WHERE[@STEP] WHERE[@STEP]",
		Short: "Compare two generations, tensor by tensor",
		Long: "Names tensors that are missing in the second, extra in it, or of another shape or type, and says of the\n" +
			"others how many elements differ and by how much at most. Ends with 1 where anything differs.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var fs [2]catalog.Found
			var list []catalog.Difference
			var ws [2]*place.Place
			for i, arg := range args {
				w, err := c.Find(cmd.Context(), arg, "")
				if err != nil {
					return err
				}
				defer w.Close()
				ws[i] = w
			}
			err := ws[0].Leased(cmd.Context(), "ckpt diff", nil, func(f0 catalog.Found) error {
				return ws[1].Leased(cmd.Context(), "ckpt diff", nil, func(f1 catalog.Found) (err error) {
					fs = [2]catalog.Found{f0, f1}
					list, err = catalog.Diff(cmd.Context(), ws[0].Cat, f0, ws[1].Cat, f1)
					return err
				})
			})
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

func (c ckpt) pin() *cobra.Command {
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
			return c.changePin(cmd.Context(), args[0], &f, "pin", why, func(w *place.Place, l catalog.Listed) error {
				var until time.Time
				if long > 0 {
					until = time.Now().Add(long)
				}
				return w.Cat.Pin(cmd.Context(), l.Run, l.Generation, f.name(), why, until)
			})
		},
	}, true)
	cmd.Flags().StringVar(&why, "why", "", "what it is kept for")
	cmd.Flags().DurationVar(&long, "for", 0, "how long (0: until it is unpinned)")
	return cmd
}

func (c ckpt) unpin() *cobra.Command {
	var f common
	return f.add(&cobra.Command{
		Use:   "unpin WHERE@STEP",
		Short: "Let a pinned generation go by the rules of retention",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.changePin(cmd.Context(), args[0], &f, "unpin", "", func(w *place.Place, l catalog.Listed) error {
				return w.Cat.Unpin(cmd.Context(), l.Run, l.Generation, f.name())
			})
		},
	}, true)
}

// name is under which somebody pins.
func (f *common) name() string {
	if f.who != "" {
		return f.who
	}
	return place.DefaultWho()
}

// changePin carries out a change of a pin, and leaves a line in the log.
func (c ckpt) changePin(ctx context.Context, arg string, f *common, verb, why string,
	change func(w *place.Place, l catalog.Listed) error) error {
	w, err := c.Find(ctx, arg, f.name())
	if err != nil {
		return err
	}
	defer w.Close()
	l, err := w.Listed(ctx)
	if err != nil {
		return err
	}
	if err := change(w, l); err != nil {
		return err
	}
	if err := w.Cat.Log(ctx, l.Run.Job,
		format.Log{Verb: verb, Run: l.Run.Run, Generations: []replica.Generation{l.Generation}, Why: why}); err != nil {
		return err
	}
	if f.json {
		return console.JSON(c.std.out, rowOf(l))
	}
	err = console.Write(c.std.out, "%sned step %d of %s, run %s, as %s\n", verb, l.Generation.Step, l.Run.Job, l.Run.Run,
		format.Who(f.name()))
	return err
}
