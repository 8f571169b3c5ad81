package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// policy are the flags of prune.
type policy struct {
	replica.Keep
	largest bool // of Best
	runs    int
	grace   time.Duration
	alone   bool // of grace: nobody writes, so that it may be shorter
	strip   bool
	idle    time.Duration // of strip: how long ago a run was written last
}

func (c ckpt) prune() *cobra.Command {
	var f common
	p := policy{grace: 24 * time.Hour, idle: 24 * time.Hour}
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
			if err := p.complete(); err != nil {
				return err
			}
			return c.pruned(cmd.Context(), w, p, dry, f.json)
		},
	}, true)
	fl := cmd.Flags()
	fl.IntVar(&p.Last, "keep", 3, "so many of the newest good ones of each run")
	fl.IntVar(&p.Every, "every", 0, "and those of each multiple of so many steps")
	fl.BoolVar(&p.Epochs, "each-epoch", false, "and the newest of each epoch of the loader")
	fl.IntVar(&p.Best.N, "best", 0, "and so many by --metric")
	fl.StringVar(&p.Best.Metric, "metric", "loss", "which metric --best goes by")
	fl.BoolVar(&p.largest, "largest", false, "the largest metric is the best, not the smallest")
	fl.Var(&p.Younger, "younger", "and those that are younger, as 7d or 36h")
	fl.IntVar(&p.runs, "keep-runs", 3, "former runs that go by these rules; of older ones nothing stays")
	fl.DurationVar(&p.grace, "grace", p.grace, "how old what no commit names must be; 1h or more")
	fl.BoolVar(&p.alone, "nobody-writes", false, "--grace may be shorter than 1h")
	_ = fl.MarkHidden("nobody-writes") // it is there; for tests
	fl.BoolVar(&p.strip, "strip-optimizer", false, "and strip what stays of its optimizers' state; nothing resumes from it then")
	fl.DurationVar(&p.idle, "idle", p.idle, "with --strip-optimizer: a run has ended that wrote nothing for so long")
	fl.BoolVar(&dry, "dry-run", false, "say what and why, delete nothing")
	return cmd
}

// complete checks the rules.
func (p *policy) complete() error {
	if p.Best.N == 0 {
		p.Best = replica.Best{}
	} else if p.largest {
		p.Best.Order = replica.BestMax
	}
	for _, f := range p.Faults() {
		flag := map[string]string{"": "keep", "last": "keep", "best.n": "best", "best.metric": "metric"}[f.Field]
		return usage.Wrong(fmt.Errorf("--%s %s: want %s", cmp.Or(flag, f.Field), f.Value, f.Want))
	}
	if p.grace < 0 || p.grace < catalog.LeastGrace && !p.alone {
		return usage.Wrong(fmt.Errorf("--grace %v: want %v or more: what is younger may belong to a write that is under way, and "+
			"deleting it would break that", p.grace, catalog.LeastGrace))
	}
	if p.idle < 0 {
		return usage.Wrong(fmt.Errorf("--idle %v: want 0s or more", p.idle))
	}
	if p.runs < 0 {
		return usage.Wrong(fmt.Errorf("--keep-runs %d: want 0 or more", p.runs))
	}
	return nil
}

