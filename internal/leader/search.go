package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/leader/reread"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// What durable generations can be gone on from is found by looking: at commits, at indexes, whether every file is there with its size, and at the
// marks of earlier reads. Each rank checks what it loads, byte by byte: a generation of which one finds damage is condemned, and the search goes on to
// the one before. That is how each byte leaves the store once (D131).
//
// Before a job is opened that is not enough: where nothing can be used no process is to be started. So a generation that nobody has read back, or of which
// a file was written since, is read whole first (D167); one that was is trusted.

// readings are those of the durable tier under way, by the path of what is read. Its methods may be called from any goroutine.
type readings struct {
	mu sync.Mutex // guards of
	of map[string]*reading
}

// reading is one. err is written before done is closed.
type reading struct {
	done chan struct{}
	err  error
	read atomic.Uint64 // bytes so far
}

// readBack begins to read a generation whole, or joins a reading of it that is under way, which goes on until its ctx ends.
func (l *Leader) readBack(ctx context.Context, f tier.Found) *reading {
	l.reads.mu.Lock()
	defer l.reads.mu.Unlock()
	r := l.reads.of[f.Where()]
	if r != nil {
		return r
	}
	r = &reading{done: make(chan struct{})}
	if l.reads.of == nil {
		l.reads.of = map[string]*reading{}
	}
	l.reads.of[f.Where()] = r
	l.work.Go(func() {
		r.err = l.store.ReadBack(ctx, f, tier.How{Pace: func(_ context.Context, n int) error {
			r.read.Add(uint64(n))
			return nil
		}})
		l.reads.mu.Lock()
		delete(l.reads.of, f.Where())
		l.reads.mu.Unlock()
		close(r.done)
	})
	return r
}

// wait waits for a reading until ctx ends, and calls says now and then.
func (r *reading) wait(ctx context.Context, says func(read uint64, since time.Duration)) error {
	tick := time.NewTicker(readingSaid)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return errPending
		case <-tick.C:
			says(r.read.Load(), time.Since(began))
		}
	}
}

// readingSaid is how often a launcher hears that its request is looked after: it gives a daemon that says nothing up after 10 s.
const readingSaid = 3 * time.Second

// errPending: the reading is not over.
var errPending = errors.New("it is being read")

// searched is what a search of a job's durable generations came to.
type searched struct {
	found   []tier.Found   // that may be good, the newest first
	good    *tier.Found    // the newest of those that the job may go on from; nil: there is none
	skipped []tier.Skipped // what can't be used, with those of what was found that failed a read
	unread  bool           // nobody has read good whole, and it takes too long to do so now
	says    readingSays    // hears how readings go on
}

// readingSays hears now and then how much of a generation was read.
type readingSays func(f tier.Found, read uint64, since time.Duration)

// trusted tells whether a generation is gone on from without reading it first: somebody has read it whole, and nobody has written to it since.
func trusted(f tier.Found) bool { return !f.Read.IsZero() && !f.Touched }

// prove looks for the newest generation to open a job from, before a process is started. What is not trusted is read whole: as long as it takes where
// nothing behind it is trusted, else for adoptPatience, since the ranks check what they load and something can be gone on from in any case. Each reading that
// ends is marked, so that it is made once.
func (s *searched) prove(ctx context.Context, l *Leader, own func(tier.Found) bool) {
	for {
		i := slices.IndexFunc(s.found, own)
		if i < 0 {
			return
		}
		f := s.found[i]
		s.good = &f
		if trusted(f) {
			return
		}
		err := s.proves(ctx, l, f, slices.ContainsFunc(s.found[i+1:], func(f tier.Found) bool { return own(f) && trusted(f) }))
		switch {
		case err == nil:
			return
		case errors.Is(err, find.ErrNone): // retention has deleted it
		case tier.IsDamage(err) || errors.Is(err, store.ErrRefused):
			s.skipped = append(s.skipped, tier.Skipped{Run: f.Run, Generation: f.Generation, State: tier.StateOf(err), Reason: err.Error(), Plain: tier.Plain(err), Whole: &f})
		default: // nothing is known of it: an older one must not pass for the newest
			s.unread = true
			return
		}
		s.found, s.good = slices.Delete(s.found, i, i+1), nil
	}
}

// proves reads one generation. behind: one behind it is trusted.
func (s *searched) proves(ctx context.Context, l *Leader, f tier.Found, behind bool) error {
	wait, reading := ctx, ctx
	if behind {
		var end, cancel context.CancelFunc
		wait, end = context.WithTimeout(ctx, adoptPatience)
		defer end()
		reading, cancel = context.WithCancel(ctx)
		defer cancel() // who loads it would share the store with the reading
	}
	return l.readBack(reading, f).wait(wait, func(read uint64, since time.Duration) { s.says(f, read, since) })
}

// search looks for the newest generation that may be gone on from. Those that a mark says are damaged are read again where nothing else is left:
// somebody may have brought back what was damaged, and what follows is the end of the job. It waits until wait ends.
func (l *Leader) search(ctx, wait context.Context, found []tier.Found, skipped []tier.Skipped, may func(tier.Found) bool) searched {
	s := searched{found: slices.Clone(found), skipped: slices.Clone(skipped), says: func(tier.Found, uint64, time.Duration) {}}
	s.search(ctx, wait, l, may)
	return s
}

// search is the leader's, of what is known already.
func (s *searched) search(ctx, wait context.Context, l *Leader, may func(tier.Found) bool) {
	if i := slices.IndexFunc(s.found, may); i >= 0 {
		s.good = &s.found[i]
		return
	}
	var marked []tier.Found
	for _, sk := range s.skipped {
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
}

// mayGoOn tells of a generation whether a job may go on from it, if its bytes are good.
func mayGoOn(job *replica.Job) func(tier.Found) bool {
	return func(f tier.Found) bool {
		return job.Lineage.Valid(f.Generation) && !slices.Contains(job.Condemned, f.Generation)
	}
}

// try reads one generation.
func (s *searched) try(ctx, wait context.Context, l *Leader, f tier.Found) {
	err := l.readBack(ctx, f).wait(wait, func(read uint64, since time.Duration) { s.says(f, read, since) })
	switch {
	case err == nil || errors.Is(err, errPending):
		s.good = &f
		s.found = append(s.found, f)
	default:
		s.skipped = append(s.skipped, tier.Skipped{Run: f.Run, Generation: f.Generation, State: tier.StateOf(err), Reason: err.Error(), Plain: tier.Plain(err), Whole: &f})
	}
}

// generations are what recovery is told of: what can be used, and what is wrong with the rest.
func (s *searched) generations(url string) (out []plan.DurableGen) {
	for _, f := range s.found {
		g := plan.DurableGen{Generation: f.Generation, Position: f.Position, Parts: map[replica.Part]replica.Digest{}}
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
func (s *searched) bad(sk tier.Skipped) (g plan.DurableGen, ok bool) {
	if sk.State != find.Damaged && sk.State != find.Unreadable && sk.State != find.Stripped && sk.State != find.Encrypted {
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
	var bad []plan.DurableGen
	for _, sk := range s.skipped {
		if g, ok := s.bad(sk); ok {
			bad = append(bad, g)
		}
	}
	slices.SortStableFunc(bad, func(a, b plan.DurableGen) int {
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
		l.rereadLearns(reread.Leads{Name: is.Name, Job: is.ID})
		pruneOwed(l)
	default:
		l.rereadLearns(reread.Wrote{Lying: reread.Lying{Name: is.Name, Job: is.ID, Generation: is.Durable}})
	}
}
