package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/leader/reread"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// What durable generations can be gone on from is found by looking: at commits, at indexes, whether every file is there with its size, and at the
// marks of earlier reads. Each rank checks what it loads, byte by byte: a generation of which one finds damage is condemned, and the search goes on to
// the one before. Reading it whole first would have the bytes leave the store twice, the first time through one node, and the larger the model the later
// would a job go on (D131). Only what a mark says is damaged is read whole here, where nothing else is left.

// readings are those of the durable tier under way, by the path of what is read. Its methods may be called from any goroutine.
type readings struct {
	mu sync.Mutex // guards of
	of map[string]*reading
}

// reading is one. err is written before done is closed.
type reading struct {
	done chan struct{}
	err  error
}

// readBack reads a generation whole, or waits for a reading of it that is under way, until wait ends; the reading goes on until ctx does.
func (l *Leader) readBack(ctx, wait context.Context, f tier.Found) error {
	l.reads.mu.Lock()
	r := l.reads.of[f.Where()]
	if r == nil {
		r = &reading{done: make(chan struct{})}
		if l.reads.of == nil {
			l.reads.of = map[string]*reading{}
		}
		l.reads.of[f.Where()] = r
		l.work.Go(func() {
			r.err = l.store.ReadBack(ctx, f, tier.How{})
			l.reads.mu.Lock()
			delete(l.reads.of, f.Where())
			l.reads.mu.Unlock()
			close(r.done)
		})
	}
	l.reads.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-wait.Done():
		return errPending
	}
}

// errPending: the reading is not over.
var errPending = errors.New("it is being read")

// searched is what a search of a job's durable generations came to.
type searched struct {
	found   []tier.Found   // that may be good, the newest first
	good    *tier.Found    // the newest of those that the job may go on from; nil: there is none
	skipped []tier.Skipped // what can't be used, with those of what was found that failed a read
}

// search looks for the newest generation that may be gone on from. Those that a mark says are damaged are read again where nothing else is left:
// somebody may have brought back what was damaged, and what follows is the end of the job. It waits until wait ends.
func (l *Leader) search(ctx, wait context.Context, found []tier.Found, skipped []tier.Skipped, may func(tier.Found) bool) searched {
	s := searched{found: slices.Clone(found), skipped: slices.Clone(skipped)}
	if i := slices.IndexFunc(s.found, may); i >= 0 {
		s.good = &s.found[i]
		return s
	}
	var marked []tier.Found
	for _, sk := range skipped {
		if sk.Whole != nil && may(*sk.Whole) {
			marked = append(marked, *sk.Whole)
		}
	}
	slices.SortFunc(marked, tier.Newer)
	for _, f := range marked {
		if s.good != nil {
			break
		}
		s.skipped = slices.DeleteFunc(s.skipped, func(sk tier.Skipped) bool { return sk.Where() == f.Where() })
		s.try(ctx, wait, l, f)
	}
	return s
}

// mayGoOn tells of a generation whether a job may go on from it, if its bytes are good.
func mayGoOn(job *replica.Job) func(tier.Found) bool {
	return func(f tier.Found) bool {
		return job.Lineage.Valid(f.Generation) && !slices.Contains(job.Condemned, f.Generation)
	}
}

// try reads one generation.
func (s *searched) try(ctx, wait context.Context, l *Leader, f tier.Found) {
	err := l.readBack(ctx, wait, f)
	switch {
	case err == nil || errors.Is(err, errPending):
		s.good = &f
		s.found = append(s.found, f)
	default:
		s.skipped = append(s.skipped, tier.Skipped{Run: f.Run, Generation: f.Generation, State: tier.StateOf(err), Reason: err.Error(), Plain: tier.Plain(err), Whole: &f})
	}
}

// generations are what recovery is told of: what can be used, and what is wrong with the rest.
func (s *searched) generations(url string) (out []recovery.DurableGen) {
	for _, f := range s.found {
		g := recovery.DurableGen{Generation: f.Generation, Position: f.Position, Parts: map[replica.Part]replica.Digest{}}
		for _, shard := range f.Shards() {
			g.Parts[shard.Part] = shard.Root
		}
		g.Says = says(url, f, time.Now())
		out = append(out, g)
	}
	for _, sk := range s.skipped {
		if g, ok := s.bad(sk); ok {
			out = append(out, g)
		}
	}
	return out
}

// bad is a generation that can't be used. What was never finished is none.
func (s *searched) bad(sk tier.Skipped) (g recovery.DurableGen, ok bool) {
	if sk.State != catalog.Damaged && sk.State != catalog.Unreadable && sk.State != catalog.Stripped && sk.State != catalog.Encrypted {
		return g, false
	}
	g.Generation, g.Position, g.Bad = sk.Generation, replica.Position(sk.Generation), sk.Plain
	if sk.Whole != nil {
		g.Position = sk.Whole.Position
	}
	return g, true
}

// wrong lists what is wrong with each generation that can't be used, the newest first.
func (s *searched) wrong() (list []string) {
	var bad []recovery.DurableGen
	for _, sk := range s.skipped {
		if g, ok := s.bad(sk); ok {
			bad = append(bad, g)
		}
	}
	slices.SortStableFunc(bad, func(a, b recovery.DurableGen) int {
		return replica.Generation(b.Position).Compare(replica.Generation(a.Position))
	})
	for _, g := range bad {
		list = append(list, fmt.Sprintf("step %d: %s", g.Position.Step, g.Bad))
	}
	return list
}

// says names a generation for people: its step, where it lies, how old it is, and its size.
func says(url string, f tier.Found, now time.Time) string {
	facts := sizeText(f.Bytes)
	if written := tier.Written(f); !written.IsZero() {
		if age := now.Sub(written); age >= 0 {
			facts = ageText(age) + " old, " + facts
		}
	}
	if from := f.Provenance[finishedFrom]; from != "" {
		facts += ", finished from the spools of " + from
	}
	return fmt.Sprintf("step %d of %s/%s (%s)", f.Position.Step, strings.TrimSuffix(url, "/"), f.Job, facts)
}

func ageText(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func sizeText(n uint64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%d KiB", (n+1<<10-1)>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", uint64(math.Round(float64(n)/(1<<20))))
	}
	return fmt.Sprintf("%d GiB", uint64(math.Round(float64(n)/(1<<30))))
}

// wrote has a generation read back that was just written, or that another leader may not have read back.
func (l *Leader) wrote(was, is *replica.Job) {
	switch {
	case is.Durable.IsZero() || was != nil && is.Durable == was.Durable:
	case was == nil:
		l.rereadLearns(reread.Leads{Name: is.Name})
	default:
		l.rereadLearns(reread.Wrote{Lying: reread.Lying{Name: is.Name, Job: is.ID, Generation: is.Durable}})
	}
}
