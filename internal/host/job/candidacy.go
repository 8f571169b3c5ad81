package job

import (
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// candidacy is what this node has answered to the candidate that the leader wants to commit next. It is given what arenas tell, and returns
// what to pin and what to say; the host does so.
type candidacy struct {
	Candidate   replica.Candidate
	CandidateAt time.Time
	asks        bool                                // a leader has named it over the present link
	asked       time.Time                           // where none has: when the link was lost over which one had
	beyond      replica.Position                    // what was committed when the candidate, or one that lapsed since, was named
	waitsAt     time.Time                           // when the first of those was
	heardAt     replica.Step                        // how far ranks here were then
	Answered    map[replica.Part]bool               // parts pinned and reported for candidate
	passed      map[replica.Rank]replica.Generation // ranks that said Passed to candidate; those that stand below it: with what as the newest they hold
}

func newCandidacy() candidacy {
	return candidacy{Answered: map[replica.Part]bool{}, passed: map[replica.Rank]replica.Generation{}}
}

// obey takes a newer candidate, which nothing was answered to yet.
func (c *candidacy) obey(n replica.Candidate, committed replica.Position, now time.Time, furthest replica.Step) {
	if c.waitsAt.IsZero() || c.beyond != committed {
		c.beyond, c.waitsAt = committed, now
	}
	c.Candidate, c.CandidateAt, c.heardAt, c.asks = n, now, furthest, true
	c.repeat()
}

// Unlinked follows the end of a link, or the beginning of the next.
func (c *candidacy) Unlinked(now time.Time) {
	if c.asks {
		c.asks, c.asked = false, now
	}
}

// unasked is for how long no leader has asked for the candidate; 0: one does, or there is none.
func (c *candidacy) unasked(now time.Time) time.Duration {
	if c.Candidate.N == 0 || c.asks {
		return 0
	}
	return now.Sub(c.asked)
}

// waitsFrom is since when the next commit waits. It counts on through candidates that lapse: where a rank finds no place for one, the leader
// names another, and each wait for itself may be short.
func (c *candidacy) waitsFrom(committed replica.Position) time.Time {
	if c.beyond != committed { // the candidate came before the news of the commit
		return c.CandidateAt
	}
	return c.waitsAt
}

// repeat has everything answered again: a leader that was linked anew has no answer of this node.
func (c *candidacy) repeat() {
	clear(c.Answered)
	clear(c.passed)
}

// awaited tells whether there is a candidate that the leader of the job waits for.
func (c *candidacy) awaited(job *replica.Job) bool { return room.Awaited(c.Candidate, job) }

// outdated tells whether a copy is pinned for a candidate of another generation. One that the next leader names again keeps its pin until it is
// pinned for that.
func (c *candidacy) outdated(l holding.Copy) bool {
	return l.Info.PinN != 0 && l.Info.Generation != c.Candidate.Generation
}

// goesOnWith is the generation that a new leader is to name again: that of the candidate, or where this daemon has heard of none the newest that the
// daemon before it has pinned. Zero: nothing waits for a commit.
func (c *candidacy) goesOnWith(job *replica.Job, parts []holding.Copy) (g replica.Generation) {
	if c.Candidate.N != 0 {
		if c.awaited(job) {
			g = c.Candidate.Generation
		}
		return g
	}
	for _, l := range parts {
		if p := l.Info.Generation; l.Info.PinN != 0 && p.Epoch == job.Epoch && p.Step > job.Position.Step && p.Compare(g) > 0 {
			g = p
		}
	}
	return g
}

// owes tells whether a copy is to be pinned for the candidate and reported.
func (c *candidacy) owes(l holding.Copy) bool {
	return l.Info.Generation == c.Candidate.Generation && l.Held.Part.Kind != replica.FrozenPart && !c.Answered[pinKey(l)] && l.Whole()
}

// pins reports copies that were pinned. furthest is how far the ranks here are by now.
func (c *candidacy) pins(by replica.Node, fresh []replica.Held, furthest replica.Step) replica.Pinned {
	n := c.Candidate
	return replica.Pinned{Job: n.Job, Term: n.Term, N: n.N, Generation: n.Generation, Holder: by.Holder(), Session: by.Session, Parts: fresh, Heard: c.heardAt, Live: furthest}
}

// words are what an arena tells of its rank.
type words interface {
	Step() replica.Word
	Holds() []replica.Generation
	Misses(replica.Generation) bool
}

// passes reports that a rank has passed the candidate, or stands below it; false: there is nothing new to report of it. A rank that stands
// makes no further step for now.
func (c *candidacy) passes(job *replica.Job, by replica.Node, r replica.Rank, a words, stands bool) (p replica.Passed, due bool) {
	n := c.Candidate
	told, said := c.passed[r]
	if said && told.IsZero() {
		return p, false
	}
	var newest replica.Generation
	if !PassedBy(a, n.Generation) {
		if newest = newestBelow(a, stands, job.Position.Step, n.Generation); newest.IsZero() || newest == told {
			return p, false // what it holds with two slots comes and goes
		}
	}
	c.passed[r] = newest
	return replica.Passed{Job: n.Job, Term: n.Term, N: n.N, Holder: by.Holder(), Session: by.Session, Rank: r, Live: a.Step().Generation(), Holds: a.Holds(), Heard: c.heardAt}, true
}

// pinKey tells two ranks' copies of one group part on this node apart: each is a vote.
func pinKey(l holding.Copy) replica.Part {
	if l.Held.Part.Kind == replica.ReplicatedPart && !l.Held.Mirror {
		return replica.Part{Kind: 0x80, Index: uint32(l.Held.Rank)}
	}
	return l.Held.Part
}

// PassedBy tells whether a rank is beyond generation g and its arena lacks, and will not get, one of g's two parts. The
// private part is copied at step_enter(S), and step_enter(S+1) waits for the copy of S, so a live step beyond g's means that
// both captures are over.
func PassedBy(a words, g replica.Generation) bool {
	live := a.Step()
	if live.Epoch() != g.Epoch || live.Step() <= g.Step {
		return false
	}
	return a.Misses(g)
}

// newestBelow is the newest generation that a rank holds whole and that is not committed, if the rank has left, or stands still on
// purpose, before generation g: the leader need not wait for it to come there. Zero: it moves, or there is nothing to take in its stead.
func newestBelow(a words, stands bool, committed replica.Step, g replica.Generation) (newest replica.Generation) {
	live := a.Step()
	if !stands || live.Phase() != replica.Idle || live.Epoch() != g.Epoch || live.Step() >= g.Step {
		return newest
	}
	for _, held := range a.Holds() {
		if held.Epoch == g.Epoch && held.Step > committed {
			newest = held // holds are in order
		}
	}
	return newest
}
