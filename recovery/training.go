package recovery

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// grow decides what the ranks of an open job ask for.
func (l *Leader) grow(in *plan.Input) {
	kn := &l.known
	l.outbox.send(l.asks.answers(in)...)
	g := l.asks.growth(in)
	if len(g.ranks) == 0 {
		l.asks = asks{refused: l.asks.refused}
		return
	}
	l.asks.learn(g, kn.now)
	l.asks.at = kn.clocks.Since(kn.now, replica.Clock{Kind: clockAsked, Epoch: l.asks.of.Epoch, Rank: replica.Rank(l.asks.count),
		Of: uint64(l.asks.of.Step)<<32 | uint64(l.asks.ready)})
	until := l.asks.at + kn.bound(AwaitGrowth) + sizeTime(g.bytes)
	why, late := l.asks.denied(in, g), l.asks.waits(in, g)
	if why == "" && len(late) > 0 && kn.now >= until {
		why = fmt.Sprintf("%s (the bound is %v)", late[0].text(kn.now), Waits[AwaitGrowth].Bound)
	}
	switch {
	case why != "":
		l.asks.refuse(in.Job, g, why)
		l.outbox.send(l.asks.answers(in)...)
	case len(late) == 0:
		l.outbox.propose(growCommand(kn.job, g))
	default:
		l.outbox.wakeAt(until)
		l.outbox.note("waiting", late[0].text(kn.now), map[string]string{"why": "growth"})
	}
}

// hang makes a fault of the ranks that are furthest behind, once all of them stand still; the others wait for them, or have left. Those that the
// kernel has stopped are named before any that wait. Where all stand at the same place and none is stopped nobody can be named, and every
// rank's process is started anew, on its node (protocol section 6, evidence).
func (l *Leader) hang(in *plan.Input) {
	kn := &l.known
	behind, trains, _ := kn.laggards(in)
	var halted []replica.RankReport
	for r := range kn.job.Ranks {
		switch rep, ok := kn.trains(in, replica.Rank(r)); {
		case ok && rep.Hung && rep.Halted:
			halted = append(halted, rep)
		case !ok && !kn.left(replica.Rank(r)):
			return // nobody knows where it is: AwaitNode
		}
	}
	if len(behind) == 0 || slices.ContainsFunc(behind, func(rep replica.RankReport) bool { return !rep.Hung }) {
		return
	}
	detail := "the others wait for it"
	if len(halted) > 0 {
		behind, detail = halted, "its process is stopped by a signal, and the others wait for it"
	} else if len(behind) == trains && trains > 1 {
		detail = "so do all ranks: nobody can be named; who waits for the commit of the newest step calls session.commit(), or rp_seal_step"
	}
	for _, rep := range behind {
		kn.learnFault(replica.Fault{Epoch: kn.job.Epoch, Kind: Waits[AwaitStep].fault, Rank: rep.Rank, Incarnation: rep.Incarnation,
			Detail: fmt.Sprintf("stands still in step %d, %v; %s", rep.Live.Step(), rep.Live.Phase(), detail)})
	}
	l.assertFaults()
}

// spread has the generation before the one that the job resumed at let go, once every part of the latter lies on as many nodes as
// have a place for it: a commit would need no more.
func spread(ob *outbox, in *plan.Input) {
	j := in.Record()
	if j.Previous == nil || j.Plan == nil {
		return
	}
	want := 1
	for want < place.MinCopies(j.Options) && placed(j, want+1) {
		want++
	}
	if roots, fewest := in.Held(j.Plan); fewest >= max(want, j.Copies) {
		ob.propose(replica.Resume{Job: j.ID, Epoch: j.Epoch, Parts: roots, Copies: max(want, j.Copies), Spread: true})
	}
}

