package room

import (
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// JobView is a job as its node has it in one turn. A room only reads it, and asks for it anew in its next turn.
type JobView struct {
	Job         *replica.Job
	Candidate   replica.Candidate // that the leader wants to commit next; zero: none was named
	CandidateAt time.Time         // when this node learned of it
	WaitsAt     time.Time         // when it learned of the first since the newest commit: those between have lapsed
	Fenced      replica.Epoch     // the local fence words are raised to it
	Ranks       []Rank            // those whose claims this node holds
	Retired     []*holding.Arena  // of ranks that live elsewhere now
	Mirrors     []Mirror          // what this node holds for others
}

// Rank is a rank of a node, and its arena.
type Rank struct {
	Rank        replica.Rank
	Incarnation replica.Incarnation
	Arena       *holding.Arena
	Alive       bool // its process lives
	Waits       bool // it waits for the parts of a plan
}

// Mirror is an arena of the daemon's own that holds a part of a rank elsewhere.
type Mirror struct {
	Part  replica.Part // OfRank or OfGroup
	Rank  replica.Rank // that makes it
	Arena *holding.Arena
}

// Rank finds a rank of the node.
func (v JobView) Rank(r replica.Rank) (is Rank, ok bool) {
	for _, is := range v.Ranks {
		if is.Rank == r {
			return is, true
		}
	}
	return is, false
}

// Arenas lists all that the node has of the job: its ranks', then retired ones, then mirrors.
func (v JobView) Arenas() (all []*holding.Arena) {
	for _, r := range v.Ranks {
		all = append(all, r.Arena)
	}
	all = append(all, v.Retired...)
	for _, m := range v.Mirrors {
		all = append(all, m.Arena)
	}
	return all
}

// Copies lists every sealed part that the node holds of the job.
func (v JobView) Copies() (out []holding.Copy) {
	for _, a := range v.Arenas() {
		out = a.AppendCopies(out, Group(v.Job, a.Spec().Rank))
	}
	return out
}

// Find locates a part by generation and root, in the arena first if it is there; frozen parts are found by root alone.
func (v JobView) Find(first *holding.Arena, part replica.Part, g replica.Generation, root replica.Digest) (holding.Copy, bool) {
	return holding.Find(v.Copies(), first, part, g, root)
}

// Mirror finds the arena that mirrors a part; nil: there is none.
func (v JobView) Mirror(p replica.Part) *holding.Arena {
	for _, m := range v.Mirrors {
		if m.Part == p {
			return m.Arena
		}
	}
	return nil
}

// Has tells whether a push would bring what is here already. A frozen part is that in the arena of the mirror alone: in another one it does
// not make whole what binds it.
func (v JobView) Has(p replica.Part, g replica.Generation, root replica.Digest) bool {
	var beside *holding.Arena
	if p.Kind == replica.FrozenPart {
		beside = v.Mirror(replica.OfGroup(replica.GroupID(p.Index)))
	}
	at, ok := v.Find(beside, p, g, root)
	return ok && (p.Kind != replica.FrozenPart || at.Arena == beside)
}

// Receiving finds a part that is on its way here for others than a rank: what has come of it is served on.
func (v JobView) Receiving(than replica.Rank, p replica.Part, g replica.Generation, root replica.Digest) *holding.Receiving {
	r := new(holding.Receiving)
	for _, is := range v.Ranks {
		if is.Rank != than {
			r.Add(is.Arena, p, g, root)
		}
	}
	for _, m := range v.Mirrors {
		r.Add(m.Arena, p, g, root)
	}
	return r
}

// Furthest is the newest step of an epoch that a rank here has begun, or one whose private part is mirrored here, which it sealed as it
// began; 0: none has. A commit of large parts waits for their mirrors while the ranks go on: what their makers said is old by then.
func (v JobView) Furthest(e replica.Epoch) (at replica.Step) {
	for _, r := range v.Ranks {
		if w := r.Arena.Step(); r.Alive && w.Epoch() == e {
			at = max(at, w.Step())
		}
	}
	for _, m := range v.Mirrors {
		if m.Part.Kind == replica.PrivatePart {
			at = max(at, m.Arena.Newest(shm.Ring, e))
		}
	}
	return at
}
