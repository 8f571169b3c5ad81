package recovery

import (
	"fmt"
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

const (
	// maxLooks is at how many places a step looks for vacant ranks, all together: some tens of milliseconds. The driver has other jobs.
	maxLooks = 1 << 18
	// looksAgain is when the ranks that are left then have their turn.
	looksAgain = time.Millisecond
)

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
func (l *Leader) withdraw(n replica.NodeName) {
	for r, o := range l.offers {
		if o.node == n {
			l.known.clocks.End(o.offered(r, n))
			o.node, o.taken = "", false
		}
	}
}

// fillRanks offers every vacant rank to one node at a time, until somebody claims it.
func (l *Leader) fillRanks() {
	in := l.input()
	s := l.seats(in)
	var idle []replica.Rank
	first := l.turn
	l.turn = 0
	for i := range l.known.job.Ranks {
		rank := replica.Rank((int(first) + i) % len(l.known.job.Ranks))
		if !l.known.job.vacant(rank) {
			l.drop(s, rank)
			continue
		}
		o := l.offers[rank]
		if expect := l.known.job.Ranks[rank].Incarnation; o == nil || o.expect != expect {
			l.drop(s, rank)
			o = &offering{expect: expect, again: l.known.now + l.known.t.Claim}
			l.offers[rank] = o
		}
		o.since = l.known.clocks.Since(l.known.now, o.vacant(rank))
		if o.node != "" {
			o.at = l.known.clocks.Since(l.known.now, o.offered(rank, o.node))
		}
		if !l.offer(in, s, rank, o) {
			idle = append(idle, rank)
		}
	}
	l.short = len(idle)
	if len(idle) > 0 {
		slices.Sort(idle)
		l.outbox.note("vacant", fmt.Sprintf("no node offers a process for ranks %v", rankList(idle))+in.shortages(), nil)
	}
}

// drop forgets the search for a rank.
func (l *Leader) drop(s *seats, r replica.Rank) {
	if o := l.offers[r]; o != nil {
		l.known.clocks.End(o.vacant(r))
		o.withdrawn(&l.known.clocks, r)
		s.release(r, o)
		delete(l.offers, r)
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
func (l *Leader) offer(in *PlanInput, s *seats, r replica.Rank, o *offering) bool {
	if o.node == "" {
		n := l.underWay(in, s, r, o)
		s.assign(r, o, n)
		o.at = l.known.now
		if o.own = n != ""; o.own {
			o.at = l.known.clocks.Since(l.known.now, o.offered(r, n))
		}
	}
	if o.node != "" {
		patience := l.known.bound(AwaitStart)
		switch _, connected := in.current(o.node); {
		case s.starts(o.node, r):
			o.taken, patience = true, l.known.bound(AwaitAttach) // its process runs: it imports, or builds its model; its node kills it after Start
			switch {
			case l.roomElsewhere(in, s, r, o):
				patience = 0
			case l.known.job.Phase == replica.Opening && !l.known.job.attached:
				return true // nobody waits for it, so its node does not kill it either
			}
		case o.taken && connected && o.own && o.expect == 0:
			o.withdrawn(&l.known.clocks, r)
			l.known.clocks.End(o.vacant(r))
			s.release(r, o)
			*o = offering{since: l.known.clocks.Since(l.known.now, o.vacant(r)), again: l.known.now + l.known.t.Claim} // its launcher starts it again while the job opens
			l.outbox.wakeAt(l.known.now + launcherPatience)
			return true
		case o.taken && connected:
			patience = 0 // its process ended
			o.again = l.known.now + startRetry<<min(o.failed, 3)
			o.failed++
		}
		if l.known.now < o.at+patience {
			l.outbox.wakeAt(o.at + patience)
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
		if l.turn == 0 {
			l.turn = r
		}
		l.outbox.wakeAt(l.known.now + looksAgain)
		return true
	}
	if heard := l.known.began + launcherPatience; o.since < l.known.began && l.known.now < heard {
		l.outbox.wakeAt(heard) // a process for it may run on a node that has not linked to this leader yet
		return true
	}
	n, ok := l.pickUntried(in, s, r, o)
	if !ok && len(o.tried) > 0 && l.known.now >= o.again {
		o.withdrawn(&l.known.clocks, r)
		o.tried = nil // everybody has had a turn
		n, ok = l.pickNode(in, s, r, o)
	}
	if !ok {
		l.outbox.wakeAt(o.since + launcherPatience)
		l.outbox.wakeAt(o.again)
		return l.known.now < o.since+launcherPatience || o.failed > 0 && l.known.now < o.again || l.linksSoon(in, l.known.job.Ranks[r].Node)
	}
	s.assign(r, o, n)
	o.at = l.known.clocks.Since(l.known.now, o.offered(r, n))
	l.outbox.wakeAt(o.at + l.known.bound(AwaitStart))
	l.outbox.send(Offer{Rank: r, Expect: o.expect, Node: n})
	return true
}

// pickUntried picks a node that has not had its time for the rank, under this leader or an earlier one.
func (l *Leader) pickUntried(in *PlanInput, s *seats, r replica.Rank, o *offering) (replica.NodeName, bool) {
	for {
		n, ok := l.pickNode(in, s, r, o)
		if !ok {
			return n, ok
		}
		if at, offered := l.known.clocks.before(o.offered(r, n)); !offered || l.known.now < at+l.known.bound(AwaitStart) {
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
func (l *Leader) pickNode(in *PlanInput, s *seats, r replica.Rank, o *offering) (replica.NodeName, bool) {
	home, rung := l.known.job.Ranks[r], l.known.job.rungs[r]
	if home.Incarnation != 0 && rung == Process && !o.tried[home.Node] && l.known.now < o.since+l.known.t.Claim {
		_, connected := in.current(home.Node)
		switch {
		case !l.known.admissible(home.Node):
		case connected && s.free(home.Node) > 0:
			return home.Node, true
		case connected && l.known.now < o.since+launcherPatience, l.linksSoon(in, home.Node):
			return "", false
		}
	}
	first := home.Incarnation == 0
	if first && l.known.now < o.since+launcherPatience {
		return "", false
	}
	// Spares take only what was lost elsewhere, or what nobody else takes.
	return s.best(r, !first || l.known.now >= o.since+l.known.t.Claim, func(n replica.NodeName) bool { return o.tried[n] || l.known.barred(in, r, n) })
}

// linksSoon tells whether a node's stream was lost, or its leader, so short a time ago that it may just not have linked again: a
// process for a rank may be on its way there, and another one elsewhere would be in its way.
func (l *Leader) linksSoon(in *PlanInput, n replica.NodeName) bool {
	_, connected := in.current(n)
	until := l.known.goneAt(n) + launcherPatience
	if _, known := l.known.nodes[n]; !known || connected || !l.known.admissible(n) || l.known.now >= until {
		return false
	}
	l.outbox.wakeAt(until)
	return true
}

// underWay is a node on which a process runs for a vacant rank without having been asked for by this leader: its launcher began by
// itself, or an earlier leader asked. A second process elsewhere would be in its way, and a spare might take the rank from it.
func (l *Leader) underWay(in *PlanInput, s *seats, r replica.Rank, o *offering) replica.NodeName {
	for _, n := range s.starting[r] {
		if l.known.admissible(n) && !o.tried[n] && !l.known.barred(in, r, n) {
			return n
		}
	}
	return ""
}

// barred tells whether a rank must not come back to the life of the node that it was lost on.
func (kn *known) barred(in *PlanInput, r replica.Rank, n replica.NodeName) bool {
	home := kn.job.Ranks[r]
	return kn.job.rungs[r] >= Elsewhere && n == home.Node && in.Nodes[n].Incarnation == home.NodeIncarnation
}

// Short tells for how many ranks no node offers a process, and how many processes nodes offer besides: those are full, tried, or
// kept out. It changes nothing.
func (l *Leader) Short() (ranks, offered int) {
	if l.known.job == nil || !l.known.awaitsNodes() || l.short == 0 {
		return 0, 0
	}
	return l.short, l.seats(l.input()).left()
}