// training looks after redundancy while the job runs: mirrors move off nodes that are at fault, stay away or can't get their part, and copies(p) rises as
// nodes join and falls when a fault removes one. It ends the job when all ranks have left.
func (l *Leader) training() {
	kn := &l.known
	l.ending.finish()
	in := l.input()
	l.overdue()
	l.hang(in)
	l.grow(in)
	spread(&l.outbox, in)
	if !l.outbox.proposed(replica.SetMirrors{}) && l.misplaced(in) {
		byRank, byGroup := l.mirrorsWith(l.trust.shunned)
		if !sameMirrors(byRank, kn.job.Mirrors) || !sameMirrors(byGroup, kn.job.GroupMirrors) {
			l.outbox.propose(replica.SetMirrors{Job: kn.id, Mirrors: byRank, GroupMirrors: byGroup})
		}
	}
	want := place.MinCopies(kn.job.Options)
	healthy := 0 // registered and not known to be lost: silence alone lowers nothing
	for n, node := range kn.nodes {
		if kn.job.Admits(replica.Holder{Node: n, Incarnation: node.Incarnation}) {
			healthy++
		}
	}
	switch possible := in.CopiesPossible(); {
	case kn.job.Copies > max(1, min(want, healthy)):
		l.outbox.propose(replica.SetCopies{Job: kn.id, Copies: max(1, min(want, healthy))})
	case kn.job.Copies < possible && placed(kn.job, possible):
		l.outbox.propose(replica.SetCopies{Job: kn.id, Copies: possible})
	}
}

// misplaced tells whether a mirror lies on a node that has a fault against it, is gone for good or can't get its part, or is missing while a
// node could take it.
func (l *Leader) misplaced(in *plan.Input) bool {
	kn := &l.known
	bad := func(part replica.Part, from replica.NodeName, names []replica.NodeName) bool {
		return slices.ContainsFunc(names, func(n replica.NodeName) bool {
			_, known := kn.nodes[n]
			return !known || !kn.admissible(n) || l.misfit(from, n) || l.trust.shunned.has(kn.job.Epoch, part, n)
		})
	}
	for r, names := range kn.job.Mirrors {
		if bad(replica.OfRank(replica.Rank(r)), kn.job.Ranks[r].Node, names) {
			return true
		}
	}
	for g, names := range kn.job.GroupMirrors {
		if len(names) > 0 && bad(replica.OfGroup(replica.GroupID(g)), kn.job.Ranks[kn.job.MembersOf(replica.GroupID(g))[0]].Node, names) {
			return true
		}
	}
	return !placed(kn.job, in.CopiesPossible())
}

// standing adds to the usable nodes those that mirror already and are merely away: a daemon's restart moves no mirror. One that stays away
// keeps what nobody else can take, since silence lowers no copies.
func (kn *known) standing(usable map[replica.NodeName]bool) map[replica.NodeName]bool {
	usable = maps.Clone(usable)
	for _, lists := range [][][]replica.NodeName{kn.job.Mirrors, kn.job.GroupMirrors} {
		for _, names := range lists {
			for _, n := range names {
				if _, known := kn.nodes[n]; known && kn.admissible(n) {
					usable[n] = true
				}
			}
		}
	}
	return usable
}

// placed tells whether every part has a place on n nodes.
func placed(j *plan.Record, n int) bool {
	for r := range j.Ranks {
		if 1+len(place.At(j.Mirrors, r)) < n {
			return false
		}
	}
	for g, members := range j.Members {
		nodes := make(map[replica.NodeName]bool)
		for _, r := range members {
			nodes[j.Ranks[r].Node] = true
		}
		if len(nodes)+len(place.At(j.GroupMirrors, g)) < n {
			return false
		}
	}
	return true
}

func sameMirrors(a, b [][]replica.NodeName) bool {
	return slices.EqualFunc(a, b, func(x, y []replica.NodeName) bool { return slices.Equal(x, y) })
}

// mirrorsWith places the mirrors of a job that trains.
func (l *Leader) mirrorsWith(s shunned) (byRank, byGroup [][]replica.NodeName) {
	kn := &l.known
	return place.Mirrors(place.Placement{Job: kn.id, Layout: kn.job.Layout, Ranks: kn.job.Ranks, Nodes: kn.nodes,
		Usable: kn.standing(l.input().Usable()), Copies: place.MinCopies(kn.job.Options),
		Mirrors: kn.job.Mirrors, GroupMirrors: kn.job.GroupMirrors, Misfit: l.misfit, Shuns: func(p replica.Part,
			n replica.NodeName) bool {
			return s.has(kn.job.Epoch, p, n)
		}})
}
