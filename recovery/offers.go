package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/plan"
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
	tried  map[replica.NodeName]bool
	again  time.Duration // from when on those that were tried have another turn
	failed int           // processes that ended before they attached
}

// withdraw forgets offers to a node whose stream is lost: they may not have arrived.
func (se *seating) withdraw(n replica.NodeName) {
	for r, o := range se.offers {
		if o.node == n {
			se.known.clocks.End(o.offered(r, n))
			o.node, o.taken = "", false
		}
	}
}

// fillRanks offers every vacant rank to one node at a time, until somebody claims it.
func (se *seating) fillRanks(in *plan.Input) {
	kn := se.known
	s := se.seats(in)
	var idle []replica.Rank
	first := se.turn
	se.turn = 0
	for i := range kn.job.Ranks {
		rank := replica.Rank((int(first) + i) % len(kn.job.Ranks))
		if !kn.job.Vacant(rank) {
			se.drop(s, rank)
			continue
		}
		o := se.offers[rank]
		if expect := kn.job.Ranks[rank].Incarnation; o == nil || o.expect != expect {
			se.drop(s, rank)
			o = &offering{expect: expect, again: kn.now + kn.t.Claim}
			se.offers[rank] = o
		}
		o.since = kn.clocks.Since(kn.now, o.vacant(rank))
		if o.node != "" {
			o.at = kn.clocks.Since(kn.now, o.offered(rank, o.node))
		}
		if !se.offer(in, s, rank, o) {
			idle = append(idle, rank)
		}
	}
	se.short = len(idle)
	if len(idle) > 0 {
		slices.Sort(idle)
		se.outbox.note("vacant", fmt.Sprintf("no node offers a process for ranks %v", plan.RankList(idle))+in.Shortages(), nil)
	}
}

// drop forgets the search for a rank.
func (se *seating) drop(s *seats, r replica.Rank) {
	if o := se.offers[r]; o != nil {
		se.known.clocks.End(o.vacant(r))
		o.withdrawn(&se.known.clocks, r)
		s.release(r, o)
		delete(se.offers, r)
	}
}

// vacant is the clock of a rank's vacancy, offered that of its offer to a node.
func (o *offering) vacant(r replica.Rank) replica.Clock {
	return replica.Clock{Kind: clockVacant, Rank: r, Of: uint64(o.expect)}
}

func (o *offering) offered(r replica.Rank, n replica.NodeName) replica.Clock {
	return replica.Clock{Kind: clockOffered, Rank: r, Node: n, Of: uint64(o.expect)}
}

// withdrawn has each node that the rank was offered to have its time again.
func (o *offering) withdrawn(c *Clocks, r replica.Rank) {
	for n := range o.tried {
		c.End(o.offered(r, n))
	}
	if o.node != "" {
		c.End(o.offered(r, o.node))
	}
	c.endTold(func(k replica.Clock) bool { return k.Kind == clockOffered && k.Rank == r && k.Of == uint64(o.expect) })
}

// offer makes sure that an offer of the rank is out; false if there is nobody to make it to.
func (se *seating) offer(in *plan.Input, s *seats, r replica.Rank, o *offering) bool {
	kn := se.known
	if o.node == "" {
		n := se.underWay(in, s, r, o)
		s.assign(r, o, n)
		o.at = kn.now
		if o.own = n != ""; o.own {
			o.at = kn.clocks.Since(kn.now, o.offered(r, n))
		}
	}
	if o.node != "" {
		patience := kn.bound(AwaitStart)
		switch _, connected := in.Current(o.node); {
		case s.starts(o.node, r):
			// its process runs: it imports, or builds its model; its node kills it after Start
			o.taken, patience = true, kn.bound(AwaitAttach)
			switch {
			case se.roomElsewhere(in, s, r, o):
				patience = 0
			case kn.job.Phase == replica.Opening && !kn.job.Attached:
				return true // nobody waits for it, so its node does not kill it either
			}
		case o.taken && connected && o.own && o.expect == 0:
			o.withdrawn(&kn.clocks, r)
			kn.clocks.End(o.vacant(r))
			s.release(r, o)
			// its launcher starts it again while the job opens
			*o = offering{since: kn.clocks.Since(kn.now, o.vacant(r)), again: kn.now + kn.t.Claim}
			se.outbox.wakeAt(kn.now + launcherPatience)
			return true
		case o.taken && connected:
			patience = 0 // its process ended
			o.again = kn.now + startRetry<<min(o.failed, 3)
			o.failed++
		}
		if kn.now < o.at+patience {
			se.outbox.wakeAt(o.at + patience)
			return true
		}
		if o.tried == nil {
			o.tried = make(map[replica.NodeName]bool)
		}
		o.tried[o.node] = true
		s.release(r, o)
		o.taken, o.own = false, false
	}
	if s.looks >= maxLooks {
		if se.turn == 0 {
			se.turn = r
		}
		se.outbox.wakeAt(kn.now + looksAgain)
		return true
	}
	if heard := kn.began + launcherPatience; o.since < kn.began && kn.now < heard {
		se.outbox.wakeAt(heard) // a process for it may run on a node that has not linked to this leader yet
		return true
	}
	n, ok := se.pickUntried(in, s, r, o)
	if !ok && len(o.tried) > 0 && kn.now >= o.again {
		o.withdrawn(&kn.clocks, r)
		o.tried = nil // everybody has had a turn
		n, ok = se.pickNode(in, s, r, o)
	}
	if !ok {
		se.outbox.wakeAt(o.since + launcherPatience)
		se.outbox.wakeAt(o.again)
		return kn.now < o.since+launcherPatience || o.failed > 0 && kn.now < o.again || se.linksSoon(in, kn.job.Ranks[r].Node)
	}
	s.assign(r, o, n)
	o.at = kn.clocks.Since(kn.now, o.offered(r, n))
	se.outbox.wakeAt(o.at + kn.bound(AwaitStart))
	se.outbox.send(Offer{Rank: r, Expect: o.expect, Node: n})
	return true
}

