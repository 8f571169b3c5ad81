package lock

import (
	"cmp"
	"slices"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// ShouldCapture tells whether the replicated part of step s is to be captured (protocol section 4): the candidate always;
// with only two slots nothing else. What the leader names next is normally the first step due after the committed one, so
// that one counts as the candidate while none newer than the committed step is named. Any other capture is for freshness:
// while something newer than C is uncommitted, multiples of max(c, 2) only. It is the twin of the rule in libreplicad.
func ShouldCapture(s, committed, candidate, cadence replica.Step, slots int) bool {
	c := max(cadence, 1)
	if s <= committed {
		return false
	}
	if candidate <= committed {
		candidate = committed/c*c + c
	}
	if s == candidate {
		return true
	}
	return slots > 2 && s%max(c, 2) == 0
}

// newestPrivate is how many private parts stay just for being the newest.
const newestPrivate = 4

// PlaceState is one place of an arena as its daemon sees it.
type PlaceState struct {
	Ring       bool // of the private ring; else a slot for replicated parts
	Mirror     bool // of an arena that mirrors another node's rank
	Index      int
	State      replica.SlotState
	Generation replica.Generation
	Root       replica.Digest // of what is sealed; zero: not known
	Pinned     bool
	Told       bool // it was pinned for some leader, which may have counted that: whatever became of the leader, it may be committed
	Held       bool // a reader: durable writer or transfer
	Dead       bool // every process that had the arena has exited or acknowledged the join
}

// RetainInput is what decides which places of one arena may be freed.
type RetainInput struct {
	Job       *replica.Job
	Candidate replica.Generation // newest the leader named; zero: none known
	Good      replica.Word       // of the arena's rank; zero where it has none (a mirror)
	Unasked   bool               // no leader has asked for the candidate for holder_grace; of a mirror never
	Stands    bool               // the arena's rank goes no further before its newest step is committed: it has left, or says so
	Slots     int                // replicated slots of the arena
	Places    []PlaceState
}

// previous is the generation that stays beside the committed one, which has too few copies; zero where there is none.
func previous(j *replica.Job) replica.Generation {
	if j.Previous == nil {
		return replica.Generation{}
	}
	return j.Previous.Generation
}

// Retain says which places may become FREE now, as indexes into Places (protocol section 4).
//
// What lies twice is freed once, whatever it is. Invariant: beside that it never frees what is committed, what was before while that has too few copies, the candidate, pinned or held by a reader, nor, while the job is Closed or
// Planned, anything that could be eligible. TORN places are freed only when the copies into them can't go on.
func Retain(in RetainInput) (free []int) {
	r := newRetention(in)
	for i, p := range in.Places {
		switch p.State {
		case replica.SlotTorn:
			if p.Dead {
				free = append(free, i)
			}
		case replica.SlotSealed:
			if !p.Pinned && !p.Held && (r.mayFree(p) || twice(in.Places, i)) {
				free = append(free, i)
			}
		case replica.SlotFree, replica.SlotCopying, replica.SlotCopied: // a rank's to write
		}
	}
	return free
}

// RetainForStaging says which places may be freed besides so that a restore finds need FREE ones among the slots (or, with
// ring, in the private ring): once a plan exists anything but C, T, pinned and held, generations of other histories first,
// then the oldest (protocol section 6, Restore). Before there is a plan nothing that could be eligible is given up. What was committed
// before goes last, and while the job runs not at all.
func RetainForStaging(in RetainInput, ring bool, need int) (free []int) {
	var stale []int
	before := previous(in.Job)
	for i, p := range in.Places {
		if p.Ring != ring {
			continue
		}
		switch {
		case p.State == replica.SlotFree:
			need--
		case p.State == replica.SlotTorn && p.Dead, p.State == replica.SlotSealed && !p.Pinned && !p.Held && twice(in.Places, i):
			free = append(free, i)
			need--
		case p.State == replica.SlotSealed && in.Job.Plan != nil && !p.Pinned && !p.Held &&
			p.Generation != in.Job.Committed && !isPlanned(in.Job.Plan, p) && (in.Job.Phase != replica.Open || p.Generation != in.Candidate && (before.IsZero() || p.Generation != before)):
			stale = append(stale, i)
		}
	}
	slices.SortFunc(stale, func(a, b int) int {
		ga, gb := in.Places[a].Generation, in.Places[b].Generation
		if ga != gb && !before.IsZero() && (ga == before || gb == before) {
			if ga == before {
				return 1
			}
			return -1
		}
		va, vb := in.Job.Lineage.Valid(ga), in.Job.Lineage.Valid(gb)
		if va != vb {
			if va {
				return 1
			}
			return -1
		}
		return cmp.Or(ga.Compare(gb), cmp.Compare(a, b))
	})
	return append(free, stale[:min(max(need, 0), len(stale))]...)
}

// isPlanned tells whether what lies in a place is what the plan names. A copy of its generation with another root is not: its rank's state differed
// from what the plan takes, and it is to load that.
func isPlanned(plan *replica.Plan, p PlaceState) bool {
	return p.Generation == plan.Generation && (p.Root.IsZero() || len(plan.Sources) == 0 || slices.ContainsFunc(plan.Sources, func(s replica.Source) bool { return s.Root == p.Root }))
}

// twice tells whether what lies in place i lies in another one too, which stays: one that is pinned or read, else the first.
func twice(places []PlaceState, i int) bool {
	p := places[i]
	for k, o := range places {
		same := k != i && o.State == replica.SlotSealed && o.Ring == p.Ring && o.Generation == p.Generation && o.Root == p.Root && !p.Root.IsZero()
		if same && (o.Pinned || o.Held || k < i) {
			return !planted.Twice
		}
	}
	return false
}

// retention is what of one arena must stay.
type retention struct {
	in       RetainInput
	ring     map[replica.Generation]bool // private parts to keep
	fresh    replica.Generation          // newest replicated part that is newer than C and not the candidate
	below    replica.Generation          // what was committed before, while C has too few copies
	slots    int                         // of the arena, without those that hold below, or what a durable write reads
	good     replica.Generation          // where the rank is known to be
	lifetime replica.Step                // steps for which a freshness slot is kept
	crowded  bool                        // of three slots none is left for the candidate
}

func newRetention(in RetainInput) *retention {
	j := in.Job
	r := &retention{in: in, ring: map[replica.Generation]bool{}, good: in.Good.Generation(), below: previous(j), slots: in.Slots}
	if !r.below.IsZero() && slices.ContainsFunc(in.Places, func(p PlaceState) bool { return !p.Ring && p.Generation == r.below }) {
		r.slots--
	}
	for _, p := range in.Places {
		w, g := j.Writer, p.Generation
		if w != nil && !p.Ring && p.Held && g == w.Generation && g != j.Committed && g != r.below {
			r.slots-- // the durable write has it, for as long as its store takes
		}
	}
	r.crowded = r.slots == 3 && r.named()
	r.lifetime = freshFor(j)
	var private []replica.Generation
	for _, p := range in.Places {
		if !p.Ring && (p.State == replica.SlotFree || p.Generation == in.Candidate) {
			r.crowded = false
		}
		if p.State == replica.SlotFree || p.State == replica.SlotTorn {
			continue
		}
		g := p.Generation
		if p.Ring {
			if p.State == replica.SlotSealed && j.Lineage.Valid(g) {
				private = append(private, g)
			}
			continue
		}
		r.ring[g] = true
		if p.State != replica.SlotSealed || !j.Lineage.Valid(g) {
			continue
		}
		// A seal proves good at that step, also where the rank's own word isn't here.
		if g.Compare(r.good) > 0 {
			r.good = g
		}
		if g.Compare(j.Committed) > 0 && g != in.Candidate && g.Compare(r.fresh) > 0 {
			r.fresh = g
		}
	}
	r.ring[j.Committed], r.ring[in.Candidate] = true, true
	if j.Plan != nil {
		r.ring[j.Plan.Generation] = true
	}
	if !r.below.IsZero() {
		r.ring[r.below] = true
	}
	slices.SortFunc(private, func(a, b replica.Generation) int { return b.Compare(a) })
	private = slices.Compact(private)
	for _, g := range private[:min(newestPrivate, len(private))] {
		r.ring[g] = true
	}
	return r
}

// freshFor is for how many steps a slot for freshness is kept.
func freshFor(j *replica.Job) replica.Step { return 2 * max(Cadence(j), 2) }

// mayFree decides on a SEALED place that nobody pins or reads.
func (r *retention) mayFree(p PlaceState) bool {
	j, g := r.in.Job, p.Generation
	if g == j.Committed {
		return false
	}
	switch j.Phase {
	case replica.Ended:
		return true
	case replica.Opening: // what an opening sealed before it was closed is never eligible
		return g.Epoch <= j.ClosedEpoch && !j.Lineage.Valid(g)
	case replica.Closed, replica.Planned:
		return false
	case replica.Open:
	}
	if g == r.in.Candidate {
		return r.shelters() && !p.Ring && !p.Told && r.givesWay(g)
	}
	if !j.Lineage.Valid(g) { // another history: never eligible again
		return true
	}
	if p.Ring {
		return !r.ring[g]
	}
	if g.Compare(j.Committed) < 0 {
		return r.below.IsZero() || g != r.below
	}
	if r.shelters() {
		return g != r.fresh || r.givesWay(g)
	}
	if r.slots <= 2 { // no freshness slots: only the candidate stays, or what will be it
		return r.named() && !(r.in.Stands && g == r.in.Good.Generation())
	}
	// Of three slots one is for freshness. A second one in use is the candidate's: ranks that stand still before the candidate, to have
	// the step committed at which they stand, would wait for ever for good to reach what frees it.
	// While the candidate waits for long, the one for freshness is taken anew: it is what the job resumes at after a fault.
	if r.slots == 3 && r.named() && g == r.fresh {
		return r.givesWay(g)
	}
	return g != r.fresh && (r.crowded || r.good.Epoch == g.Epoch && r.good.Step >= g.Step+r.lifetime)
}

// named tells whether the leader has named a candidate that is not committed yet.
func (r *retention) named() bool {
	return r.in.Candidate.Epoch == r.in.Job.Epoch && r.in.Candidate.Compare(r.in.Job.Committed) > 0
}
