package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// slow is a leader that looks at every offer for each node and at every rank for each seat: what fillRanks has to come to.
type slow struct{ *Leader }

func (l *slow) fillRanks() {
	in := l.Leader.input()
	var idle []replica.Rank
	for r := range l.known.job.Ranks {
		rank := replica.Rank(r)
		if !slowVacant(l.known.job.Job, rank) {
			delete(l.seating.offers, rank)
			continue
		}
		o := l.seating.offers[rank]
		if o == nil || o.expect != l.known.job.Ranks[r].Incarnation {
			o = &offering{expect: l.known.job.Ranks[r].Incarnation, since: l.known.now, again: l.known.now + l.known.t.Claim}
			l.seating.offers[rank] = o
		}
		if !l.offer(in, rank, o) {
			idle = append(idle, rank)
		}
	}
	if len(idle) > 0 {
		l.outbox.note("vacant", fmt.Sprintf("no node offers a process for ranks %v", idle), nil)
	}
}

func (l *slow) offer(in *plan.Input, r replica.Rank, o *offering) bool {
	if o.node == "" {
		o.node, o.at = l.underWay(in, r, o), l.known.now
		o.own = o.node != ""
	}
	if o.node != "" {
		patience := l.known.t.Claim
		switch _, connected := in.Current(o.node); {
		case slowStarting(in, o.node, r):
			o.taken, patience = true, l.known.t.Start+l.known.t.Claim // its process runs: it imports, or builds its model; its node kills it after Start
			attached := false
			for other := range l.known.job.Ranks {
				attached = attached || !slowVacant(l.known.job.Job, replica.Rank(other))
			}
			if !attached && l.known.job.Phase == replica.Opening {
				return true // nobody waits for it
			}
		case o.taken && connected && o.own && o.expect == 0:
			*o = offering{since: l.known.now, again: l.known.now + l.known.t.Claim} // its launcher starts it again while the job opens
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
		o.node, o.taken, o.own = "", false, false
	}
	n, ok := l.pickNode(in, r, o)
	if !ok && len(o.tried) > 0 && l.known.now >= o.again {
		o.tried = nil // everybody has had a turn
		n, ok = l.pickNode(in, r, o)
	}
	if !ok {
		l.outbox.wakeAt(o.since + launcherPatience)
		l.outbox.wakeAt(o.again)
		return l.known.now < o.since+launcherPatience || o.failed > 0 && l.known.now < o.again || l.seating.linksSoon(in, l.known.job.Ranks[r].Node)
	}
	o.node, o.at = n, l.known.now
	l.outbox.wakeAt(l.known.now + l.known.t.Claim)
	l.outbox.send(Offer{Rank: r, Expect: o.expect, Node: n})
	return true
}

func (l *slow) pickNode(in *plan.Input, r replica.Rank, o *offering) (replica.NodeName, bool) {
	home, rung := l.known.job.Ranks[r], slowRung(l.known.job.Job, r)
	if home.Incarnation != 0 && rung == plan.Process && !o.tried[home.Node] && l.known.now < o.since+l.known.t.Claim {
		_, connected := in.Current(home.Node)
		switch {
		case !l.known.admissible(home.Node):
		case connected && l.free(in, home.Node) > 0:
			return home.Node, true
		case connected && l.known.now < o.since+launcherPatience, l.seating.linksSoon(in, home.Node):
			return "", false
		}
	}
	first := home.Incarnation == 0
	if first && l.known.now < o.since+launcherPatience {
		return "", false
	}
	best, found := seat{}, false
	for n := range in.Nodes {
		rep, connected := in.Current(n)
		if !connected || !l.known.admissible(n) || l.free(in, n) < 1 || o.tried[n] {
			continue
		}
		if first && rep.Spare && l.known.now < o.since+l.known.t.Claim {
			continue // spares take only what was lost elsewhere, or what nobody else takes
		}
		if l.known.barred(in, r, n) {
			continue
		}
		if s := l.seat(in, r, n, rep); !found || slowBetter(s, best) {
			best, found = s, true
		}
	}
	return best.node, found
}

func (l *slow) underWay(in *plan.Input, r replica.Rank, o *offering) replica.NodeName {
	for _, n := range slices.Sorted(maps.Keys(in.Nodes)) {
		if slowStarting(in, n, r) && l.known.admissible(n) && !o.tried[n] && !l.known.barred(in, r, n) {
			return n
		}
	}
	return ""
}

func (l *slow) free(in *plan.Input, n replica.NodeName) int {
	free := in.Reports[n].Offers
	for r, o := range l.seating.offers {
		if o.node == n && !slowStarting(in, n, r) { // one that was taken up is no longer among the offers of the node
			free--
		}
	}
	return free
}

func slowStarting(in *plan.Input, n replica.NodeName, r replica.Rank) bool {
	rep, ok := in.Current(n)
	return ok && slices.Contains(rep.Starting, r)
}

func (l *slow) seat(in *plan.Input, r replica.Rank, n replica.NodeName, rep replica.NodeReport) seat {
	group := l.known.job.Layout.Groups[r]
	s := seat{node: n, weight: place.Weigh(l.known.job.ID, replica.OfRank(r), n)}
	var others []replica.NodeName
	for m, c := range l.known.job.Ranks {
		rank := replica.Rank(m)
		switch {
		case rank == r || slowVacant(l.known.job.Job, rank) && (l.seating.offers[rank] == nil || l.seating.offers[rank].node == ""):
			continue
		case slowVacant(l.known.job.Job, rank):
			c.Node = l.seating.offers[rank].node // where it is about to be
		}
		if c.Node == n {
			s.load++
		}
		if l.known.job.Layout.Groups[m] == group {
			others = append(others, c.Node)
		}
	}
	s.shared = slowShared(in.Nodes, in.Nodes[n], others)
	if slices.Contains(others, n) {
		s.shared = 8 // one node is worse than any label
	}
	if rep.Spare {
		s.class = 1
		if slices.ContainsFunc(rep.Parts, func(h replica.Held) bool {
			return h.Part == replica.OfGroup(group) && h.Generation == l.known.job.Committed
		}) {
			s.class = 2
		}
	}
	return s
}

func slowVacant(j *replica.Job, r replica.Rank) bool {
	return j.Ranks[r].Incarnation == 0 || slowRung(j, r) >= plan.Process
}

func slowRung(j *replica.Job, r replica.Rank) plan.Rung {
	c, top := j.Ranks[r], plan.Rung(0)
	if c.Incarnation != 0 && slices.Contains(j.Quarantined, c.Node) {
		top = plan.Elsewhere
	}
	for _, f := range j.Faults {
		ofRank := !f.OfNode() && f.Rank == r && f.Incarnation == c.Incarnation
		ofNode := f.OfNode() && f.Node == c.Node && f.NodeIncarnation == c.NodeIncarnation
		if ofRank || ofNode {
			top = max(top, plan.FirstRung(f.Kind))
		}
	}
	return top
}

func slowBetter(s, o seat) bool {
	return cmp.Or(cmp.Compare(o.shared, s.shared), cmp.Compare(s.class, o.class), cmp.Compare(o.load, s.load), cmp.Compare(s.weight, o.weight), cmp.Compare(s.node, o.node)) > 0
}

func slowShared(nodes map[replica.NodeName]replica.Node, n replica.Node, others []replica.NodeName) int {
	worst := 0
	for _, name := range others {
		o, harm := nodes[name], 0
		for _, d := range place.Harms {
			if l := n.Labels[d.Label]; l != "" && l == o.Labels[d.Label] {
				harm += d.Harm
			}
		}
		worst = max(worst, harm)
	}
	return worst
}

// copied is a leader that goes on from the same knowledge.
func copied(l *Leader) *Leader {
	c := *l
	c.outbox.known = &c.known
	c.seating.known, c.seating.outbox, c.trust.known, c.trust.outbox = &c.known, &c.outbox, &c.known, &c.outbox
	c.ending = ending{known: &c.known, outbox: &c.outbox}
	c.outbox.effects, c.in, c.known.owned, c.seating.seated = nil, nil, nil, nil
	c.outbox.noted, c.seating.offers = maps.Clone(l.outbox.noted), map[replica.Rank]*offering{}
	for r, o := range l.seating.offers {
		was := *o
		was.tried = maps.Clone(o.tried)
		c.seating.offers[r] = &was
	}
	return &c
}

func pick[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }

// chance is a job with claims, faults and a quarantine, and nodes with labels.
func chance(rnd *rand.Rand, index uint64) (*replica.Job, map[replica.NodeName]replica.Node) {
	names := []replica.NodeName{"a", "b", "c", "d", "e"}[:1+rnd.IntN(5)]
	nodes := map[replica.NodeName]replica.Node{}
	for i, n := range names {
		nodes[n] = replica.Node{Name: n, Incarnation: replica.NodeIncarnation(i + 1), Session: 1, Labels: map[string]string{"zone": pick(rnd, "", "1", "2"), "rack": pick(rnd, "", "1", "2"), "host": pick(rnd, "", "1", "2")}}
	}
	j := &replica.Job{ID: replica.JobID{1}, Name: "j", Epoch: 2, LastIndex: index, Committed: replica.Generation{Epoch: 1, Step: 5}, Phase: replica.Closed, ClosedEpoch: 2, Lineage: replica.Lineage{{Epoch: 1}}}
	if rnd.IntN(2) == 0 {
		j.Phase, j.ClosedEpoch, j.Lineage = replica.Opening, 1, nil
	}
	world := 1 + rnd.IntN(6)
	j.Layout.World = uint32(world)
	for r := range world {
		j.Layout.Groups = append(j.Layout.Groups, replica.GroupID(min(rnd.IntN(3), r)))
		c := replica.Claimed{}
		if rnd.IntN(3) > 0 {
			n := pick(rnd, append(names, "gone")...)
			c = replica.Claimed{Incarnation: replica.Incarnation(1 + rnd.IntN(2)), Node: n, NodeIncarnation: nodes[n].Incarnation}
		}
		j.Ranks = append(j.Ranks, c)
		if c.Incarnation != 0 && rnd.IntN(2) == 0 {
			j.Faults = append(j.Faults, replica.Fault{Epoch: 2, Kind: pick(rnd, replica.ProcessDead, replica.Exception, replica.Hang, replica.Health), Rank: replica.Rank(r), Incarnation: c.Incarnation})
		}
	}
	if n := pick(rnd, names...); rnd.IntN(4) == 0 {
		j.Faults = append(j.Faults, replica.Fault{Epoch: 2, Kind: pick(rnd, replica.NodeDead, replica.Drain, replica.Silent), Node: n, NodeIncarnation: nodes[n].Incarnation})
	}
	if rnd.IntN(5) == 0 {
		j.Quarantined = []replica.NodeName{pick(rnd, names...)}
	}
	return j, nodes
}

// TestSeatsAgainstSlow has ranks offered with seats that are counted once a step, and by looking at everything each time: both come
// to the same offers, on random cases that go on for some steps each.
func TestSeatsAgainstSlow(t *testing.T) {
	offered := 0
	for seed := range uint64(4_000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		job, nodes := chance(rnd, 1)
		l := NewLeader(job.ID, DefaultTiming())
		l.Step(0, JobChanged{Job: job, Nodes: nodes})
		for step := range uint64(12) {
			l.known.now += pick(rnd, 0, time.Millisecond, 600*time.Millisecond, 1100*time.Millisecond, 16*time.Second)
			switch n := pick(rnd, slices.Sorted(maps.Keys(l.known.nodes))...); rnd.IntN(6) {
			case 0:
				l.learn(NodeGone{n})
			case 1:
				other, _ := chance(rnd, step+2)
				if len(other.Ranks) == len(job.Ranks) { // the same layout and nodes, other claims and faults
					other.Layout = job.Layout
					l.learn(JobChanged{Job: other, Nodes: l.known.nodes})
				}
			default:
				rep := replica.NodeReport{Job: job.ID, Holder: replica.Holder{Node: n, Incarnation: l.known.nodes[n].Incarnation}, Session: 1, Seq: step + 1, Offers: rnd.IntN(4), Spare: rnd.IntN(3) == 0}
				for r := range job.Ranks {
					if rnd.IntN(5) == 0 {
						rep.Starting = append(rep.Starting, replica.Rank(r))
					}
				}
				if rnd.IntN(2) == 0 {
					rep.Parts = []replica.Held{{Part: replica.OfGroup(replica.GroupID(rnd.IntN(2))), Generation: job.Committed}}
				}
				l.learn(Report{rep})
			}
			twin := copied(l)
			l.outbox.effects, l.outbox.wake, l.in, l.known.owned, l.seating.seated = nil, -1, nil, nil, nil
			twin.outbox.wake = -1
			l.seating.fillRanks(l.input())
			(&slow{twin}).fillRanks()
			if !reflect.DeepEqual(l.outbox.effects, twin.outbox.effects) || l.outbox.wake != twin.outbox.wake || !reflect.DeepEqual(l.seating.offers, twin.seating.offers) {
				t.Fatalf("seed %d, step %d:\n%+v, wakes at %v\nlooking at everything\n%+v, wakes at %v\njob %+v\nreports %+v", seed, step, l.outbox.effects, l.outbox.wake, twin.outbox.effects, twin.outbox.wake, *l.known.job.Job, l.known.reports)
			}
			for _, e := range l.outbox.effects {
				if _, ok := e.(Offer); ok {
					offered++
				}
			}
		}
	}
	if offered < 10_000 {
		t.Errorf("only %d offers were made: the cases have grown too tame", offered)
	}
}