// pickUntried picks a node that has not had its time for the rank, under this leader or an earlier one.
func (se *seating) pickUntried(in *plan.Input, s *seats, r replica.Rank, o *offering) (replica.NodeName, bool) {
	kn := se.known
	for {
		n, ok := se.pickNode(in, s, r, o)
		if !ok {
			return n, ok
		}
		if at, offered := kn.clocks.before(o.offered(r, n)); !offered || kn.now < at+kn.bound(AwaitStart) {
			return n, ok
		}
		if o.tried == nil {
			o.tried = make(map[replica.NodeName]bool)
		}
		o.tried[n] = true
	}
}

// pickNode picks the node to offer a rank to: the same node while its process alone is lost; then, in another failure domain
// than the rest of its group where one is free, a spare that holds the shard, any spare, any node.
func (se *seating) pickNode(in *plan.Input, s *seats, r replica.Rank, o *offering) (replica.NodeName, bool) {
	kn := se.known
	home, rung := kn.job.Ranks[r], kn.job.Rungs[r]
	if home.Incarnation != 0 && rung == plan.Process && !o.tried[home.Node] && kn.now < o.since+kn.t.Claim {
		_, connected := in.Current(home.Node)
		switch {
		case !kn.admissible(home.Node):
		case connected && s.free(home.Node) > 0:
			return home.Node, true
		case connected && kn.now < o.since+launcherPatience, se.linksSoon(in, home.Node):
			return "", false
		}
	}
	first := home.Incarnation == 0
	if first && kn.now < o.since+launcherPatience {
		return "", false
	}
	// Spares take only what was lost elsewhere, or what nobody else takes.
	return s.best(r, !first || kn.now >= o.since+kn.t.Claim, func(n replica.NodeName) bool { return o.tried[n] || kn.barred(in, r, n) })
}

// linksSoon tells whether a node's stream was lost, or its leader, so short a time ago that it may just not have linked again: a
// process for a rank may be on its way there, and another one elsewhere would be in its way.
func (se *seating) linksSoon(in *plan.Input, n replica.NodeName) bool {
	kn := se.known
	_, connected := in.Current(n)
	until := kn.goneAt(n) + launcherPatience
	if _, known := kn.nodes[n]; !known || connected || !kn.admissible(n) || kn.now >= until {
		return false
	}
	se.outbox.wakeAt(until)
	return true
}

// underWay is a node on which a process runs for a vacant rank without having been asked for by this leader: its launcher began by
// itself, or an earlier leader asked. A second process elsewhere would be in its way, and a spare might take the rank from it.
func (se *seating) underWay(in *plan.Input, s *seats, r replica.Rank, o *offering) replica.NodeName {
	for _, n := range s.starting[r] {
		if se.known.admissible(n) && !o.tried[n] && !se.known.barred(in, r, n) {
			return n
		}
	}
	return ""
}

// barred tells whether a rank must not come back to the life of the node that it was lost on.
func (kn *known) barred(in *plan.Input, r replica.Rank, n replica.NodeName) bool {
	home := kn.job.Ranks[r]
	return kn.job.Rungs[r] >= plan.Elsewhere && n == home.Node && in.Nodes[n].Incarnation == home.NodeIncarnation
}
