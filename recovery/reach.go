package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	cutAfter  = 3 * time.Second  // of failures while the leader hears both: a daemon that just went is missed by the leader itself by then
	cutBroken = 5 * time.Second  // without a failure they begin anew
	cutKnown  = 30 * time.Second // for which two nodes count as cut off from each other after the last word of it; twice as long each time it happens again
	cutFactor = 5                // doublings at most
	relayed   = 10 * time.Second // after which a node that was asked to fetch a part for another, and has not got it, is no longer the only one asked
)

// pair is two nodes, in the order of their names: what is sent one way is acknowledged the other, so one way is none.
type pair struct{ a, b replica.NodeName }

func pairOf(a, b replica.NodeName) pair { return pair{min(a, b), max(a, b)} }

// cut is a pair of which one could not have parts from the other, though the leader hears both.
type cut struct {
	since time.Duration // first of the failures in a row
	last  time.Duration
	sure  bool
	until time.Duration // forgotten then: nobody tries any more, so nobody would say that it is over
	times int           // found anew
}

// reach is which nodes can't exchange parts with each other. Pairs are learned from transfers that fail, and forgotten after a while, or when
// one of the two registers anew.
type reach map[pair]cut

// failed takes in a try that failed. It is one in a row with the one before if it began soon after that: what the other end lets hang fails only
// every so many seconds.
func (r reach) failed(a, b replica.NodeName, now, took time.Duration) {
	c, known := r[pairOf(a, b)]
	if !known || now-took-c.last > cutBroken {
		c.since = now
	}
	c.last = now
	if now-c.since >= cutAfter {
		if c.sure = true; now >= c.until {
			c.times = min(c.times+1, cutFactor)
		}
		c.until = max(c.until, now+cutKnown<<(c.times-1))
	}
	r[pairOf(a, b)] = c
}

func (r reach) cut(a, b replica.NodeName, now time.Duration) bool {
	c, ok := r[pairOf(a, b)]
	return ok && c.sure && now < c.until
}

// gone forgets failures that are explained by a node that the leader has lost too: it has daemon_grace.
func (r reach) gone(n replica.NodeName) {
	maps.DeleteFunc(r, func(p pair, c cut) bool { return (p.a == n || p.b == n) && !c.sure })
}

// awaitCuts wakes the leader when pairs that fail have failed for long enough.
func (l *Leader) awaitCuts() {
	for _, c := range l.known.reach {
		if !c.sure {
			l.outbox.wakeAt(c.since + cutAfter)
		}
	}
}

func (r reach) renewed(n replica.NodeName) {
	maps.DeleteFunc(r, func(p pair, _ cut) bool { return p.a == n || p.b == n })
}

// misfit tells whether a node that mirrors a part made on another can't get it: its daemon stays away, or the two are cut off from each other.
func (l *Leader) misfit(from, mirror replica.NodeName) bool {
	if !l.known.up[mirror] {
		l.outbox.wakeAt(l.known.backBy(mirror))
	}
	return l.known.cutOff(from, mirror)
}

// learnUnreached takes a node's word that it could not bring parts to others, or have them from others.
func (l *Leader) learnUnreached(ev Unreached) {
	if l.known.job == nil {
		return
	}
	for _, to := range ev.To {
		if _, known := l.known.nodes[to]; known && to != ev.From && l.known.up[to] {
			l.known.reach.failed(ev.From, to, l.known.now, ev.Took)
		}
	}
	if p := l.known.job.Plan; ev.Fetch && p != nil && l.known.job.Phase == replica.Planned && ev.Epoch == p.Epoch && int(ev.Rank) < len(l.known.job.Ranks) {
		if src, ok := p.Source(ev.Part); ok && src.Tier != replica.Disk {
			l.closing.lacking[lack{ev.From, ev.Part}] = ev.Rank
		}
	}
}

// lack is a part of the plan that a node can't get from where the plan says.
type lack struct {
	node replica.NodeName
	part replica.Part
}

// asked is a node that was asked to fetch a part for others.
type asked struct {
	node replica.NodeName
	at   time.Duration
}

