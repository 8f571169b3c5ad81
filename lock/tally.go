package lock

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// tally counts the pins of the present candidate and returns the command they justify: the commit once every group and
// every private part is complete, the dispute once a group's producers differ, else nil. It notes who is waited for.
func (c *Committer) tally() replica.Command {
	c.waits(nil)
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

// answer is one node's pins of one part.
type answer struct {
	holder replica.Holder
	held   replica.Held
}

// answered sorts the pins that count by part, in the order of nodes.
func (c *Committer) answered() map[replica.Part][]answer {
	by := map[replica.Part][]answer{}
	for _, p := range c.pins {
		if !c.counts(p.holder, p.session) {
			continue
		}
		for _, h := range p.parts {
			by[h.Part] = append(by[h.Part], answer{p.holder, h})
		}
	}
	for _, a := range by {
		slices.SortFunc(a, func(x, y answer) int { return strings.Compare(string(x.holder.Node), string(y.holder.Node)) })
	}
	return by
}

// group counts one group: every live member must have pinned, with one root; mirrors hold but never vote, and a digest made
// by a daemon in a dead rank's name neither (protocol section 5.3).
func (c *Committer) group(g replica.GroupID, members []replica.Rank, by map[replica.Part][]answer) (replica.PartRoot, *replica.ReportDispute, bool) {
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
		c.awaits(replica.Missing{Part: part.Part, Node: c.job.Ranks[r].Node, Rank: r}, "rank %d on node %s: %v not pinned", r, c.job.Ranks[r].Node, part.Part)
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
				c.waitsFor("node %s: its %v has another root", a.holder.Node, part.Part)
				ok = false
			}
		}
	}
	return part, nil, ok
}

// made is by rank the first answer about its own copy, from the node that runs it.
func (c *Committer) made(answers []answer) map[replica.Rank]int {
	out := make(map[replica.Rank]int, len(answers))
	for i, a := range answers {
		r := a.held.Rank
		if _, known := out[r]; !known && int(r) < len(c.job.Ranks) && produced(a, r, c.job.Ranks[r]) {
			out[r] = i
		}
	}
	return out
}

// produced tells whether the answer is about rank r's own copy, from the node that runs it.
func produced(a answer, r replica.Rank, claim replica.Claimed) bool {
	return !a.held.Mirror && a.held.Rank == r && a.holder.Node == claim.Node
}

func differ(votes []replica.Vote) bool {
	return slices.ContainsFunc(votes, func(v replica.Vote) bool { return v.Root != votes[0].Root })
}

// dispute reports differing roots once, as soon as the vote is decided: a root has a majority of the group's live members,
// or all of them have voted.
func (c *Committer) dispute(g replica.GroupID, votes []replica.Vote, live int) *replica.ReportDispute {
	count := map[replica.Digest]int{}
	decided := len(votes) == live
	for _, v := range votes {
		count[v.Root]++
		decided = decided || 2*count[v.Root] > live
	}
	c.waitsFor("group %d: its ranks report different roots", g)
	if !decided || slices.Contains(c.disputed, c.candidate.Generation) {
		return nil
	}
	c.disputed = append(c.disputed, c.candidate.Generation)
	return &replica.ReportDispute{Job: c.job.ID, Epoch: c.job.Epoch, Dispute: replica.Dispute{
		Group: g, Generation: c.candidate.Generation, Votes: votes, Suspects: Suspects(votes),
	}}
}

// private counts one rank's private part: its own node's root, and copies of that.
func (c *Committer) private(r replica.Rank, by map[replica.Part][]answer) (replica.PartRoot, bool) {
	part := replica.PartRoot{Part: replica.OfRank(r)}
	answers, claim := by[part.Part], c.job.Ranks[r]
	i := slices.IndexFunc(answers, func(a answer) bool { return produced(a, r, claim) })
	if i < 0 {
		c.awaits(replica.Missing{Part: part.Part, Node: claim.Node, Rank: r}, "rank %d on node %s: %v not pinned", r, claim.Node, part.Part)
		return part, false
	}
	part.Root = answers[i].held.Root
	return part, c.gather(&part, answers, c.job.Mirrors[r])
}

// maxWaits is how many of the things that a commit waits for are said one by one: it may be each part of thousands of ranks.
const maxWaits = 64

// waits begins to note anew what a commit waits for.
func (c *Committer) waits(why []string) {
	c.waiting, c.unsaid, c.awaited, c.missing = why, 0, nil, nil
	clear(c.missed)
}

// waitsFor notes what the commit waits for.
func (c *Committer) waitsFor(format string, args ...any) {
	if len(c.waiting) >= maxWaits {
		c.unsaid++
		return
	}
	c.waiting = append(c.waiting, fmt.Sprintf(format, args...))
}

// awaits notes whom the commit waits for, and for what.
func (c *Committer) awaits(m replica.Missing, format string, args ...any) {
	c.waitsFor(format, args...)
	if len(c.missing) < maxWaits {
		c.missing = append(c.missing, m)
	}
	if !c.missed[m.Node] {
		c.missed[m.Node] = true
		c.awaited = append(c.awaited, m.Node)
	}
}

// gather names the distinct nodes that hold the part with its root, and tells whether they are enough; mirrors are those that should.
func (c *Committer) gather(part *replica.PartRoot, answers []answer, mirrors []replica.NodeName) bool {
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
			c.awaits(replica.Missing{Part: part.Part, Node: n, Mirror: true, Rank: makerOf(part.Part), Holders: nodesOf(part.Holders)},
				"%v: %d of %d copies: not pinned by its mirror, node %s", part.Part, len(part.Holders), c.job.Copies, n)
		}
	}
	if !named {
		c.waitsFor("%v: %d of %d copies, and no node to mirror it", part.Part, len(part.Holders), c.job.Copies)
	}
	return false
}

// makerOf is the rank that makes a private part; 0 of others.
func makerOf(p replica.Part) replica.Rank {
	if p.Kind == replica.PrivatePart {
		return replica.Rank(p.Index)
	}
	return 0
}

func nodesOf(holders []replica.Holder) (names []replica.NodeName) {
	for _, h := range holders {
		names = append(names, h.Node)
	}
	return names
}

// possibleCopies is copies(p): min_copies, or as many nodes as can hold a part where they are fewer (protocol section 5.2):
// for a private part its rank's node and mirrors, for a replicated part its members' nodes and mirrors.
func (c *Committer) possibleCopies() int {
	judged := make(map[replica.NodeName]bool)
	able := func(n replica.NodeName) bool {
		ok, known := judged[n]
		if !known {
			ok = checkHolder(c.job, c.node, replica.Holder{Node: n, Incarnation: c.node[n].Incarnation}) == nil
			judged[n] = ok
		}
		return ok
	}
	n := c.job.Options.MinCopies
	var nodes []replica.NodeName // that can hold the part at hand; no more are looked for than count
	can := func(name replica.NodeName) {
		if len(nodes) < n && !slices.Contains(nodes, name) && able(name) {
			nodes = append(nodes, name)
		}
	}
	for r, claim := range c.job.Ranks {
		nodes = nodes[:0]
		can(claim.Node)
		for _, m := range c.job.Mirrors[r] {
			can(m)
		}
		n = min(n, len(nodes))
	}
	for g, members := range c.job.Layout.Members() {
		nodes = nodes[:0]
		for _, r := range members {
			can(c.job.Ranks[r].Node)
		}
		for _, m := range c.job.GroupMirrors[g] {
			can(m)
		}
		n = min(n, len(nodes))
	}
	return max(n, 1)
}
