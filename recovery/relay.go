package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	cutAfter  = 3 * time.Second  // of failures while the leader hears both: a daemon that just went is missed by the leader itself by then
	cutBroken = 5 * time.Second  // without a failure they begin anew
	cutKnown  = 30 * time.Second // for which two nodes count as cut off from each other after the last word of it; twice as long each time it happens again
	cutFactor = 5                // doublings at most
	relayed   = 10 * time.Second // after which a node that was asked to fetch a part for another, and has not got it, is no longer the only one asked
)

// misfit tells whether a node that mirrors a part made on another can't get it: its daemon stays away, or the two are cut off from each other.
func (l *Leader) misfit(from, mirror replica.NodeName) bool {
	kn := &l.known
	if !kn.up[mirror] {
		l.outbox.wakeAt(kn.backBy(mirror))
	}
	return kn.cutOff(from, mirror)
}

// relay has parts that a node can't get from their holders fetched by a third one that reaches both, which is a holder then. Where there is
// none the rank goes to another node. It says what can't be had, for people.
func (l *Leader) relay(in *plan.Input) (why string) {
	kn := &l.known
	p := kn.job.Plan
	for _, k := range slices.SortedFunc(maps.Keys(l.closing.lacking), func(a, b lack) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.part.Kind, b.part.Kind), cmp.Compare(a.part.Index, b.part.Index))
	}) {
		rank := l.closing.lacking[k]
		src, ok := p.Source(k.part)
		holds := plan.Names(in.Holding(k.part, p.Generation, src.Root))
		if rep, here := in.Rank(rank); !ok || slices.Contains(holds, k.node) || here && kn.job.Ranks[rank].Node == k.node &&
			rep.Loaded == p.Epoch {
			delete(l.closing.lacking, k)
			continue
		}
		if slices.ContainsFunc(holds, func(n replica.NodeName) bool { return !kn.reach.cut(k.node, n, kn.now) }) {
			continue // it fetches from there
		}
		why += fmt.Sprintf("; node %s can't get %v from %s: ", k.node, k.part, plan.Joined(holds)) + l.askRelay(in, k, rank, holds)
	}
	return why
}

func (l *Leader) askRelay(in *plan.Input, k lack, rank replica.Rank, holds []replica.NodeName) string {
	kn := &l.known
	reaches := func(n replica.NodeName) bool {
		return n != k.node && !slices.Contains(holds, n) && !kn.reach.cut(k.node, n, kn.now) &&
			slices.ContainsFunc(holds, func(h replica.NodeName) bool { return !kn.reach.cut(h, n, kn.now) })
	}
	if a, ok := l.closing.asked[k]; ok && reaches(a.node) && kn.up[a.node] && kn.now < a.at+relayed {
		l.outbox.wakeAt(a.at + relayed)
		return fmt.Sprintf("node %s fetches it for it", a.node)
	}
	best, weight := replica.NodeName(""), uint64(0)
	for n, usable := range in.Usable() {
		w := place.Weigh(kn.id, k.part, n)
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
	l.closing.asked[k] = asked{best, kn.now}
	l.outbox.wakeAt(kn.now + relayed)
	l.outbox.send(Relay{Epoch: kn.job.Epoch, Part: k.part, Rank: rank, Node: best})
	return fmt.Sprintf("node %s fetches it for it", best)
}

// moveAway has a rank whose node reaches no holder of what it is to load claimed by another one, if any that does offers a process.
func (l *Leader) moveAway(in *plan.Input, k lack, rank replica.Rank, holds []replica.NodeName) {
	kn := &l.known
	c := kn.job.Ranks[rank]
	if c.Node != k.node {
		return // a mirror of the plan, without which the job resumes degraded
	}
	for n := range in.Nodes {
		_, connected := in.Current(n)
		if n != k.node && connected && kn.admissible(n) && l.seating.seats(in).free(n) > 0 &&
			slices.ContainsFunc(holds, func(h replica.NodeName) bool { return h == n || !kn.reach.cut(h, n, kn.now) }) {
			kn.learnFault(replica.Fault{Kind: replica.Health, Rank: rank, Incarnation: c.Incarnation, Epoch: kn.job.Epoch,
				Detail: fmt.Sprintf("node %s can't get %v from %s", k.node, k.part, plan.Joined(holds))})
			l.assertFaults()
			return
		}
	}
}