// relay has parts that a node can't get from their holders fetched by a third one that reaches both, which is a holder then. Where there is
// none the rank goes to another node. It says what can't be had, for people.
func (l *Leader) relay(in *PlanInput) (why string) {
	p := l.known.job.Plan
	for _, k := range slices.SortedFunc(maps.Keys(l.closing.lacking), func(a, b lack) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.part.Kind, b.part.Kind), cmp.Compare(a.part.Index, b.part.Index))
	}) {
		rank := l.closing.lacking[k]
		src, ok := p.Source(k.part)
		holds := names(in.holding(k.part, p.Generation, src.Root))
		if rep, here := in.rank(rank); !ok || slices.Contains(holds, k.node) || here && l.known.job.Ranks[rank].Node == k.node && rep.Loaded == p.Epoch {
			delete(l.closing.lacking, k)
			continue
		}
		if slices.ContainsFunc(holds, func(n replica.NodeName) bool { return !l.known.reach.cut(k.node, n, l.known.now) }) {
			continue // it fetches from there
		}
		why += fmt.Sprintf("; node %s can't get %v from %s: ", k.node, k.part, joined(holds)) + l.askRelay(in, k, rank, holds)
	}
	return why
}

func (l *Leader) askRelay(in *PlanInput, k lack, rank replica.Rank, holds []replica.NodeName) string {
	reaches := func(n replica.NodeName) bool {
		return n != k.node && !slices.Contains(holds, n) && !l.known.reach.cut(k.node, n, l.known.now) &&
			slices.ContainsFunc(holds, func(h replica.NodeName) bool { return !l.known.reach.cut(h, n, l.known.now) })
	}
	if a, ok := l.closing.asked[k]; ok && reaches(a.node) && l.known.up[a.node] && l.known.now < a.at+relayed {
		l.outbox.wakeAt(a.at + relayed)
		return fmt.Sprintf("node %s fetches it for it", a.node)
	}
	best, weight := replica.NodeName(""), uint64(0)
	for n, usable := range in.usable() {
		w := weigh(l.known.id, k.part, n)
		if n == l.closing.asked[k].node {
			w = 0 // it has had its time; it goes on, and another may be quicker
		}
		if usable && reaches(n) && (best == "" || w > weight) {
			best, weight = n, w
		}
	}
	if best == "" {
		l.moveAway(in, k, rank, holds)
		return fmt.Sprintf("no other node reaches both, rank %d moves to one that offers a process", rank)
	}
	l.closing.asked[k] = asked{best, l.known.now}
	l.outbox.wakeAt(l.known.now + relayed)
	l.outbox.send(Relay{Epoch: l.known.job.Epoch, Part: k.part, Rank: rank, Node: best})
	return fmt.Sprintf("node %s fetches it for it", best)
}

// moveAway has a rank whose node reaches no holder of what it is to load claimed by another one, if any that does offers a process.
func (l *Leader) moveAway(in *PlanInput, k lack, rank replica.Rank, holds []replica.NodeName) {
	c := l.known.job.Ranks[rank]
	if c.Node != k.node {
		return // a mirror of the plan, without which the job resumes degraded
	}
	for n := range in.Nodes {
		_, connected := in.current(n)
		if n != k.node && connected && l.known.admissible(n) && l.seats(in).free(n) > 0 && slices.ContainsFunc(holds, func(h replica.NodeName) bool { return h == n || !l.known.reach.cut(h, n, l.known.now) }) {
			l.known.learnFault(replica.Fault{Kind: replica.Health, Rank: rank, Incarnation: c.Incarnation, Epoch: l.known.job.Epoch, Detail: fmt.Sprintf("node %s can't get %v from %s", k.node, k.part, joined(holds))})
			l.assertFaults()
			return
		}
	}
}

func names(holders []replica.Holder) []replica.NodeName {
	out := make([]replica.NodeName, len(holders))
	for i, h := range holders {
		out[i] = h.Node
	}
	return out
}

func joined(names []replica.NodeName) string {
	if len(names) == 0 {
		return "any node"
	}
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return strings.Join(out, ", ")
}
