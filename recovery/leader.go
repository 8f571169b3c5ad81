package recovery

import (
	"cmp"
	"maps"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Leader is the recovery of one job on the Raft leader. One goroutine drives it.
type Leader struct {
	Clocks *Clocks // since when what has lasted: the job's

	known   known
	closing closing // the recovery under way
	outbox  outbox
	trust   trust
	seating seating
	ending  ending
	budget  Budget

	asks asks // of ranks to grow

	verdict plan.Verdict  // the planner's newest
	excused replica.Epoch // whose closing began a recovery that does not count

	// What follows from all of this, counted once a step.
	in *plan.Input
}

// NewLeader starts the recovery of a job, knowing nothing: one for each Raft term.
func NewLeader(job replica.JobID, t Timing) *Leader {
	l := &Leader{known: newKnown(job, t), closing: newClosing(0), budget: DefaultBudget()}
	l.outbox, l.Clocks = newOutbox(&l.known), &l.known.clocks
	l.trust, l.seating = newTrust(&l.known, &l.outbox), newSeating(&l.known, &l.outbox)
	l.ending = ending{known: &l.known, outbox: &l.outbox}
	return l
}

// Step takes one event in and returns what to do, in order. now is monotonic; an earlier one than before counts as equal.
func (l *Leader) Step(now time.Duration, ev Event) []Effect {
	l.outbox.effects, l.outbox.wake = nil, -1
	l.Learn(now, ev)
	if l.known.job != nil && l.known.job.Phase != replica.Ended {
		l.decide()
	}
	return l.outbox.effects
}

// Learn takes one event in and decides nothing: the next Step does. A driver that has many events for a large job, and other things
// to do, has it decide on several of them at once; what is decided is a function of what is known by then.
func (l *Leader) Learn(now time.Duration, ev Event) {
	kn := &l.known
	kn.now = max(kn.now, now)
	if kn.began < 0 {
		kn.began = kn.now
	}
	l.in, kn.owned, l.seating.seated = nil, nil, nil
	l.learn(ev)
}

// Next is when the leader wants a Tick; ok is false while only other events matter.
func (l *Leader) Next() (at time.Duration, ok bool) { return l.outbox.wake, l.outbox.wake >= 0 }

func (l *Leader) learn(ev Event) {
	kn := &l.known
	switch ev := ev.(type) {
	case JobChanged:
		l.learnJob(ev)
	case Report:
		kn.learnReport(ev.NodeReport)
	case Evidence:
		l.trust.learnLoadFailure(ev.Fault)
		kn.learnFault(ev.Fault)
	case Rejected:
		l.trust.learnRejected(ev)
	case Unreached:
		l.closing.learnUnreached(kn, ev)
	case Corrupt:
		l.trust.learnCorrupt(ev)
	case PutOff:
		l.closing.learnPutOff(kn, ev)
	case Stalled:
		l.trust.learnStalled(ev)
	case WritesOver:
		l.ending.writesOver = true
	case Writing:
		l.ending.writes.learn(ev, kn.now)
	case NodeUp:
		kn.linked(ev.Holder.Node)
		l.trust.askAgain(ev.Holder.Node)
		l.closing.linkedMeets(kn, ev.Holder.Node)
		l.asks.linked(ev.Holder.Node)
		l.closing.mirrored = replica.Generation{}
	case NodeGone:
		kn.gone(ev.Node)
		l.seating.withdraw(ev.Node)
	case DurableFound:
		l.closing.durable, l.closing.scanned, l.closing.unread = ev.Generations, true, ""
	case DurableUnread:
		l.closing.unread, l.closing.scanNext = cmp.Or(ev.Why, "no reason was given"), kn.now+scanRetry
	case Regions:
		l.trust.learnRegions(ev.RegionReport)
	case Kept:
		kn.clocks.Learn(kn.now, ev.From, ev.Ledger, ev.Most)
	case Outcome:
		l.learnOutcome(ev)
	case Tick:
	}
}

func (l *Leader) learnJob(ev JobChanged) {
	kn := &l.known
	if !kn.news(ev) {
		return
	}
	first := kn.job == nil
	for _, name := range kn.follow(ev) {
		l.trust.lies.renewed(name)
	}
	if kn.job.Position.Step > kn.committed {
		l.ending.pace.commits(kn.job.Epoch, kn.now, &kn.clocks)
		kn.commits()
	}
	if kn.job.ClosedEpoch != l.closing.epoch || first {
		l.closing = newClosing(kn.job.ClosedEpoch)
		kn.fenced(first)
	}
	kn.learnFaults(first)
	if kn.job.Phase == replica.Open {
		l.seating.opened()
	}
}

func (l *Leader) learnOutcome(o Outcome) {
	kn := &l.known
	name := proposalName(o.Cmd)
	was, known := l.outbox.pending[name]
	if _, grows := o.Cmd.(replica.Grow); grows && o.Err != nil {
		l.asks.failed++
		l.asks.why = o.Err.Error()
	}
	if o.Err != nil {
		l.outbox.pending[name] = proposed{kn.now + max(kn.t.Collect, time.Millisecond), was.on}
		return
	}
	// The change comes before its outcome, so what is still missing after it is asked for at once. What changed nothing would be
	// asked for again and again: that keeps its time.
	if known && kn.job != nil && kn.job.LastIndex > was.on {
		delete(l.outbox.pending, name)
	}
	if f, ok := o.Cmd.(replica.ReportFault); ok {
		delete(kn.evidence, plan.KeyOf(f.Fault))
	}
}

// decide looks at all that is known and asks for what is missing. It is a function of the present alone, so that order and
// repetition of events don't matter.
func (l *Leader) decide() {
	kn := &l.known
	l.seating.short, l.verdict = 0, plan.Verdict{}
	for name, p := range l.outbox.pending {
		if p.again <= kn.now {
			delete(l.outbox.pending, name)
		}
	}
	kn.missed(l.input())
	l.closing.forgetMeets(kn)
	for _, at := range kn.reach.doubts() {
		l.outbox.wakeAt(at)
	}
	l.assertFaults()
	l.trust.condemn()
	l.revive()
	l.excuse()
	switch kn.job.Phase {
	case replica.Opening:
		l.opening()
	case replica.Closed:
		l.closedEpoch()
	case replica.Planned:
		l.restoring()
	case replica.Open:
		l.training()
	case replica.Ended:
	}
}

// input is what the planner gets: the same for all that a step decides.
func (l *Leader) input() *plan.Input {
	kn := &l.known
	if l.in != nil {
		return l.in
	}
	in := plan.Input{Nodes: kn.nodes, Connected: maps.Clone(kn.up), AwaySince: kn.away,
		Reports: make(map[replica.NodeName]replica.NodeReport), Now: kn.now, Grace: kn.t.HolderGrace,
		Least: notBefore(kn.began, 0, kn.t.HolderGrace), Durable: l.closing.durable, Scanned: l.closing.scanned, Unread: l.closing.unread,
		Misfit: l.misfit, Doubted: l.trust.lies.doubted(kn.now), Made: kn.made}.Of(kn.job)
	for name, n := range kn.nodes {
		if r, ok := kn.reports[replica.Holder{Node: name, Incarnation: n.Incarnation}]; ok {
			in.Reports[name] = r
		}
	}
	l.in = in
	return in
}

// assertFaults proposes every fault that is known and not recorded: evidence, and the conditions that reports show.
func (l *Leader) assertFaults() {
	kn := &l.known
	for _, f := range kn.conditions() {
		if !kn.stale(f) && !kn.job.Records(f) {
			l.outbox.propose(replica.ReportFault{Job: kn.id, Fault: f})
		}
	}
	for _, k := range kn.inOrder() {
		f := kn.evidence[k]
		if f.Epoch == 0 || f.Kind.IsCondition() {
			f.Epoch = kn.job.Epoch // a condition lasts, so it cites the newest epoch
		}
		if kn.stale(f) || kn.job.Records(f) {
			delete(kn.evidence, k)
			continue
		}
		l.outbox.propose(replica.ReportFault{Job: kn.id, Fault: f})
	}
}
