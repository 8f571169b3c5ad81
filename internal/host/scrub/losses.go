package scrub

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
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
	said  time.Time // when this leader was told last; zero: not yet
	heard bool      // some leader was
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

func (ls losses) fetched(now time.Time, f *Fetch, err error) {
	l := f.of
	if l.fetch != f {
		return // it was cancelled
	}
	l.fetch, l.next = nil, now
	if err != nil {
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
func (l *loss) step(now time.Time, owner Owner, log Log) (effects []act.Effect, over bool) {
	view, known := owner.Job(l.key.job)
	job := view.Job
	if !known || job.Phase != replica.Open || l.arena.Dropped() { // a recovery asks and restores by itself
		return l.cancel(), true
	}
	if now.Before(l.next) {
		return nil, false
	}
	l.next = now.Add(retry)
	copies := view.Copies()
	is := l.whole(job, copies)
	earlier := job.Previous != nil && is.generation == job.Previous.Generation
	switch n := is.generation.Compare(job.Committed); {
	case n > 0 || is.root.IsZero():
		return nil, false // not committed yet, or nothing committed needs it
	case n < 0 && !earlier:
		return l.cancel(), true
	}
	here, there, serves := false, false, false // in the arena; anywhere on this node; with what it binds
	for _, c := range copies {
		if is.same(c) && c.Whole() {
			there = true
			if !l.frozen || !l.binds(c) {
				here, serves = here || c.Arena == l.arena, true
			}
		}
	}
	agreed := l.agrees(job, is, there, owner.Self())
	if !agreed && (l.said.IsZero() || now.Sub(l.said) >= sayAgain) {
		l.said, l.heard = now, true
		effects = append(effects, act.Send{Msg: control.CopyReport{Job: job.ID, Part: is.part, Generation: is.generation, Root: is.root, Lost: !there}})
	}
	if here {
		return effects, agreed
	}
	if l.fetch == nil && !earlier && !now.Before(l.again) {
		effects = append(effects, l.begin(job, owner, log, is, serves)...)
	}
	return effects, false
}

// part is a part of a generation that a recovery would need.
type part struct {
	part       replica.Part
	generation replica.Generation
	root       replica.Digest
	binds      replica.Digest
}

func (p part) same(c holding.Copy) bool {
	return c.Held.Part == p.part && c.Info.Generation == p.generation && c.Info.Root == p.root
}

// whole is what cannot be had from the arena without what was lost: of a frozen part, the committed part that binds it here. Without a root
// there is none.
func (l *loss) whole(job *replica.Job, copies []holding.Copy) part {
	if !l.frozen {
		return part{l.key.part, l.key.generation, l.root, replica.Digest{}}
	}
	is := part{part: replica.OfGroup(replica.GroupID(l.key.part.Index)), generation: job.Committed}
	for _, c := range copies {
		if c.Arena == l.arena && c.Held.Part == is.part && c.Info.Generation == is.generation {
			is.root, is.binds = c.Info.Root, c.Info.FrozenRoot
		}
	}
	return is
}

// agrees tells whether the record says what the memory of this node has. The record is known here as of the newest change of the job that was no
// commit: roots of a former generation say nothing of this one.
func (l *loss) agrees(job *replica.Job, is part, there bool, self replica.Holder) bool {
	if !l.heard {
		return there // else the leader counts on the copy
	}
	at := slices.IndexFunc(job.Parts, func(p replica.PartRoot) bool { return p.Part == is.part && p.Root == is.root })
	if is.generation != job.Committed || at < 0 {
		return false
	}
	return slices.Contains(job.Parts[at].Holders, self) == there
}

// binds tells whether a copy needs the frozen part that was lost, which does not lie beside it.
func (l *loss) binds(c holding.Copy) bool {
	return c.Info.FrozenRoot == l.root && len(c.Bound()) == 1
}

// begin has the part fetched from those that may hold it. The rotten place is free: what else the arena holds stays, and where its rank has
// taken the place meanwhile the fetch fails, and is tried again until a commit makes it needless.
func (l *loss) begin(job *replica.Job, owner Owner, log Log, is part, serves bool) []act.Effect {
	if owner.Coming(l.arena, is.part, is.generation, is.root) {
		return nil
	}
	src := replica.Source{Part: is.part, Root: is.root, Tier: replica.PeerRAM}
	for _, h := range holders(job, is, owner) {
		if h != owner.Self() || serves {
			src.Holders = append(src.Holders, h)
		}
	}
	if len(src.Holders) == 0 {
		if !l.lone {
			l.lone = true
			log.Failed("fetch", fmt.Sprintf("%v of generation %v", is.part, is.generation), "no other node is known to hold it: the next commit makes a new copy")
		}
		return nil
	}
	l.fetch = &Fetch{Job: l.key.job, Arena: l.arena, Rank: l.rank, Generation: is.generation, Source: src, Frozen: is.binds, of: l}
	return []act.Effect{l.fetch}
}

// holders are those that the record names. Where that is of a former generation: also whoever produces the part, and its mirrors.
func holders(job *replica.Job, is part, owner Owner) (all []replica.Holder) {
	add := func(h replica.Holder) {
		if h.Node != "" && !slices.ContainsFunc(all, func(o replica.Holder) bool { return o.Node == h.Node }) {
			all = append(all, h)
		}
	}
	for _, p := range job.Parts {
		if p.Part != is.part {
			continue
		}
		for _, h := range p.Holders {
			add(h)
		}
		if p.Root == is.root {
			return all
		}
	}
	mirrors := job.Mirrors
	if is.part.Kind == replica.ReplicatedPart {
		mirrors = job.GroupMirrors
	}
	for r, c := range job.Ranks {
		if is.part == replica.OfRank(replica.Rank(r)) || r < len(job.Layout.Groups) && is.part == replica.OfGroup(job.Layout.Groups[r]) {
			add(replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation})
		}
	}
	if int(is.part.Index) < len(mirrors) {
		for _, n := range mirrors[is.part.Index] {
			add(owner.Holder(n))
		}
	}
	return all
}

func (l *loss) cancel() []act.Effect {
	if l.fetch == nil {
		return nil
	}
	f := l.fetch
	l.fetch = nil
	return []act.Effect{act.Cancel{Of: f}}
}
