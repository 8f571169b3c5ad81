package recovery

import (
	"cmp"
	"maps"
	"time"

	"github.com/replicad/replicad/replica"
)

// Leader is the recovery of one job on the Raft leader. One goroutine drives it.
type Leader struct {
	Clocks *Clocks // since when what has lasted: the job's

	known   known
	closing closing // the recovery under way
	outbox  outbox
	trust   trust
	budget  Budget

	offers  map[replica.Rank]*offering
	turn    replica.Rank // the first to be offered in the next step
	short   int          // vacant ranks that no node offers a process for
	asks    asks         // of ranks to grow
	parting parting
	// writesNoMore: durable writes of the job have ended for good.
	writesNoMore bool
	pace         pace
	writes       writes

	verdict Verdict       // the planner's newest
	excused replica.Epoch // whose closing began a recovery that does not count

	// What follows from all of this, counted once a step.
	in     *PlanInput
	seated *seats
}

// NewLeader starts the recovery of a job, knowing nothing: one for each Raft term.
func NewLeader(job replica.JobID, t Timing) *Leader {
	l := &Leader{known: newKnown(job, t), closing: newClosing(0), budget: DefaultBudget(), offers: make(map[replica.Rank]*offering)}
	l.outbox, l.Clocks = newOutbox(&l.known), &l.known.clocks
	l.trust = newTrust(&l.known, &l.outbox)
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
	l.known.now = max(l.known.now, now)
	if l.known.began < 0 {
		l.known.began = l.known.now
	}
	l.in, l.known.owned, l.seated = nil, nil, nil
	l.learn(ev)
}

// Next is when the leader wants a Tick; ok is false while only other events matter.
func (l *Leader) Next() (at time.Duration, ok bool) { return l.outbox.wake, l.outbox.wake >= 0 }

func (l *Leader) learn(ev Event) {
	switch ev := ev.(type) {
	case JobChanged:
		l.learnJob(ev)
	case Report:
		l.known.learnReport(ev.NodeReport)
	case Evidence:
		l.trust.learnLoadFailure(ev.Fault)
		l.known.learnFault(ev.Fault)
	case Rejected:
		l.trust.learnRejected(ev)
	case Unreached:
		l.learnUnreached(ev)
	case Corrupt:
		l.trust.learnCorrupt(ev)
	case PutOff:
		l.learnPutOff(ev)
	case Stalled:
		l.trust.learnStalled(ev)
	case WritesOver:
		l.writesNoMore = true
	case Writing:
		l.writes.learn(ev, l.known.now)
	case NodeUp:
		l.known.linked(ev.Holder.Node)
		l.trust.askAgain(ev.Holder.Node)
		l.linkedMeets(ev.Holder.Node)
		l.asks.linked(ev.Holder.Node)
		l.closing.mirrored = replica.Generation{}
	case NodeGone:
		l.known.gone(ev.Node)
		l.withdraw(ev.Node)
	case DurableFound:
		l.closing.durable, l.closing.scanned, l.closing.unread = ev.Generations, true, ""
	case DurableUnread:
		l.closing.unread, l.closing.scanNext = cmp.Or(ev.Why, "no reason was given"), l.known.now+scanRetry
	case Regions:
		l.trust.learnRegions(ev.RegionReport)
	case Kept:
		l.known.clocks.Learn(l.known.now, ev.From, ev.Ledger, ev.Most)
	case Outcome:
		l.learnOutcome(ev)
	case Tick:
	}
}

func (l *Leader) learnJob(ev JobChanged) {
	if !l.known.news(ev) {
		return
	}
	first := l.known.job == nil
	for _, name := range l.known.follow(ev) {
		l.trust.lies.renewed(name)
	}
	if l.known.job.Position.Step > l.known.committed {
		l.pace.commits(l.known.job.Epoch, l.known.now, &l.known.clocks)
		l.known.commits()
	}
	if l.known.job.ClosedEpoch != l.closing.epoch || first {
		l.closing = newClosing(l.known.job.ClosedEpoch)
		l.known.fenced(first)
	}
	l.known.learnFaults(first)
	if l.known.job.Phase == replica.Open {
		if len(l.offers) > 0 {
			l.known.clocks.EndAll(func(k replica.Clock) bool { return k.Kind == clockVacant || k.Kind == clockOffered })
		}
		clear(l.offers)
	}
}

func (l *Leader) learnOutcome(o Outcome) {
	name := proposalName(o.Cmd)
	was, known := l.outbox.pending[name]
	if _, grows := o.Cmd.(replica.Grow); grows && o.Err != nil {
		l.asks.failed++
		l.asks.why = o.Err.Error()
	}
	if o.Err != nil {
		l.outbox.pending[name] = proposed{l.known.now + max(l.known.t.Collect, time.Millisecond), was.on}
		return
	}
	// The change comes before its outcome, so what is still missing after it is asked for at once. What changed nothing would be
	// asked for again and again: that keeps its time.
	if known && l.known.job != nil && l.known.job.LastIndex > was.on {
		delete(l.outbox.pending, name)
	}
	if f, ok := o.Cmd.(replica.ReportFault); ok {
		delete(l.known.evidence, keyOf(f.Fault))
	}
}

// decide looks at all that is known and asks for what is missing. It is a function of the present alone, so that order and
// repetition of events don't matter.
func (l *Leader) decide() {
	l.short, l.verdict = 0, Verdict{}
	for name, p := range l.outbox.pending {
		if p.again <= l.known.now {
			delete(l.outbox.pending, name)
		}
	}
	l.known.missed(l.input())
	l.forgetMeets()
	l.awaitCuts()
	l.assertFaults()
	l.trust.condemn()
	l.revive()
	l.excuse()
	switch l.known.job.Phase {
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
func (l *Leader) input() *PlanInput {
	if l.in != nil {
		return l.in
	}
	in := &PlanInput{Job: l.known.job.Job, rec: l.known.job, Nodes: l.known.nodes, Reports: make(map[replica.NodeName]replica.NodeReport), Connected: maps.Clone(l.known.up),
		AwaySince: l.known.away, Now: l.known.now, Grace: l.known.t.HolderGrace, Least: notBefore(l.known.began, 0, l.known.t.HolderGrace), Durable: l.closing.durable, Scanned: l.closing.scanned, Unread: l.closing.unread, Misfit: l.misfit, Doubted: l.trust.lies.doubted(l.known.now), Made: l.known.made}
	for name, n := range l.known.nodes {
		if r, ok := l.known.reports[replica.Holder{Node: name, Incarnation: n.Incarnation}]; ok {
			in.Reports[name] = r
		}
	}
	l.in = in
	return in
}
