package lock

import (
	"slices"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// heard is what the nodes report to a new leader before it names its first candidate of an open job. A candidate that an earlier leader named
// may be pinned, or on its way to the mirrors: a new one would end those pushes, and a large state would never be committed where leaders
// change faster than it is sent. So the new leader names that candidate again, under its own (term, n).
//
// A commit needs an answer from the node of each rank. So nothing is lost by waiting for their reports. Limit ends the wait all the same.
type heard struct {
	epoch replica.Epoch
	of    map[replica.NodeName]replica.NodeReport
	limit bool // the wait is over
}

// Listen has the committer name no candidate of an open job before the nodes of all its ranks have reported, or Limit is called. It comes before
// the first Job. A job that is not open then, or whose epoch changes, has no candidate to go on with.
func (c *Committer) Listen() {
	if !planted.Anew {
		c.heard = &heard{of: map[replica.NodeName]replica.NodeReport{}}
	}
}

// Limit ends the wait for the nodes' reports.
func (c *Committer) Limit() []Effect {
	if c.heard == nil || c.job == nil {
		return nil
	}
	c.heard.limit = true
	return c.next()
}

// Reported takes a node's account of the job: how far its ranks are and, while the committer listens, which candidate it knows. Answers to a candidate say
// the former too, but while a large state is on its way to the mirrors nobody answers anything: a candidate that was named by what they said before
// that was passed, and by how much went for what the news takes, so that the next one lay as many steps ahead again.
func (c *Committer) Reported(r replica.NodeReport) []Effect {
	if c.job == nil || r.Job != c.job.ID || !c.counts(r.Holder, r.Session) {
		return nil
	}
	for _, rr := range r.Ranks {
		if rr.Live.Epoch() == c.job.Epoch && int(rr.Rank) < len(c.job.Ranks) && c.job.Ranks[rr.Rank].Incarnation == rr.Incarnation && rr.Live.Made() <= replica.MaxStep {
			c.lead.sees(rr.Live.Made())
		}
	}
	if c.heard == nil || r.Epoch != c.job.Epoch {
		return nil
	}
	c.heard.of[r.Holder.Node] = r
	return c.next()
}

// follow ends the listening where the job has nothing to go on with.
func (h *heard) follow(j *replica.Job) *heard {
	if h == nil || j.Phase != replica.Open || h.epoch != 0 && h.epoch != j.Epoch {
		return nil
	}
	h.epoch = j.Epoch
	return h
}

// waits tells whether some node with a rank has not reported yet, and is waited for.
func (h *heard) waits(j *replica.Job) bool { return len(h.silent(j, 1)) > 0 }

// silent lists such nodes, at most so many.
func (h *heard) silent(j *replica.Job, most int) (nodes []replica.NodeName) {
	if h == nil || h.limit {
		return nil
	}
	for _, claim := range j.Ranks {
		if len(nodes) == most {
			break
		}
		if _, ok := h.of[claim.Node]; claim.Incarnation != 0 && !ok && !slices.Contains(nodes, claim.Node) {
			nodes = append(nodes, claim.Node)
		}
	}
	return nodes
}

// candidate is the newest candidate of an earlier leader that can still be had, by what was reported: of each rank both parts are sealed, or the
// rank has not passed it. Zero: there is none.
func (h *heard) candidate(j *replica.Job) (newest replica.Generation) {
	sealed := map[sealedBy]bool{}
	live := make([]replica.Generation, len(j.Ranks))
	var named []replica.Generation
	for _, r := range h.of {
		if g := r.Candidate; g.Epoch == j.Epoch && g.Step > j.Position.Step && !slices.Contains(named, g) {
			named = append(named, g)
		}
		for _, p := range r.Parts {
			if !p.Mirror {
				sealed[sealedBy{p.Rank, p.Part.Kind, p.Generation}] = true
			}
		}
		for _, rr := range r.Ranks {
			if int(rr.Rank) < len(live) && j.Ranks[rr.Rank].Node == r.Holder.Node && j.Ranks[rr.Rank].Incarnation == rr.Incarnation {
				live[rr.Rank] = rr.Live.Generation()
			}
		}
	}
	for _, g := range named {
		lost := false
		for r, at := range live {
			passed := at.Epoch == g.Epoch && at.Step > g.Step
			lost = lost || passed && !(sealed[sealedBy{replica.Rank(r), replica.ReplicatedPart, g}] && sealed[sealedBy{replica.Rank(r), replica.PrivatePart, g}])
		}
		if !lost && g.Compare(newest) > 0 {
			newest = g
		}
	}
	return newest
}

// common is the newest generation beyond the committed one that each rank has sealed, by what all of their nodes reported. Zero: there is none.
func (h *heard) common(j *replica.Job) (newest replica.Generation) {
	holds := map[replica.Generation]map[sealedBy]bool{}
	for _, r := range h.of {
		for _, p := range r.Parts {
			if g := p.Generation; !p.Mirror && g.Epoch == j.Epoch && g.Step > j.Position.Step && p.Part.Kind != replica.FrozenPart {
				if holds[g] == nil {
					holds[g] = map[sealedBy]bool{}
				}
				holds[g][sealedBy{p.Rank, p.Part.Kind, g}] = true
			}
		}
	}
	for g, by := range holds {
		if len(by) == 2*len(j.Ranks) && g.Compare(newest) > 0 {
			newest = g
		}
	}
	return newest
}

// sealedBy is a part that a rank has sealed.
type sealedBy struct {
	rank       replica.Rank
	kind       replica.PartKind
	generation replica.Generation
}

// live is the newest step that a rank was reported at.
func (h *heard) live(e replica.Epoch) (newest replica.Step) {
	for _, r := range h.of {
		for _, rr := range r.Ranks {
			if at := rr.Live.Generation(); at.Epoch == e {
				newest = max(newest, at.Step)
			}
		}
	}
	return newest
}