// pruneRow is a line of `ckpt prune --json`.
type pruneRow struct {
	lsRow
	Kept   bool      `json:"kept"`
	Reason string    `json:"reason"`
	Strip  *stripRow `json:"strip,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// goes deletes the generation of a line. One that somebody began to read, or has pinned, since it was judged stays, and nothing is wrong.
func (r *pruneRow) goes(ctx context.Context, cat *catalog.Catalog, l catalog.Listed) error {
	err := cat.Delete(ctx, l.Run, l.Generation, r.Reason)
	switch {
	case errors.Is(err, catalog.ErrPinned):
		r.Kept, r.Reason = true, "since it was looked at, "+console.Line(err.Error())
		return nil
	case err != nil:
		r.Error = err.Error()
	}
	return err
}

// measures refuses to keep generations by a metric that none of them has: a misspelt one would keep nothing.
func measures(list []catalog.Listed, job string, best replica.Best) error {
	all := map[string]bool{}
	for _, l := range list {
		for name := range l.Row.Metrics {
			all[name] = true
		}
	}
	if best.N == 0 || len(list) == 0 || all[best.Metric] {
		return nil
	}
	return usage.Wrong(fmt.Errorf("--best %d --metric %s: no generation of job %s has that metric: they have %s", best.N, best.Metric,
		job, cmp.Or(replica.Line(strings.Join(sortedKeys(all), ", "), console.MaxLine), "none")))
}

func (c ckpt) pruned(ctx context.Context, w *place.Place, p policy, dry, asJSON bool) error {
	jobs, err := w.Jobs(ctx)
	if err != nil {
		return err
	}
	if p.strip {
		if err := c.ended(ctx, w, jobs, p.idle); err != nil {
			return err
		}
	}
	rows := []pruneRow{}
	var failed error
	for _, job := range jobs {
		list, err := w.Cat.List(ctx, job)
		if err != nil {
			return err
		}
		gens, err := judged(ctx, w.Cat, list, p.Best.Metric)
		if err != nil {
			return err
		}
		if err := measures(list, job, p.Best); err != nil {
			return err
		}
		verdicts, err := retain.DecideSeen(gens, retain.For(p.Keep, p.runs), retain.Eyes{
			Look: func(i int) (retain.State, error) { return c.lookAt(ctx, w, &list[i], gens[i].State, dry) },
			Read: func(i int) (retain.State, error) { return c.readAt(ctx, w, &list[i], gens[i].State, dry) },
		})
		if err != nil {
			return err
		}
		for i, v := range verdicts {
			l := list[i]
			if w.Run != "" && l.Run.Run != w.Run || l.State == catalog.Unfinished || l.State == catalog.Deleting {
				continue // the sweep's
			}
			row := pruneRow{lsRow: rowOf(l), Kept: v.Keep, Reason: v.Why}
			if !v.Keep && !dry {
				failed = errors.Join(failed, row.goes(ctx, w.Cat, l))
			}
			if v.Keep && p.strip {
				s, err := c.stripped(ctx, w, l, gens[i], "ckpt prune --strip-optimizer", dry)
				if row.Strip = &s; err != nil {
					row.Error, failed = err.Error(), errors.Join(failed, err)
				}
			}
			rows = append(rows, row)
		}
		if !dry {
			if err := c.swept(ctx, w, job, p.grace); err != nil {
				return err
			}
		}
	}
	return errors.Join(c.printPruned(rows, dry, asJSON), failed)
}

// lookAt looks at a generation that stays, of which so much is known, and marks one that is damaged.
func (c ckpt) lookAt(ctx context.Context, w *place.Place, l *catalog.Listed, is retain.State, dry bool) (retain.State, error) {
	_, err := w.Cat.Get(ctx, l.Run, l.Generation)
	state, err := c.found(l, is, err)
	if state != retain.Damaged || dry || err != nil {
		return state, err
	}
	return state, w.Cat.MarkSeen(ctx, l.Run, l.Generation)
}

// readAt reads one whole that others are to go for, and records what that found. A dry run goes by what is known.
func (c ckpt) readAt(ctx context.Context, w *place.Place, l *catalog.Listed, is retain.State, dry bool) (retain.State, error) {
	if dry {
		console.Printf(c.std.err, "step %d of %s would be read whole first\n", l.Generation.Step, l.Run.Run)
		return is, nil
	}
	far := c.slow(fmt.Sprintf("step %d is read before others go for it", l.Generation.Step))
	return c.found(l, retain.Good, w.Cat.ReadBack(ctx, l.Run, l.Generation, catalog.How{}, far.at))
}

// found is the state of a generation that was looked at or read; good: where that found no fault.
func (c ckpt) found(l *catalog.Listed, good retain.State, err error) (retain.State, error) {
	switch {
	case err == nil:
		return good, nil
	case errors.Is(err, format.ErrNewer):
		return retain.Unread, nil // nothing is known of it here
	case errors.Is(err, catalog.ErrNone): // somebody deletes it meanwhile
		l.State = catalog.Deleting
		return retain.Unfinished, nil
	case !catalog.IsDamage(err):
		return retain.Unread, err
	}
	l.State, l.Why = catalog.Damaged, err.Error()
	console.Printf(c.std.err, "step %d of %s counts for nothing: %s\n", l.Generation.Step, l.Run.Run, catalog.Plain(err))
	return retain.Damaged, nil
}

// judged says of each line what the rule asks.
func judged(ctx context.Context, cat *catalog.Catalog, list []catalog.Listed, metric string) (gens []retain.Generation, err error) {
	states := map[catalog.State]retain.State{catalog.Good: retain.Good, catalog.Unread: retain.Unread, catalog.Damaged: retain.Damaged}
	runs := make(map[string]int)
	for _, l := range list {
		if _, ok := runs[l.Run.Run]; !ok {
			runs[l.Run.Run] = len(runs)
		}
		state, ok := states[l.State]
		if !ok {
			state = retain.Unfinished
		}
		g := retain.Generation{Step: l.Row.Position.Step, Epoch: l.Row.Position.Epoch, Run: runs[l.Run.Run], Size: l.Row.Bytes, State: state}
		if l.Row.Generation == (replica.Generation{}) || l.Row.Position == (replica.Position{}) {
			g.Step, g.Epoch = l.Generation.Step, l.Generation.Epoch
		}
		if l.Row.At > 0 {
			g.Age = time.Since(time.UnixMilli(l.Row.At))
		}
		if m, ok := l.Row.Metrics[metric]; ok {
			g.Metric, g.Measured = float64(m), true
		}
		if l.Row.Loader != nil {
			g.LoaderEpoch, g.Loads = *l.Row.Loader, true
		}
		g.Pinned, g.Stripped = l.Row.Keep != "", l.Row.Stripped
		if len(l.Pins) > 0 {
			pins, err := cat.Pinned(ctx, l.Run, l.Generation)
			if err != nil {
				return nil, err
			}
			kept, until, open := catalog.KeptBy(pins)
			g.Pinned, g.Open = g.Pinned || kept, open
			if !until.IsZero() {
				g.Until = max(time.Until(until), time.Second)
			}
		}
		gens = append(gens, g)
	}
	return gens, nil
}

// swept removes what nobody needs from the runs of a job.
func (c ckpt) swept(ctx context.Context, w *place.Place, job string, grace time.Duration) error {
	runs, err := w.Cat.Runs(ctx, job)
	if err != nil {
		return err
	}
	for _, r := range runs {
		if w.Run != "" && r.Run != w.Run {
			continue
		}
		s, err := w.Cat.Sweep(ctx, r, grace)
		if err != nil {
			return err
		}
		if n := len(s.Objects) + s.Uploads + len(s.Finished); n > 0 {
			console.Printf(c.std.err, "swept from run %s of %s: %d objects, %d unfinished uploads; %d deletions finished\n", r.Run, job,
				len(s.Objects), s.Uploads, len(s.Finished))
		}
	}
	return nil
}

func (c ckpt) printPruned(rows []pruneRow, dry, asJSON bool) error {
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
