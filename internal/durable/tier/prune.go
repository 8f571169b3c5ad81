package tier

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/retain"
	"github.com/replicad/replicad/replica"
)

const (
	// grace is how old an object must be, by the store's times, that no commit names, for Sweep to remove it. Prune is called behind a
	// commit: what a write has left that began since is younger, and another fleet has no epoch of the run.
	grace = catalog.LeastGrace
	// sweepEvery lies between two sweeps of a run: each reads all its commits.
	sweepEvery = 6 * time.Hour
)

// Retention is what a job's generations are kept by.
type Retention struct {
	Name    string // of the job
	Job     replica.JobID
	Lineage replica.Lineage // what the run went on from stays until newer generations were read back
	Keep    replica.Keep
	Read    replica.Generation // that was just read back, and is good; zero: none was
	How     How                // to read one back before others go for it, where that one is another
}

// Prune removes what the rule of package retain lets go of a job's generations, and of those of former runs of its name. Who has read one back calls it.
func (t *Tier) Prune(ctx context.Context, of Retention) error {
	name, id, keep := of.Name, of.Job, of.Keep
	if bad := keep.Faults(); len(bad) > 0 {
		return fmt.Errorf("prune durable generations of job %s: %s %s: want %s", name, cmp.Or(bad[0].Field, "keep"), bad[0].Value, bad[0].Want)
	}
	t.letGo(ctx)
	list, err := t.List(ctx, name)
	if err != nil {
		return fmt.Errorf("prune durable generations of job %s: %w", name, err)
	}
	if !slices.ContainsFunc(list, func(l Listed) bool { return l.Run.ID == id }) {
		return nil // what lies in another directory is no reason to remove anything from this one
	}
	list = ofCluster(list, id)
	var errs []error
	gens := t.judged(ctx, list, id, of.Lineage, keep.Best.Metric)
	policy := retain.For(keep, t.settings.KeepRuns)
	policy.AllFormerRuns = t.settings.KeepRuns == 0
	verdicts, err := retain.DecideSeen(gens, policy, retain.Eyes{
		Look: func(i int) (retain.State, error) { return t.lookAt(ctx, &list[i], gens[i].State) },
		Read: func(i int) (retain.State, error) {
			if l := list[i]; l.Run.ID == id && l.Generation == of.Read {
				return retain.Good, nil
			}
			return t.readAt(ctx, &list[i], of.How)
		},
	})
	t.letGo(ctx) // of what was read: this daemon's own leases are no reason to keep anything
	if err != nil {
		return fmt.Errorf("prune durable generations of job %s: %w", name, err)
	}
	for i, v := range verdicts {
		if !v.Keep {
			errs = append(errs, t.remove(ctx, list[i], v.Why))
		}
	}
	errs = append(errs, t.sweep(ctx, name, id, list))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("prune durable generations of job %s: %w", name, err)
	}
	return nil
}

// lookAt looks at a generation that stays, of which so much is known: at its commit, its index, and whether all objects are there. An error means that
// the store did not say.
func (t *Tier) lookAt(ctx context.Context, l *Listed, is retain.State) (retain.State, error) {
	_, err := t.cat.Get(ctx, l.Run, l.Generation)
	return t.found(ctx, l, is, err)
}

// readAt reads one whole that others are to go for, and records what that found.
func (t *Tier) readAt(ctx context.Context, l *Listed, how How) (retain.State, error) {
	f, err := t.Look(ctx, l.Run.Job, l.Run.ID, l.Generation)
	if err == nil {
		err = t.ReadBack(ctx, f, how)
	}
	return t.found(ctx, l, retain.Good, err)
}

// found is the state of a generation that was looked at or read; good: where that found no fault.
func (t *Tier) found(ctx context.Context, l *Listed, good retain.State, err error) (retain.State, error) {
	switch {
	case err == nil:
		return good, nil
	case errors.Is(err, format.ErrNewer):
		return retain.Unread, nil // nothing is known of it here
	case errors.Is(err, catalog.ErrNone): // somebody deletes it meanwhile
		l.State = catalog.Deleting
		return retain.Unfinished, nil
	case !IsDamage(err):
		return retain.Unread, err
	}
	t.note(err)
	t.markSeen(ctx, l.Run, l.Generation)
	return retain.Damaged, nil
}

// ofCluster leaves out runs that are not known to be of the cluster of one of them: a job of the same name may train in another cluster.
func ofCluster(list []Listed, id replica.JobID) []Listed {
	of := map[replica.JobID]replica.ClusterID{}
	for _, l := range list {
		if l.Run.Cluster != (replica.ClusterID{}) {
			of[l.Run.ID] = l.Run.Cluster
		}
	}
	own := of[id]
	return slices.DeleteFunc(list, func(l Listed) bool {
		return l.Run.ID != id && (own == (replica.ClusterID{}) || of[l.Run.ID] != own)
	})
}

