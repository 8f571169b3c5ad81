package recovery

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// loading is how far the planned epoch has come.
type loading struct {
	epoch replica.Epoch
	at    time.Duration // when every rank had loaded
}

// restoring opens the planned epoch once every rank has loaded T and every part of T has copies(p) holders, or, after
// resume_grace, with the holders there are.
func (l *Leader) restoring() {
	in, p := l.input(), l.known.job.Plan
	if p == nil || l.badCopies(in, p) {
		return
	}
	unreached := l.relay(in)
	var loadingRanks []replica.Rank
	for r := range l.known.job.Ranks {
		if rep, ok := in.rank(replica.Rank(r)); !ok || rep.Loaded != p.Epoch {
			loadingRanks = append(loadingRanks, replica.Rank(r))
		}
	}
	if len(loadingRanks) > 0 {
		l.closing.loaded = loading{}
		l.outbox.note("waiting", fmt.Sprintf("ranks %v have not loaded %v yet", rankList(loadingRanks), p.Generation)+unreached, map[string]string{"why": "loads"})
		l.overdue()
		return
	}
	if l.closing.loaded.epoch != p.Epoch {
		l.closing.loaded = loading{epoch: p.Epoch, at: l.known.loadedAt()}
	}
	roots, fewest := in.held(p)
	if fewest == 0 {
		return // a report that names the loaded copies is still on its way
	}
	copies := in.copiesPossible()
	if until := l.closing.loaded.at + l.known.bound(AwaitMirror) + grownTime(in.Job); fewest < copies && l.known.now < until {
		l.outbox.wakeAt(until)
		l.outbox.note("waiting", fmt.Sprintf("some part of %v has %d of %d copies", p.Generation, fewest, copies), map[string]string{"why": "mirrors"})
		return
	}
	l.outbox.propose(replica.Resume{Job: l.known.id, Epoch: p.Epoch, Parts: roots, Copies: min(copies, fewest)})
}

// loadedAt is when the last rank loaded, as far as their nodes can tell a new leader.
func (kn *known) loadedAt() (at time.Duration) {
	at = kn.stageAt()
	for r, c := range kn.job.Ranks {
		if s := kn.signs[replica.Rank(r)]; s.of == c.Incarnation {
			at = max(at, s.at)
		}
	}
	return at
}

// held is who holds every part of a plan's generation under the plan's root now, and the fewest nodes that hold any.
func (in *PlanInput) held(p *replica.Plan) (roots []replica.PartRoot, fewest int) {
	fewest = len(in.Nodes)
	for _, src := range p.Sources {
		pr := replica.PartRoot{Part: src.Part, Root: src.Root}
		for _, h := range in.holding(src.Part, p.Generation, src.Root) {
			if !slices.Contains(in.Job.Proved, h) {
				pr.Holders = append(pr.Holders, h)
			}
		}
		roots, fewest = append(roots, pr), min(fewest, len(pr.Holders))
	}
	return roots, fewest
}

// copiesPossible is copies(p): min_copies, or as many nodes as can hold a copy if they are fewer.
func (in *PlanInput) copiesPossible() int {
	n := 0
	for _, ok := range in.usable() {
		if ok {
			n++
		}
	}
	return max(1, min(minCopies(in.Job.Options), n))
}

// spread has the generation before the one that the job resumed at let go, once every part of the latter lies on as many nodes as
// have a place for it: a commit would need no more.
func (l *Leader) spread(in *PlanInput) {
	if l.known.job.Previous == nil || l.known.job.Plan == nil {
		return
	}
	want := 1
	for want < minCopies(l.known.job.Options) && placed(l.known.job, want+1) {
		want++
	}
	if roots, fewest := in.held(l.known.job.Plan); fewest >= max(want, l.known.job.Copies) {
		l.outbox.propose(replica.Resume{Job: l.known.id, Epoch: l.known.job.Epoch, Parts: roots, Copies: max(want, l.known.job.Copies), Spread: true})
	}
}

// training looks after redundancy while the job runs: mirrors move off nodes that are at fault, stay away or can't get their part, and copies(p) rises as
// nodes join and falls when a fault removes one. It ends the job when all ranks have left.
func (l *Leader) training() {
	l.finish()
	in := l.input()
	l.overdue()
	l.hang(in)
	l.grow(in)
	l.spread(in)
	if !l.outbox.proposed(replica.SetMirrors{}) && l.misplaced(in) {
		byRank, byGroup := l.mirrorsWith(l.trust.shunned)
		if !sameMirrors(byRank, l.known.job.Mirrors) || !sameMirrors(byGroup, l.known.job.GroupMirrors) {
			l.outbox.propose(replica.SetMirrors{Job: l.known.id, Mirrors: byRank, GroupMirrors: byGroup})
		}
	}
	want := minCopies(l.known.job.Options)
	healthy := 0 // registered and not known to be lost: silence alone lowers nothing
	for n, node := range l.known.nodes {
		if l.known.job.admits(replica.Holder{Node: n, Incarnation: node.Incarnation}) {
			healthy++
		}
	}
	switch possible := in.copiesPossible(); {
	case l.known.job.Copies > max(1, min(want, healthy)):
		l.outbox.propose(replica.SetCopies{Job: l.known.id, Copies: max(1, min(want, healthy))})
	case l.known.job.Copies < possible && placed(l.known.job, possible):
		l.outbox.propose(replica.SetCopies{Job: l.known.id, Copies: possible})
	}
}

// misplaced tells whether a mirror lies on a node that has a fault against it, is gone for good or can't get its part, or is missing while a
// node could take it.
func (l *Leader) misplaced(in *PlanInput) bool {
	bad := func(part replica.Part, from replica.NodeName, names []replica.NodeName) bool {
		return slices.ContainsFunc(names, func(n replica.NodeName) bool {
			_, known := l.known.nodes[n]
			return !known || !l.known.admissible(n) || l.misfit(from, n) || l.trust.shunned.has(l.known.job.Epoch, part, n)
		})
	}
	for r, names := range l.known.job.Mirrors {
		if bad(replica.OfRank(replica.Rank(r)), l.known.job.Ranks[r].Node, names) {
			return true
		}
	}
	for g, names := range l.known.job.GroupMirrors {
		if len(names) > 0 && bad(replica.OfGroup(replica.GroupID(g)), l.known.job.Ranks[l.known.job.membersOf(replica.GroupID(g))[0]].Node, names) {
			return true
		}
	}
	return !placed(l.known.job, in.copiesPossible())
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
func placed(j *record, n int) bool {
	for r := range j.Ranks {
		if 1+len(at(j.Mirrors, r)) < n {
			return false
		}
	}
	for g, members := range j.members {
		nodes := make(map[replica.NodeName]bool)
		for _, r := range members {
			nodes[j.Ranks[r].Node] = true
		}
		if len(nodes)+len(at(j.GroupMirrors, g)) < n {
			return false
		}
	}
	return true
}

func sameMirrors(a, b [][]replica.NodeName) bool {
	return slices.EqualFunc(a, b, func(x, y []replica.NodeName) bool { return slices.Equal(x, y) })
}
