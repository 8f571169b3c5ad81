package recovery

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// restoring opens the planned epoch once every rank has loaded T and every part of T has copies(p) holders, or, after
// resume_grace, with the holders there are.
func (l *Leader) restoring() {
	kn := &l.known
	in, p := l.input(), kn.job.Plan
	if p == nil || l.badCopies(in, p) {
		return
	}
	unreached := l.relay(in)
	var loadingRanks []replica.Rank
	for r := range kn.job.Ranks {
		if rep, ok := in.Rank(replica.Rank(r)); !ok || rep.Loaded != p.Epoch {
			loadingRanks = append(loadingRanks, replica.Rank(r))
		}
	}
	if len(loadingRanks) > 0 {
		l.closing.loaded = loading{}
		l.outbox.note("waiting", fmt.Sprintf("ranks %v have not loaded %v yet", plan.RankList(loadingRanks), p.Generation)+unreached,
			map[string]string{"why": "loads"})
		l.overdue()
		return
	}
	if l.closing.loaded.epoch != p.Epoch {
		l.closing.loaded = loading{epoch: p.Epoch, at: kn.loadedAt()}
	}
	roots, fewest := in.Held(p)
	if fewest == 0 {
		return // a report that names the loaded copies is still on its way
	}
	copies := in.CopiesPossible()
	if until := l.closing.loaded.at + kn.bound(AwaitMirror) + grownTime(in.Job); fewest < copies && kn.now < until {
		l.outbox.wakeAt(until)
		l.outbox.note("waiting", fmt.Sprintf("some part of %v has %d of %d copies", p.Generation, fewest, copies),
			map[string]string{"why": "mirrors"})
		return
	}
	l.outbox.propose(replica.Resume{Job: kn.id, Epoch: p.Epoch, Parts: roots, Copies: min(copies, fewest)})
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

// badCopies gives up a plan that can't be carried out because every copy of some part was found bad. Where they lay in memory
// that is an event of the rank that can't go on: the next plan sees what is left, and waits for recorded holders as ever.
// What lay on disk condemns the generation, or it would be planned again.
func (l *Leader) badCopies(in *plan.Input, p *replica.Plan) (given bool) {
	kn := &l.known
	for _, src := range p.Sources {
		culprits := in.BadHolders(p.Generation, src)
		if len(culprits) == 0 {
			continue
		}
		what := fmt.Sprintf("%v of %v with root %v", src.Part, p.Generation, src.Root)
		l.outbox.note("bad-copy", fmt.Sprintf("the copy of %s on %s failed its digest: it was given up", what, plan.NodeNames(culprits)),
			map[string]string{"part": src.Part.String()})
		if in.Servable(p.Generation, src) {
			continue
		}
		given = true
		if src.Tier == replica.Disk {
			l.trust.blame(p.Generation, fmt.Sprintf("the durable copy of %s failed its digest", what))
			continue
		}
		r := plan.LoaderOf(kn.job.Layout, src.Part)
		kn.learnFault(replica.Fault{Epoch: kn.job.Epoch, Kind: replica.Exception, Rank: r, Incarnation: kn.job.Ranks[r].Incarnation,
			Detail: fmt.Sprintf("no good copy is left of %s: those on %s failed their digest", what, plan.NodeNames(culprits))})
	}
	if given {
		l.trust.condemn()
		l.assertFaults()
	}
	return given
}
