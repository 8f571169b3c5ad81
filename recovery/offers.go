package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// launcherPatience is how long a launcher that has just lost its process, or has just been started with ranks of its own,
// may take to say what it can run, before its ranks are offered elsewhere.
const launcherPatience = time.Second

// startRetry is how long after a process ended before it attached everybody is asked again; twice as long each time, up to eight times.
// What ends at once would be started as fast as it ends, and what a passing trouble ended (a file system that was away) gets time.
const startRetry = time.Second

// offering is the search for a process for one vacant rank.
type offering struct {
	expect replica.Incarnation
	since  time.Duration    // when the vacancy was first seen
	node   replica.NodeName // the outstanding offer's; empty: none
	at     time.Duration
	taken  bool // its process ran, or runs
	own    bool // and was not asked for by this leader
	tried  []replica.NodeName
	again  time.Duration // from when on those that were tried have another turn
	failed int           // processes that ended before they attached
}

// withdraw forgets offers to a node whose stream is lost: they may not have arrived.
func (l *Leader) withdraw(n replica.NodeName) {
	for _, o := range l.offers {
		if o.node == n {
			o.node, o.taken = "", false
		}
	}
}

// fillRanks offers every vacant rank to one node at a time, until somebody claims it.
func (l *Leader) fillRanks() {
	in := l.input()
	var idle []replica.Rank
	for r := range l.job.Ranks {
		rank := replica.Rank(r)
		if !vacant(l.job, rank) {
			delete(l.offers, rank)
			continue
		}
		o := l.offers[rank]
		if o == nil || o.expect != l.job.Ranks[r].Incarnation {
			o = &offering{expect: l.job.Ranks[r].Incarnation, since: l.now, again: l.now + l.t.Claim}
			l.offers[rank] = o
		}
		if !l.offer(&in, rank, o) {
			idle = append(idle, rank)
		}
	}
	if len(idle) > 0 {
		l.note("vacant", fmt.Sprintf("no node offers a process for ranks %v", idle), nil)
	}
}

// offer makes sure that an offer of the rank is out; false if there is nobody to make it to.
func (l *Leader) offer(in *PlanInput, r replica.Rank, o *offering) bool {
	if o.node == "" {
		o.node, o.at = l.underWay(in, r, o), l.now
		o.own = o.node != ""
	}
	if o.node != "" {
		patience := l.t.Claim
		switch _, connected := in.current(o.node); {
		case starting(in, o.node, r):
			o.taken, patience = true, l.t.Start+l.t.Claim // its process runs: it imports, or builds its model; its node kills it after Start
		case o.taken && connected && o.own && o.expect == 0:
			*o = offering{since: l.now, again: l.now + l.t.Claim} // its launcher starts it again while the job opens
			l.wakeAt(l.now + launcherPatience)
			return true
		case o.taken && connected:
			patience = 0 // its process ended
			o.again = l.now + startRetry<<min(o.failed, 3)
			o.failed++
		}
		if l.now < o.at+patience {
			l.wakeAt(o.at + patience)
			return true
		}
		o.tried, o.node, o.taken, o.own = append(o.tried, o.node), "", false, false
	}
	n, ok := l.pickNode(in, r, o)
	if !ok && len(o.tried) > 0 && l.now >= o.again {
		o.tried = nil // everybody has had a turn
		n, ok = l.pickNode(in, r, o)
	}
	if !ok {
		l.wakeAt(o.since + launcherPatience)
		l.wakeAt(o.again)
		return l.now < o.since+launcherPatience || o.failed > 0 && l.now < o.again || l.linksSoon(in, l.job.Ranks[r].Node)
	}
	o.node, o.at = n, l.now
	l.wakeAt(l.now + l.t.Claim)
	l.out = append(l.out, Offer{Rank: r, Expect: o.expect, Node: n})
	return true
}

// pickNode picks the node to offer a rank to: the same node while its process alone is lost; then, in another failure domain
// than the rest of its group where one is free, a spare that holds the shard, any spare, any node.
func (l *Leader) pickNode(in *PlanInput, r replica.Rank, o *offering) (replica.NodeName, bool) {
	home, rung := l.job.Ranks[r], rungOf(l.job, r)
	if home.Incarnation != 0 && rung == Process && !slices.Contains(o.tried, home.Node) && l.now < o.since+l.t.Claim {
		_, connected := in.current(home.Node)
		switch {
		case !l.admissible(home.Node):
		case connected && l.free(in, home.Node) > 0:
			return home.Node, true
		case connected && l.now < o.since+launcherPatience, l.linksSoon(in, home.Node):
			return "", false
		}
	}
	first := home.Incarnation == 0
	if first && l.now < o.since+launcherPatience {
		return "", false
	}
	best, found := seat{}, false
	for n := range in.Nodes {
		rep, connected := in.current(n)
		if !connected || !l.admissible(n) || l.free(in, n) < 1 || slices.Contains(o.tried, n) {
			continue
		}
		if first && rep.Spare && l.now < o.since+l.t.Claim {
			continue // spares take only what was lost elsewhere, or what nobody else takes
		}
		if l.barred(in, r, n) {
			continue
		}
		if s := l.seat(in, r, n, rep); !found || s.better(best) {
			best, found = s, true
		}
	}
	return best.node, found
}

