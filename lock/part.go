package lock

import (
	"cmp"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// part judges one part by all that was answered about it, and notes who is waited for. Invariant: its answers are in the order of nodes afterwards,
// those of one node as they came.
func (t *tally) part(i int, w *waits) (replica.PartRoot, bool) {
	p := &t.parts[i]
	t.looked += len(p.answers)
	slices.SortFunc(p.answers, func(x, y answer) int {
		return cmp.Or(strings.Compare(string(x.holder.Node), string(y.holder.Node)), cmp.Compare(x.n, y.n))
	})
	if groups := len(t.members); i >= groups {
		return t.private(replica.Rank(i-groups), p.answers, w)
	}
	return t.group(replica.GroupID(i), p.answers, w)
}

// group counts one group: every live member must have pinned, with one root; mirrors hold but never vote, and a digest made
// by a daemon in a dead rank's name neither (protocol section 5.3).
func (t *tally) group(g replica.GroupID, answers []answer, w *waits) (replica.PartRoot, bool) {
	part := replica.PartRoot{Part: replica.OfGroup(g)}
	votes, missing := t.votes(g, answers)
	if !nondeterministic(t.job, g) && differ(votes) {
		w.say("group %d: its ranks report different roots", g)
		return part, false
	}
	for _, r := range missing {
		node := t.job.Ranks[r].Node
		w.await(replica.Missing{Part: part.Part, Node: node, Rank: r}, "rank %d on node %s: %v not pinned", r, node, part.Part)
	}
	switch {
	case len(votes) > 0: // in order of rank: of a non-deterministic group the lowest rank's root counts
		part.Root = votes[0].Root
	case len(answers) > 0:
		part.Root = answers[0].held.Root
	}
	ok := len(missing) == 0 && t.gather(&part, answers, t.job.GroupMirrors[g], w)
	if !nondeterministic(t.job, g) {
		for _, a := range answers {
			if !a.held.Mirror && a.held.Root != part.Root {
				w.say("node %s: its %v has another root", a.holder.Node, part.Part)
				ok = false
			}
		}
	}
	return part, ok
}

// votes are the roots that the live members of a group report, in the order of ranks, and who has not answered.
func (t *tally) votes(g replica.GroupID, answers []answer) (votes []replica.Vote, missing []replica.Rank) {
	by := make(map[replica.Rank]int, len(answers)) // the first answer about a rank's own copy
	for i, a := range answers {
		r := a.held.Rank
		if _, known := by[r]; !known && int(r) < len(t.job.Ranks) && produced(a, r, t.job.Ranks[r]) {
			by[r] = i
		}
	}
	for _, r := range t.members[g] {
		i, answered := by[r]
		switch {
		case !t.live[r]:
		case !answered:
			missing = append(missing, r)
		case !answers[i].held.DaemonMade:
			votes = append(votes, replica.Vote{Rank: r, Root: answers[i].held.Root})
		}
	}
	return votes, missing
}

// produced tells whether the answer is about rank r's own copy, from the node that runs it.
func produced(a answer, r replica.Rank, claim replica.Claimed) bool {
	return !a.held.Mirror && a.held.Rank == r && a.holder.Node == claim.Node
}

func differ(votes []replica.Vote) bool {
	return slices.ContainsFunc(votes, func(v replica.Vote) bool { return v.Root != votes[0].Root })
}

// private counts one rank's private part: its own node's root, and copies of that.
func (t *tally) private(r replica.Rank, answers []answer, w *waits) (replica.PartRoot, bool) {
	part := replica.PartRoot{Part: replica.OfRank(r)}
	claim := t.job.Ranks[r]
	i := slices.IndexFunc(answers, func(a answer) bool { return produced(a, r, claim) })
	if i < 0 {
		w.await(replica.Missing{Part: part.Part, Node: claim.Node, Rank: r}, "rank %d on node %s: %v not pinned", r, claim.Node, part.Part)
		return part, false
	}
	part.Root = answers[i].held.Root
	return part, t.gather(&part, answers, t.job.Mirrors[r], w)
}

// gather names the distinct nodes that hold the part with its root, and tells whether they are enough; mirrors are those that should.
func (t *tally) gather(part *replica.PartRoot, answers []answer, mirrors []replica.NodeName, w *waits) bool {
	part.Holders = make([]replica.Holder, 0, min(len(answers), max(t.job.Copies, len(mirrors)+1)))
	for _, a := range answers { // in the order of nodes
		if n := len(part.Holders); a.held.Root == part.Root && (n == 0 || part.Holders[n-1] != a.holder) {
			part.Holders = append(part.Holders, a.holder)
		}
	}
	if len(part.Holders) >= t.job.Copies {
		return true
	}
	if w == nil {
		return false
	}
	named := false
	for _, n := range mirrors {
		if !slices.ContainsFunc(part.Holders, func(h replica.Holder) bool { return h.Node == n }) {
			named = true
			w.await(replica.Missing{Part: part.Part, Node: n, Mirror: true, Rank: makerOf(part.Part), Holders: nodesOf(part.Holders)},
				"%v: %d of %d copies: not pinned by its mirror, node %s", part.Part, len(part.Holders), t.job.Copies, n)
		}
	}
	if !named {
		w.say("%v: %d of %d copies, and no node to mirror it", part.Part, len(part.Holders), t.job.Copies)
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