func (t *Tier) remove(ctx context.Context, l Listed, why string) error {
	if l.State == catalog.Unfinished || l.State == catalog.Deleting {
		return nil // Sweep removes it after a grace
	}
	err := t.cat.Delete(ctx, l.Run, l.Generation, why)
	if errors.Is(err, catalog.ErrPinned) {
		return nil
	}
	return err
}

// judged lists the generations as the rule asks for them.
func (t *Tier) judged(ctx context.Context, list []Listed, id replica.JobID, lineage replica.Lineage, metric string) []retain.Generation {
	at := runNumbers(list, id)
	now := int64(0)
	for _, l := range list {
		now = max(now, l.Row.At)
	}
	out := make([]retain.Generation, len(list))
	for i, l := range list {
		g := retain.Generation{Step: l.Row.Position.Step, Epoch: l.Row.Position.Epoch, Run: at[l.Run.ID], Size: l.Row.Bytes, State: stateOf(l), Pinned: l.Row.Keep != "", Stripped: l.Row.Stripped}
		if m, ok := l.Row.Metrics[metric]; ok {
			g.Metric, g.Measured = float64(m), true
		}
		if l.Row.Loader != nil {
			g.LoaderEpoch, g.Loads = *l.Row.Loader, true
		}
		if l.Row.At > 0 {
			g.Age = time.Duration(now-l.Row.At) * time.Millisecond
		}
		if l.Row.Position == (replica.Position{}) {
			g.Step, g.Epoch = l.Generation.Step, l.Generation.Epoch
		}
		g.Resumed = slices.ContainsFunc(lineage, func(o replica.Opened) bool {
			return o.Start == l.Generation.Step && o.Epoch > l.Generation.Epoch && lineage.Valid(l.Generation)
		})
		t.pinned(ctx, l, &g)
		g.Open = g.Open || t.isRead(whereOf(l))
		out[i] = g
	}
	return out
}

// pinned takes in whether somebody keeps a generation, or reads it; where that cannot be read, it is kept.
func (t *Tier) pinned(ctx context.Context, l Listed, g *retain.Generation) {
	if len(l.Pins) == 0 {
		return
	}
	pins, err := t.cat.Pinned(ctx, l.Run, l.Generation)
	if err != nil {
		g.Pinned = true
		return
	}
	kept, until, open := catalog.KeptBy(pins)
	g.Pinned, g.Open = g.Pinned || kept, open
	if !until.IsZero() {
		g.Until = max(time.Until(until), time.Second)
	}
}

// whereOf is Found.Where of a row.
func whereOf(l Listed) string {
	f := Found{Run: l.Run}
	f.Generation = l.Generation
	return f.Where()
}

func stateOf(l Listed) retain.State {
	switch l.State {
	case catalog.Good:
		return retain.Good
	case catalog.Damaged:
		return retain.Damaged
	case catalog.Unfinished, catalog.Deleting:
		return retain.Unfinished
	case catalog.Unread, catalog.Unreadable, catalog.Stripped, catalog.Encrypted:
	}
	return retain.Unread
}

// runNumbers counts runs of a name from the present one.
func runNumbers(list []Listed, id replica.JobID) map[replica.JobID]int {
	type run struct {
		id    replica.JobID
		order uint64
	}
	var runs []run
	for _, l := range list {
		i := slices.IndexFunc(runs, func(r run) bool { return r.id == l.Run.ID })
		if i < 0 {
			i, runs = len(runs), append(runs, run{id: l.Run.ID})
		}
		runs[i].order = max(runs[i].order, l.Run.Order)
	}
	slices.SortStableFunc(runs, func(a, b run) int {
		switch id {
		case a.id:
			return -1
		case b.id:
			return 1
		}
		return cmp.Compare(b.order, a.order)
	})
	at := map[replica.JobID]int{}
	for i, r := range runs {
		at[r.id] = i
	}
	return at
}

// sweep removes, now and then, what no commit of a run names, and what is left of former runs that have no generation any more.
func (t *Tier) sweep(ctx context.Context, name string, id replica.JobID, list []Listed) error {
	t.mu.Lock()
	last, ever := t.swept[id]
	due := !ever || time.Since(last) >= sweepEvery
	if due {
		t.swept[id] = time.Now()
	}
	t.mu.Unlock()
	if !due {
		return nil
	}
	runs, err := t.cat.Runs(ctx, name)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(runs, func(r catalog.Run) bool { return r.ID == id })
	if i < 0 {
		return nil
	}
	_, err = t.cat.Sweep(ctx, runs[i], grace)
	for _, r := range runs {
		if r.ID == id || r.ID == (replica.JobID{}) || r.Cluster != runs[i].Cluster || slices.ContainsFunc(list, func(l Listed) bool { return l.Run.ID == r.ID }) {
			continue
		}
		_, cerr := t.cat.Clear(ctx, r, grace)
		err = errors.Join(err, cerr)
	}
	return err
}
