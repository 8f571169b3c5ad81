package lock

import (
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// scratch is the tally's dumb twin: it looks at all pins for all parts, each time.
type scratch struct {
	*Committer
	w *waits
}

func scratchOf(c *Committer) *scratch {
	return &scratch{c, &waits{named: map[replica.NodeName]bool{}}}
}

// tally counts the pins of the present candidate and returns the command they justify: the commit once every group and
// every private part is complete, the dispute once a group's producers differ, else nil. It notes who is waited for.
func (c *scratch) tally() replica.Command {
	holders := c.answered()
	parts := make([]replica.PartRoot, 0, len(c.job.GroupGeometry)+len(c.job.Ranks))
	complete := true
	for g, members := range c.job.Layout.Members() {
		part, dispute, ok := c.group(replica.GroupID(g), members, holders)
		if dispute != nil {
			return *dispute
		}
		parts, complete = append(parts, part), complete && ok
	}
	for r := range c.job.Ranks {
		part, ok := c.private(replica.Rank(r), holders)
		parts, complete = append(parts, part), complete && ok
	}
	if !complete || c.lapsed {
		return nil
	}
	return replica.Commit{Job: c.job.ID, Position: c.candidate.Position, Generation: c.candidate.Generation, Parts: parts, Write: IsMultiple(c.job, c.candidate.Position.Step) && c.job.Writer == nil}
}

// answered sorts the pins that count by part, in the order of nodes.
func (c *scratch) answered() map[replica.Part][]answer {
	by := map[replica.Part][]answer{}
	for _, p := range c.pins {
		if !c.counts(p.holder, p.session) {
			continue
		}
		for _, h := range p.parts {
			by[h.Part] = append(by[h.Part], answer{holder: p.holder, held: h})
		}
	}
	for _, a := range by {
		slices.SortStableFunc(a, func(x, y answer) int { return strings.Compare(string(x.holder.Node), string(y.holder.Node)) })
	}
	return by
}

// group counts one group: every live member must have pinned, with one root; mirrors hold but never vote, and a digest made
// by a daemon in a dead rank's name neither (protocol section 5.3).
func (c *scratch) group(g replica.GroupID, members []replica.Rank, by map[replica.Part][]answer) (replica.PartRoot, *replica.ReportDispute, bool) {
	part := replica.PartRoot{Part: replica.OfGroup(g)}
	answers := by[part.Part]
	var votes []replica.Vote
	var missing []replica.Rank
	live, made := 0, c.made(answers)
	for _, r := range members {
		claim := c.job.Ranks[r]
		if claim.Incarnation == 0 || ClaimFaulted(c.job, r, claim, false) {
			continue
		}
		live++
		i, answered := made[r]
		if !answered {
			missing = append(missing, r)
		} else if !answers[i].held.DaemonMade {
			votes = append(votes, replica.Vote{Rank: r, Root: answers[i].held.Root})
		}
	}
	if !nondeterministic(c.job, g) && differ(votes) {
		return part, c.dispute(g, votes, live), false
	}
	for _, r := range missing {
		c.w.await(replica.Missing{Part: part.Part, Node: c.job.Ranks[r].Node, Rank: r}, "rank %d on node %s: %v not pinned", r, c.job.Ranks[r].Node, part.Part)
	}
	switch {
	case len(votes) > 0: // in order of rank: of a non-deterministic group the lowest rank's root counts
		part.Root = votes[0].Root
	case len(answers) > 0:
		part.Root = answers[0].held.Root
	}
	ok := len(missing) == 0 && c.gather(&part, answers, c.job.GroupMirrors[g])
	if !nondeterministic(c.job, g) {
		for _, a := range answers {
			if !a.held.Mirror && a.held.Root != part.Root {
				c.w.say("node %s: its %v has another root", a.holder.Node, part.Part)
				ok = false
			}
		}
	}
	return part, nil, ok
}

// made is by rank the first answer about its own copy, from the node that runs it.
func (c *scratch) made(answers []answer) map[replica.Rank]int {
	out := make(map[replica.Rank]int, len(answers))
	for i, a := range answers {
		r := a.held.Rank
		if _, known := out[r]; !known && int(r) < len(c.job.Ranks) && produced(a, r, c.job.Ranks[r]) {
			out[r] = i
		}
	}
	return out
}

// dispute reports differing roots once, as soon as the vote is decided: a root has a majority of the group's live members,
// or all of them have voted.
func (c *scratch) dispute(g replica.GroupID, votes []replica.Vote, live int) *replica.ReportDispute {
	count := map[replica.Digest]int{}
	decided := len(votes) == live
	for _, v := range votes {
		count[v.Root]++
		decided = decided || 2*count[v.Root] > live
	}
	c.w.say("group %d: its ranks report different roots", g)
	if !decided || slices.Contains(c.disputed, c.candidate.Generation) {
		return nil
	}
	return &replica.ReportDispute{Job: c.job.ID, Epoch: c.job.Epoch, Dispute: replica.Dispute{
		Group: g, Generation: c.candidate.Generation, Votes: votes, Suspects: Suspects(votes),
	}}
}

// private counts one rank's private part: its own node's root, and copies of that.
func (c *scratch) private(r replica.Rank, by map[replica.Part][]answer) (replica.PartRoot, bool) {
	part := replica.PartRoot{Part: replica.OfRank(r)}
	answers, claim := by[part.Part], c.job.Ranks[r]
	i := slices.IndexFunc(answers, func(a answer) bool { return produced(a, r, claim) })
	if i < 0 {
		c.w.await(replica.Missing{Part: part.Part, Node: claim.Node, Rank: r}, "rank %d on node %s: %v not pinned", r, claim.Node, part.Part)
		return part, false
	}
	part.Root = answers[i].held.Root
	return part, c.gather(&part, answers, c.job.Mirrors[r])
}

// gather names the distinct nodes that hold the part with its root, and tells whether they are enough; mirrors are those that should.
func (c *scratch) gather(part *replica.PartRoot, answers []answer, mirrors []replica.NodeName) bool {
	for _, a := range answers { // in the order of nodes
		if n := len(part.Holders); a.held.Root == part.Root && (n == 0 || part.Holders[n-1] != a.holder) {
			part.Holders = append(part.Holders, a.holder)
		}
	}
	if len(part.Holders) >= c.job.Copies {
		return true
	}
	named := false
	for _, n := range mirrors {
		if !slices.ContainsFunc(part.Holders, func(h replica.Holder) bool { return h.Node == n }) {
			named = true
			c.w.await(replica.Missing{Part: part.Part, Node: n, Mirror: true, Rank: makerOf(part.Part), Holders: nodesOf(part.Holders)},
				"%v: %d of %d copies: not pinned by its mirror, node %s", part.Part, len(part.Holders), c.job.Copies, n)
		}
	}
	if !named {
		c.w.say("%v: %d of %d copies, and no node to mirror it", part.Part, len(part.Holders), c.job.Copies)
	}
	return false
}