// linksSoon tells whether a node's stream was lost, or its leader, so short a time ago that it may just not have linked again: a
// process for a rank may be on its way there, and another one elsewhere would be in its way.
func (l *Leader) linksSoon(in *PlanInput, n replica.NodeName) bool {
	_, connected := in.current(n)
	until := max(l.began, l.gone[n]) + launcherPatience
	if _, known := l.nodes[n]; !known || connected || !l.admissible(n) || l.now >= until {
		return false
	}
	l.wakeAt(until)
	return true
}

// underWay is a node on which a process runs for a vacant rank without having been asked for by this leader: its launcher began by
// itself, or an earlier leader asked. A second process elsewhere would be in its way, and a spare might take the rank from it.
func (l *Leader) underWay(in *PlanInput, r replica.Rank, o *offering) replica.NodeName {
	for _, n := range slices.Sorted(maps.Keys(in.Nodes)) {
		if starting(in, n, r) && l.admissible(n) && !slices.Contains(o.tried, n) && !l.barred(in, r, n) {
			return n
		}
	}
	return ""
}

// barred tells whether a rank must not come back to the life of the node that it was lost on.
func (l *Leader) barred(in *PlanInput, r replica.Rank, n replica.NodeName) bool {
	home := l.job.Ranks[r]
	return rungOf(l.job, r) >= Elsewhere && n == home.Node && in.Nodes[n].Incarnation == home.NodeIncarnation
}

// admissible tells whether a node may be given ranks: nothing is held against it.
func (l *Leader) admissible(n replica.NodeName) bool {
	return !nodeFaulted(l.job, replica.Holder{Node: n, Incarnation: l.nodes[n].Incarnation}) && !slices.Contains(l.job.Quarantined, n)
}

// free is how many processes a node could still start beyond those it has been asked for.
func (l *Leader) free(in *PlanInput, n replica.NodeName) int {
	free := in.Reports[n].Offers
	for r, o := range l.offers {
		if o.node == n && !starting(in, n, r) { // one that was taken up is no longer among the offers of the node
			free--
		}
	}
	return free
}

// starting tells whether a node says that a process runs there for a rank and has not attached yet.
func starting(in *PlanInput, n replica.NodeName, r replica.Rank) bool {
	rep, ok := in.current(n)
	return ok && slices.Contains(rep.Starting, r)
}

// seat is a node as the place for a rank.
type seat struct {
	node   replica.NodeName
	shared int // failure domains in common with the rest of its group
	class  int // 2: a spare that holds the shard, 1: a spare, 0: any
	load   int // ranks of the job that it runs
	weight uint64
}

func (s seat) better(o seat) bool {
	return cmp.Or(cmp.Compare(o.shared, s.shared), cmp.Compare(s.class, o.class), cmp.Compare(o.load, s.load), cmp.Compare(s.weight, o.weight), cmp.Compare(s.node, o.node)) > 0
}

func (l *Leader) seat(in *PlanInput, r replica.Rank, n replica.NodeName, rep replica.NodeReport) seat {
	group := l.job.Layout.Groups[r]
	s := seat{node: n, weight: weigh(l.job.ID, replica.OfRank(r), n)}
	var others []replica.NodeName
	for m, c := range l.job.Ranks {
		rank := replica.Rank(m)
		switch {
		case rank == r || vacant(l.job, rank) && (l.offers[rank] == nil || l.offers[rank].node == ""):
			continue
		case vacant(l.job, rank):
			c.Node = l.offers[rank].node // where it is about to be
		}
		if c.Node == n {
			s.load++
		}
		if l.job.Layout.Groups[m] == group {
			others = append(others, c.Node)
		}
	}
	s.shared = sharedDomains(in.Nodes, in.Nodes[n], others)
	if slices.Contains(others, n) {
		s.shared = 8 // one node is worse than any label
	}
	if rep.Spare {
		s.class = 1
		if slices.ContainsFunc(rep.Parts, func(h replica.Held) bool {
			return h.Part == replica.OfGroup(group) && h.Generation == l.job.Committed
		}) {
			s.class = 2
		}
	}
	return s
}
