package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Run is one run of a job's name.
type Run struct {
	format.Place
	ID replica.JobID // zero where none of run.json, claims and commits can be read
	// Order is the run's among those of the name: whoever begins or takes up a run makes it the last.
	Order uint64
	Owner uint32
	// Claimed is its newest epoch that a fleet has claimed, and Cluster that of the fleet; zero: nobody has, or it was not looked at.
	Claimed replica.Epoch
	Cluster replica.ClusterID
	// Lost is why run.json cannot be read; nil: it can.
	Lost error
	// Unsure is why the newest claim cannot be read, where no COMMIT says what it said: the run may come behind others of its name. Nil:
	// nothing is open.
	Unsure error
}

// after is the key behind which the next run begins: "0" comes after "/".
func after(p format.Place) string { return p.Job + "/" + p.Run + "0" }

// places lists where the runs of a name lie. Foreign names are passed over in the same list.
func (c *Catalog) places(ctx context.Context, job string) (list []format.Place, err error) {
	if err := replica.CheckJobName(job); err != nil {
		return nil, err
	}
	from := ""
	for {
		var found format.Place
		err := c.objects.List(ctx, job+"/"+format.RunsBegin, from, func(info store.Info) error {
			if p, _, ok := split(info.Key); ok {
				found = p
				return objects.ErrStop
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the runs of job %s in %s: %w", job, c.URL(), err)
		}
		if found == (format.Place{}) {
			return list, nil
		}
		list = append(list, found)
		from = after(found)
	}
}

// split takes the key of a run's object apart.
func split(key string) (p format.Place, name string, ok bool) {
	job, rest, _ := strings.Cut(key, "/")
	run, name, ok := strings.Cut(rest, "/")
	p = format.Place{Job: job, Run: run}
	return p, name, ok && p.Check() == nil
}

// Jobs lists the names that have runs.
func (c *Catalog) Jobs(ctx context.Context) (jobs []string, err error) {
	from := ""
	for {
		found := ""
		err := c.objects.List(ctx, "", from, func(info store.Info) error {
			if p, _, ok := split(info.Key); ok {
				found = p.Job
				return objects.ErrStop
			}
			return nil
		})
		if err != nil || found == "" {
			return jobs, err
		}
		jobs = append(jobs, found)
		from = found + "0"
	}
}

// Runs lists the runs of a name, the last one first.
func (c *Catalog) Runs(ctx context.Context, job string) ([]Run, error) {
	places, err := c.places(ctx, job)
	if err != nil {
		return nil, err
	}
	runs := make([]Run, len(places))
	err = c.objects.Each(ctx, len(places), func(ctx context.Context, i int) (err error) {
		runs[i], err = c.run(ctx, places[i], nil)
		return err
	})
	slices.SortStableFunc(runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(b.Order, a.Order), strings.Compare(b.Run, a.Run))
	})
	return runs, err
}

// Begin gives a run its place, or finds the one that it has. A new one is the last of its name.
func (c *Catalog) Begin(ctx context.Context, said format.Run) (r Run, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("begin run %v of job %s in %s: %w", said.ID, said.Job, c.URL(), err)
		}
	}()
	if err := c.root(ctx); err != nil {
		return r, err
	}
	said.Program = c.unsaid(said.Program)
	runs, err := c.Runs(ctx, said.Job)
	if err != nil {
		return r, err
	}
	last := uint64(0)
	for _, other := range runs {
		if other.ID == said.ID {
			if other.Lost != nil {
				c.mend(ctx, other, said)
			}
			return other, nil
		}
		last = max(last, other.Order)
	}
	if said.Began == 0 {
		said.Began = c.now().UnixMilli()
	}
	said.Order = last + 1
	r = Run{Place: format.Place{Job: said.Job, Run: format.RunName(time.UnixMilli(said.Began), said.ID)}, ID: said.ID, Order: said.Order,
		Owner: said.Owner}
	if err := r.Check(); err != nil {
		return r, err
	}
	b, err := said.Seal()
	if err != nil {
		return r, err
	}
	there, err := c.objects.PutOnce(ctx, r.Under(format.RunKey), b)
	if there == nil {
		return r, err
	}
	other, err := format.ParseRun(there, r.Place)
	if errors.Is(err, format.ErrCorrupt) { // nothing that can be read is in this directory
		r.Lost = err
		c.mend(ctx, r, said)
		return r, nil
	}
	if err == nil && other.ID != said.ID {
		err = fmt.Errorf("%s is the directory of run %v: begin again in a minute", r.Run, other.ID)
	}
	if err == nil {
		r.Order = other.Order
	}
	return r, err
}

// At finds the run of a name that has an id; a zero id is the last run's.
func (c *Catalog) At(ctx context.Context, job string, id replica.JobID) (Run, error) {
	runs, err := c.Runs(ctx, job)
	if err != nil {
		return Run{}, err
	}
	for _, r := range runs {
		if r.ID == id || id == (replica.JobID{}) {
			c.mu.Lock()
			c.runs[r.ID] = r
			c.mu.Unlock()
			return r, nil
		}
	}
	return Run{}, fmt.Errorf("run %v of job %s in %s: %w", id, job, c.URL(), ErrNone)
}

// lies is At for where the run lies alone, which does not change: it is remembered.
func (c *Catalog) lies(ctx context.Context, job string, id replica.JobID) (Run, error) {
	c.mu.Lock()
	r, ok := c.runs[id]
	c.mu.Unlock()
	if ok && r.Job == job {
		return r, nil
	}
	return c.At(ctx, job, id)
}

// Holds reports whether a generation is committed, and has failed no whole read since; the error says why not: ErrNone, or damage. since is
// when it was committed, by the store's clock; zero: the store says no time.
func (c *Catalog) Holds(ctx context.Context, job string, id replica.JobID, g replica.Generation) (since time.Time, err error) {
	r, err := c.lies(ctx, job, id)
	if err != nil {
		return since, err
	}
	info, err := c.objects.Stat(ctx, r.Key(format.Name{Kind: format.CommitKind, Generation: g}))
	since = info.Modified
	if errors.Is(err, store.ErrAbsent) {
		c.mu.Lock()
		delete(c.runs, id) // another directory may lie there now
		c.mu.Unlock()
		return since, fmt.Errorf("generation %v of job %s: %w: %w", g, job, ErrNone, err)
	}
	if err != nil {
		return since, err
	}
	if n, ok, err := c.newestRead(ctx, r, g); err != nil || !ok || n.Good {
		return since, err
	} else {
		why := c.whyBad(ctx, r.Place, n)
		return since, fmt.Errorf("it failed a read: %w: %w", store.ErrCorrupt, why)
	}
}

// newestRead is the newest record of a whole read of a generation.
func (c *Catalog) newestRead(ctx context.Context, r Run, g replica.Generation) (newest format.Name, ok bool, err error) {
	err = c.objects.List(ctx, r.Under(format.ReadPrefix+format.StepName(g))+".", "", func(info store.Info) error {
		if n := format.ParseName(strings.TrimPrefix(info.Key,
			r.Prefix())); n.Kind == format.ReadKind && n.Generation == g && (!ok || n.Outweighs(newest)) {
			newest, ok = n, true
		}
		return nil
	})
	return newest, ok, err
}
