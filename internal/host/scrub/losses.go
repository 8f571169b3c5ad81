package scrub

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

const (
	sayAgain  = time.Second            // a report that the record does not show yet
	retry     = 200 * time.Millisecond // a fetch that failed; doubled with each
	retryMost = 10 * time.Second
)

// losses are the copies that were given up here. Nobody adds to one: it goes once the record and the arena are right, or its generation is past.
type losses map[lossKey]*loss

// lossKey names what an arena has lost. A frozen part is of no generation, for those that bind it change with each commit.
type lossKey struct {
	job        replica.JobID
	arena      string
	part       replica.Part
	generation replica.Generation
}

// loss is a copy that an arena has lost.
type loss struct {
	key    lossKey
	arena  *holding.Arena
	rank   replica.Rank
	root   replica.Digest
	frozen bool

	next  time.Time // to look
	fetch *Fetch    // under way
	tries int       // that failed
	again time.Time // for the next one
	said  time.Time // when the leader heard of it last
	lone  bool      // the log knows that nobody else holds it
}

func (ls losses) add(ev GivenUp) {
	c := ev.Copy
	l := &loss{key: lossKey{ev.Job, c.Arena.Key(), c.Held.Part, c.Info.Generation}, arena: c.Arena, rank: c.Held.Rank, root: c.Info.Root, frozen: c.Place.Kind == shm.Frozen}
	if l.frozen {
		l.key.generation = replica.Generation{}
	}
	if ls[l.key] == nil {
		ls[l.key] = l
	}
}

func (ls losses) fetched(now time.Time, ev FetchEnded) {
	l := ev.Fetch.of
	if l.fetch != ev.Fetch {
		return // it was cancelled
	}
	l.fetch, l.next = nil, now
	if ev.Err != nil {
		l.again = now.Add(min(retry<<min(l.tries, 10), retryMost))
		l.tries++
	}
}

func (ls losses) linked() {
	for _, l := range ls {
		l.said, l.next = time.Time{}, time.Time{}
	}
}

func (ls losses) inOrder() []*loss {
	return slices.SortedFunc(maps.Values(ls), func(a, b *loss) int {
		x, y := a.key, b.key
		return cmp.Or(slices.Compare(x.job[:], y.job[:]), cmp.Compare(x.arena, y.arena), cmp.Compare(x.part.Kind, y.part.Kind), x.generation.Compare(y.generation))
	})
}

// step compares the record with what lies here, and has the part fetched again. over: there is nothing left to do.
func (l *loss) step(now time.Time, owner Owner, log Log) (effects []Effect, over bool) {
	job := owner.Job(l.key.job)
	if job == nil || job.Phase != replica.Open || l.arena.Dropped() { // a recovery asks and restores by itself
		return l.cancel(), true
	}
	if now.Before(l.next) {
		return nil, false
	}
	l.next = now.Add(retry)
	is := l.recorded(job)
	switch {
	case is.generation.Compare(job.Committed) > 0:
		return nil, false // not committed yet
	case is.Root.IsZero():
		return l.cancel(), true // of the past
	}
	copies := owner.Copies(job.ID)
	here, there, serves := false, false, false // in the arena; anywhere on this node; with what it binds
	for _, c := range copies {
		if c.Held.Part == is.Part && c.Info.Generation == is.generation && c.Info.Root == is.Root && c.Whole() {
			there = true
			if !l.frozen || !l.binds(c) {
				here, serves = here || c.Arena == l.arena, true
			}
		}
	}
	agreed := slices.Contains(is.Holders, owner.Self()) == there
	if !agreed && now.Sub(l.said) >= sayAgain {
		l.said = now
		effects = append(effects, Report{control.CopyReport{Job: job.ID, Part: is.Part, Generation: is.generation, Root: is.Root, Lost: !there}})
	}
	if here {
		return effects, agreed
	}
	if l.fetch == nil && is.generation == job.Committed && !now.Before(l.again) {
		effects = append(effects, l.begin(owner, log, is, serves, copies)...)
	}
	return effects, false
}

// of is a part of a recorded generation.
type of struct {
	replica.PartRoot
	generation replica.Generation
}

// recorded is what the record says of what was lost: of a frozen part, the committed part of its group. Without a root it says nothing.
func (l *loss) recorded(job *replica.Job) of {
	part, g := l.key.part, l.key.generation
	if l.frozen {
		part, g = replica.OfGroup(replica.GroupID(part.Index)), job.Committed
	}
	parts := []replica.PartRoot{}
	switch {
	case g == job.Committed:
		parts = job.Parts
	case job.Previous != nil && g == job.Previous.Generation:
		parts = job.Previous.Parts
	}
	for _, p := range parts {
		if p.Part == part && (l.frozen || p.Root == l.root) {
			return of{p, g}
		}
	}
	return of{replica.PartRoot{Part: part}, g}
}

// binds tells whether a copy needs the frozen part that was lost, which does not lie beside it.
func (l *loss) binds(c holding.Copy) bool {
	return c.Info.FrozenRoot == l.root && len(c.Bound()) == 1
}

// begin has the part fetched from those that the record names. The rotten place is free: what else the arena holds stays, and where its rank has
// taken the place meanwhile the fetch fails, and is tried again until a commit makes it needless.
func (l *loss) begin(owner Owner, log Log, is of, serves bool, copies []holding.Copy) []Effect {
	src := replica.Source{Part: is.Part, Root: is.Root, Tier: replica.PeerRAM}
	for _, h := range is.Holders {
		if h != owner.Self() || serves {
			src.Holders = append(src.Holders, h)
		}
	}
	if len(src.Holders) == 0 {
		if !l.lone {
			l.lone = true
			log.Failed("fetch", fmt.Sprintf("%v of generation %v", is.Part, is.generation), "no other node is known to hold it: the next commit makes a new copy")
		}
		return nil
	}
	f := &Fetch{Job: l.key.job, Arena: l.arena, Rank: l.rank, Generation: is.generation, Source: src, of: l}
	if l.frozen {
		for _, c := range copies {
			if c.Arena == l.arena && c.Held.Part == is.Part && c.Info.Generation == is.generation && c.Info.Root == is.Root {
				f.Frozen = c.Info.FrozenRoot
			}
		}
		if f.Frozen.IsZero() {
			return nil // nothing here binds it
		}
	}
	if owner.Coming(l.arena, is.Part, is.generation, is.Root) {
		return nil
	}
	l.fetch = f
	return []Effect{f}
}

func (l *loss) cancel() []Effect {
	if l.fetch == nil {
		return nil
	}
	f := l.fetch
	l.fetch = nil
	return []Effect{Cancel{f}}
}
