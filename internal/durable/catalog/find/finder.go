// Package find finds what lies in a store: runs of a name, their generations, claims, pins and log, and which generation is the newest. It
// changes nothing.
//
// A list is the truth; hints save requests where they agree with it. Nothing is believed for its time. What is remembered here never
// changes in the store, or is asked anew where it was not found.
//
// A Finder may be used by several goroutines.
package find

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/objects"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Finder finds what lies below one root.
type Finder struct {
	objects *objects.Reader
	keys    *sealed.Keys
	now     func() time.Time

	mu   sync.Mutex
	runs map[replica.JobID]Run        // where they lie; guarded by mu
	said map[store.Info]*format.Claim // that were read; guarded by mu
}

// New makes a finder. Without keys it finds what is encrypted, and reads nothing of it; nil for now is this host's clock.
func New(o *objects.Reader, keys *sealed.Keys, now func() time.Time) *Finder {
	if now == nil {
		now = time.Now
	}
	return &Finder{objects: o, keys: keys, now: now, runs: make(map[replica.JobID]Run), said: make(map[store.Info]*format.Claim)}
}

// ErrNone: there is no such job, run or generation.
var ErrNone = errors.New("not there")

// URL names the root, for people.
func (c *Finder) URL() string { return c.objects.URL() }

// Marked reports whether the root has this format's mark.
func (c *Finder) Marked(ctx context.Context) (bool, error) {
	b, _, err := c.objects.Get(ctx, format.RootKey)
	if errors.Is(err, store.ErrAbsent) {
		return false, nil
	}
	if err == nil {
		err = format.ParseRoot(b)
	}
	if err != nil {
		return false, fmt.Errorf("%s/%s: %w", c.URL(), format.RootKey, err)
	}
	return true, nil
}

// places lists where the runs of a name lie. Foreign names are passed over in the same list.
func (c *Finder) places(ctx context.Context, job string) (list []format.Place, err error) {
	if err := replica.CheckJobName(job); err != nil {
		return nil, err
	}
	from := ""
	for {
		var found format.Place
		err := c.objects.List(ctx, job+"/"+format.RunsBegin, from, func(info store.Info) error {
			if p, _, ok := Split(info.Key); ok {
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

// Jobs lists the names that have runs.
func (c *Finder) Jobs(ctx context.Context) (jobs []string, err error) {
	from := ""
	for {
		found := ""
		err := c.objects.List(ctx, "", from, func(info store.Info) error {
			if p, _, ok := Split(info.Key); ok {
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
func (c *Finder) Runs(ctx context.Context, job string) ([]Run, error) {
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

// At finds the run of a name that has an id; a zero id is the last run's.
func (c *Finder) At(ctx context.Context, job string, id replica.JobID) (Run, error) {
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
func (c *Finder) lies(ctx context.Context, job string, id replica.JobID) (Run, error) {
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
func (c *Finder) Holds(ctx context.Context, job string, id replica.JobID, g replica.Generation) (since time.Time, err error) {
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
	if n, ok, err := c.NewestRead(ctx, r, g); err != nil || !ok || n.Good {
		return since, err
	} else {
		why := c.whyBad(ctx, r.Place, n)
		return since, fmt.Errorf("it failed a read: %w: %w", store.ErrCorrupt, why)
	}
}
