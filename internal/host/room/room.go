package room

import (
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/replica"
)

// Room is the shape of a room with its own events and effects. It belongs to one goroutine.
type Room[Event, Effect any] interface {
	Learn(now time.Time, ev Event)
	// Step returns the effects of what was learned, and of the time that has passed, in the order in which they are to be carried out.
	Step(now time.Time) []Effect
	// Next is when to call Step again, whatever happens; false: after the next event.
	Next() (at time.Time, ok bool)
}

// JobView is a job as its node has it in one turn. A room only reads it, and asks for it anew in its next turn.
type JobView struct {
	Job         *replica.Job
	Candidate   replica.Candidate // that the leader wants to commit next; zero: none was named
	CandidateAt time.Time         // when this node learned of it
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

// Copies lists every sealed part that the node holds of the job: in its ranks' arenas, then in retired ones, then in mirrors.
func (v JobView) Copies() (out []holding.Copy) {
	add := func(a *holding.Arena) { out = a.AppendCopies(out, Group(v.Job, a.Spec().Rank)) }
	for _, r := range v.Ranks {
		add(r.Arena)
	}
	for _, a := range v.Retired {
		add(a)
	}
	for _, m := range v.Mirrors {
		add(m.Arena)
	}
	return out
}

// Find locates a part by generation and root, in the arena first if it is there; frozen parts are found by root alone.
func (v JobView) Find(first *holding.Arena, part replica.Part, g replica.Generation, root replica.Digest) (holding.Copy, bool) {
	return holding.Find(v.Copies(), first, part, g, root)
}
