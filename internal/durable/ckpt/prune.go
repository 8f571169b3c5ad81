package ckpt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/place"
	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// Policy are the flags of prune.
type Policy struct {
	replica.Keep
	Largest bool // of Best
	Runs    int
	Grace   time.Duration
	Alone   bool // of grace: nobody writes, so that it may be shorter
	Strip   bool
	Idle    time.Duration // of strip: how long ago a run was written last
}

// Complete checks the rules.
func (p *Policy) Complete() error {
	if p.Best.N == 0 {
		p.Best = replica.Best{}
	} else if p.Largest {
		p.Best.Order = replica.BestMax
	}
	for _, f := range p.Faults() {
		flag := map[string]string{"": "keep", "last": "keep", "best.n": "best", "best.metric": "metric"}[f.Field]
		return usage.Wrong(fmt.Errorf("--%s %s: want %s", cmp.Or(flag, f.Field), f.Value, f.Want))
	}
	if p.Grace < 0 || p.Grace < catalog.LeastGrace && !p.Alone {
		return usage.Wrong(fmt.Errorf("--grace %v: want %v or more: what is younger may belong to a write that is under way, and "+
			"deleting it would break that", p.Grace, catalog.LeastGrace))
	}
	if p.Idle < 0 {
		return usage.Wrong(fmt.Errorf("--idle %v: want 0s or more", p.Idle))
	}
	if p.Runs < 0 {
		return usage.Wrong(fmt.Errorf("--keep-runs %d: want 0 or more", p.Runs))
	}
	return nil
}

// PruneRow is a line of `ckpt prune --json`.
type PruneRow struct {
	Row
	Kept   bool      `json:"kept"`
	Reason string    `json:"reason"`
	Strip  *StripRow `json:"strip,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// goes deletes the generation of a line. One that somebody began to read, or has pinned, since it was judged stays, and nothing is wrong.
func (r *PruneRow) goes(ctx context.Context, cat *catalog.Catalog, l catalog.Listed) error {
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
		job, cmp.Or(replica.Line(strings.Join(slices.Sorted(maps.Keys(all)), ", "), console.MaxLine), "none")))
}

// Prune deletes what no rule keeps, or reports what it would delete. Without rows it has broken off; with some, the error is of those that
// have one.
func Prune(ctx context.Context, w *place.Place, p Policy, dry bool) ([]PruneRow, error) {
	jobs, err := w.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	if p.Strip {
		if err := ended(ctx, w, jobs, p.Idle); err != nil {
			return nil, err
		}
	}
	rows := []PruneRow{}
	var failed error
	for _, job := range jobs {
		list, err := w.Cat.List(ctx, job)
		if err != nil {
			return nil, err
		}
		verdicts, gens, err := decided(ctx, w, job, list, p, dry)
		if err != nil {
			return nil, err
		}
		for i, v := range verdicts {
			l := list[i]
			if w.Run != "" && l.Run.Run != w.Run || l.State == catalog.Unfinished || l.State == catalog.Deleting {
				continue // the sweep's
			}
			row := PruneRow{Row: RowOf(l), Kept: v.Keep, Reason: v.Why}
			if !v.Keep && !dry {
				failed = errors.Join(failed, row.goes(ctx, w.Cat, l))
			}
			if v.Keep && p.Strip {
				s, err := stripped(ctx, w, l, gens[i], "ckpt prune --strip-optimizer", dry)
				if row.Strip = &s; err != nil {
					row.Error, failed = err.Error(), errors.Join(failed, err)
				}
			}
			rows = append(rows, row)
		}
		if !dry {
			if err := swept(ctx, w, job, p.Grace); err != nil {
				return nil, err
			}
		}
	}
	return rows, failed
}

// decided has the rule decide on the generations of a job, which it looks at and reads where it has to. A line of the list then has what
// that found.
func decided(ctx context.Context, w *place.Place, job string, list []catalog.Listed, p Policy, dry bool) (verdicts []retain.Verdict,
	gens []retain.Generation, err error) {
	if gens, err = judged(ctx, w.Cat, list, p.Best.Metric); err != nil {
		return nil, nil, err
	}
	if err := measures(list, job, p.Best); err != nil {
		return nil, nil, err
	}
	verdicts, err = retain.DecideSeen(gens, retain.For(p.Keep, p.Runs), retain.Eyes{
		Look: func(i int) (retain.State, error) { return lookAt(ctx, w, &list[i], gens[i].State, dry) },
		Read: func(i int) (retain.State, error) { return readAt(ctx, w, &list[i], gens[i].State, dry) },
	})
	return verdicts, gens, err
}

// lookAt looks at a generation that stays, of which so much is known, and marks one that is damaged.
func lookAt(ctx context.Context, w *place.Place, l *catalog.Listed, is retain.State, dry bool) (retain.State, error) {
	_, err := w.Cat.Get(ctx, l.Run, l.Generation)
	state, err := found(w, l, is, err)
	if state != retain.Damaged || dry || err != nil {
		return state, err
	}
	return state, w.Cat.MarkSeen(ctx, l.Run, l.Generation)
}

// readAt reads one whole that others are to go for, and records what that found. A dry run goes by what is known.
func readAt(ctx context.Context, w *place.Place, l *catalog.Listed, is retain.State, dry bool) (retain.State, error) {
	if dry {
		console.Printf(w.Notes, "step %d of %s would be read whole first\n", l.Generation.Step, l.Run.Run)
		return is, nil
	}
	far := NewMeter(w.Notes, fmt.Sprintf("step %d is read before others go for it", l.Generation.Step))
	return found(w, l, retain.Good, w.Cat.ReadBack(ctx, l.Run, l.Generation, catalog.How{}, far.at))
}

// found is the state of a generation that was looked at or read; good: where that found no fault.
func found(w *place.Place, l *catalog.Listed, good retain.State, err error) (retain.State, error) {
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
	console.Printf(w.Notes, "step %d of %s counts for nothing: %s\n", l.Generation.Step, l.Run.Run, catalog.Plain(err))
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
		g := retain.Generation{Step: l.Row.Position.Step, Epoch: l.Row.Position.Epoch, Run: runs[l.Run.Run], Size: l.Row.Bytes,
			State: state}
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
func swept(ctx context.Context, w *place.Place, job string, grace time.Duration) error {
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
			console.Printf(w.Notes, "swept from run %s of %s: %d objects, %d unfinished uploads; %d deletions finished\n", r.Run, job,
				len(s.Objects), s.Uploads, len(s.Finished))
		}
	}
	return nil
}
