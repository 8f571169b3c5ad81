package recovery

import (
	"fmt"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// opening has every rank claimed and its initial state sealed, and then plans the first epoch; or, where the job goes on
// from a durable generation, plans as for any recovery.
func (l *Leader) opening() {
	kn := &l.known
	if kn.job.Growth != nil {
		l.growing()
		return
	}
	if l.spent() || l.abandoned() {
		return
	}
	if kn.job.ClosedEpoch >= kn.job.Epoch {
		l.begin()
		return
	}
	l.seating.fillRanks(l.input())
	l.overdue()
	l.plan()
}

// abandoned ends a job that has never been opened and that nobody works at any more: nothing is lost with it, and what its launchers were
// told to start is asked for again by starting them.
func (l *Leader) abandoned() bool {
	kn := &l.known
	if kn.t.Abandoned <= 0 {
		return false
	}
	alone := replica.Clock{Kind: clockAlone}
	if !unattended(l.input()) {
		kn.clocks.End(alone)
		return false
	}
	if until := notBefore(kn.began, kn.clocks.Since(kn.now, alone)+kn.bound(AwaitLauncher), kn.t.Ack); kn.now < until {
		l.outbox.wakeAt(until)
		return false
	}
	l.outbox.propose(replica.EndJob{Job: kn.id, Reason: fmt.Sprintf("abandoned: it was never opened, and no launcher of it has been there for %v (timing.abandoned); the same replicad run starts it again", kn.t.Abandoned)})
	return true
}

// begin mints an epoch to attach under; what failed together is collected first.
func (l *Leader) begin() {
	kn := &l.known
	if until := kn.faults.last + kn.t.Collect; len(kn.faults.list) > 0 && kn.now < until {
		l.outbox.wakeAt(until)
		return
	}
	l.outbox.propose(replica.Begin{Job: kn.id, Epoch: kn.job.Epoch + 1})
}

// closedEpoch collects faults, acknowledgements and claims, and plans when there is nothing left to wait for.
func (l *Leader) closedEpoch() {
	kn := &l.known
	if kn.job.Stop != nil {
		l.ending.stopped()
		return
	}
	if l.spent() {
		return
	}
	l.overdue()
	l.trust.tellRegions()
	if l.trust.judge(l.input()) {
		return
	}
	l.seating.fillRanks(l.input())
	if until := kn.faults.last + kn.t.Collect; kn.now < until {
		l.outbox.wakeAt(until)
		return
	}
	if l.captureLive() {
		return
	}
	l.plan()
}

// spent ends the job when recoveries no longer get anywhere.
func (l *Leader) spent() bool {
	kn := &l.known
	began := kn.recoveries()
	if !l.budget.Spent(began, kn.now) {
		return false
	}
	last := "an unknown fault"
	for _, d := range plan.Disputes(kn.job.Job) {
		last = "a dispute: " + describe(d)
	}
	if n := len(kn.job.Faults); n > 0 {
		last = fmt.Sprintf("%v: %s", plan.KeyOf(kn.job.Faults[n-1]), kn.job.Faults[n-1].Detail)
	}
	l.outbox.propose(replica.EndJob{Job: kn.id, Reason: plan.DoNotRequeue +
		fmt.Sprintf("recovered %d times without a step beyond %d; the last cause was %s",
			len(began), kn.job.Position.Step, last), Keep: true})
	return true
}

// revive has a node that was taken for dead or silent, and has acknowledged the fence since, registered again, which ends
// its fault: its ranks and copies are there. An acknowledgement refutes that the node was silent also if it came before that fault did: a
// node that is linked has nothing more to say, and nobody would ask it again.
func (l *Leader) revive() {
	kn := &l.known
	in := l.input()
	for _, f := range kn.job.Faults {
		h := replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}
		if !f.OfNode() || !f.Kind.IsCondition() {
			continue
		}
		if rep, ok := in.Acknowledged(f.Node); ok && rep.Holder == h &&
			(kn.heard[h] > kn.faults.at[h] || f.Kind == replica.Silent && kn.up[f.Node]) {
			l.outbox.propose(replica.RegisterNode{Node: kn.nodes[f.Node]})
		}
	}
}

// plan runs the planner and acts on its verdict.
func (l *Leader) plan() {
	kn := &l.known
	in := l.input()
	ch, v := in.Decide()
	l.verdict = v
	if v.Scan {
		l.closing.scan(&l.outbox)
	}
	switch {
	case v.Kind == plan.Ready:
		// The placement of mirrors is the greater part of a plan: it is not made for a proposal that is under way.
		if next := (replica.ApplyPlan{Job: kn.id, Plan: in.Cites()}); !l.outbox.proposed(next) {
			next.Plan = in.Write(ch)
			l.outbox.propose(next)
		}
		return
	case v.Kind == plan.Stuck && v.Disputed != nil:
		l.trust.endDisputed(*v.Disputed, v.Reason)
		return
	case v.Kind == plan.Stuck:
		if v.Dispute != nil {
			regions, done := l.trust.nameRegions(v.Dispute)
			if !done {
				l.outbox.note("waiting", v.Reason+"; the two daemons compare its regions", map[string]string{"why": "regions"})
				return
			}
			v.Reason += fmt.Sprintf(": %s; remedy: broadcast the state of one rank of the group to the others before seal_initial; roots: %s", regions, v.Dispute.Roots)
		}
		l.outbox.note("stuck", v.Reason, nil)
		if v.Final {
			l.outbox.propose(replica.EndJob{Job: kn.id, Reason: v.Reason})
		}
		return
	}
	l.outbox.note("waiting", v.Reason, map[string]string{"why": string(v.Why)})
	switch v.Why {
	case plan.ForHolders:
		for _, n := range v.WaitFor {
			kn.miss(n)
		}
		l.outbox.wakeAt(v.Until)
	case plan.ForRanks:
		l.closing.mirror(&l.outbox, v.Scarce)
	case plan.ForAcks, plan.ForScan: // what comes of them is an event, or overdue's
	}
}

// captureLive asks the survivors to capture their live state where all of them stand whole at one step that is newer than
// the best eligible generation and would then be eligible (protocol section 6, settle), and waits for them to begin. Once they copy, their
// daemons are not settled, and the plan waits for that; one without a free slot never begins.
func (l *Leader) captureLive() (waiting bool) {
	kn := &l.known
	in := l.input()
	if _, wait := in.WaitForAcks(); wait {
		return false
	}
	if !l.closing.capture.asked {
		g, ok := in.Capturable()
		if !ok {
			return false
		}
		l.closing.capture = capturing{asked: true, gen: g, at: kn.now}
		l.outbox.send(Capture{g})
	}
	best, _, found := in.Stock().Newest(kn.job)
	if found && plan.Newer(best, l.closing.capture.gen) <= 0 && in.AllCaptured(l.closing.capture.gen) {
		return false
	}
	until := l.closing.capture.at + kn.bound(AwaitCapture)
	l.outbox.wakeAt(until)
	return kn.now < until
}

// growing has the ranks of a job that grows seal their step, and plans to go on from there. It ends no job: what does not work out is a fault.
func (l *Leader) growing() {
	l.overdue()
	if _, v := l.input().Decide(); v.Dispute != nil {
		l.blameGrowth(v.Dispute)
		return
	}
	l.plan()
}

// blameGrowth takes a growth back in which the ranks of a group don't have the same bytes in their new regions.
func (l *Leader) blameGrowth(d *plan.Dispute) {
	kn := &l.known
	regions, done := l.trust.nameRegions(d)
	if !done {
		l.outbox.note("waiting", d.String()+"; the two daemons compare its regions", map[string]string{"why": "regions"})
		return
	}
	r := d.Between[1].Held.Rank
	kn.learnFault(replica.Fault{Epoch: kn.job.Epoch, Kind: replica.Exception, Rank: r, Incarnation: kn.job.Ranks[r].Incarnation,
		Detail: fmt.Sprintf("growth at step %d: %v differs between ranks %d and %d: %s; remedy: give the new regions the same bytes on all ranks of the group before the growth", kn.job.Growth.Step, d.Part, d.Between[0].Held.Rank, r, regions)})
	l.assertFaults()
}

// excuse takes the newest recovery out of the budget where a rank at fault lies on a node that is short of something: a want passes, and is
// nobody's failure. The node reports the want while it lasts and shortly after, so a later word of it still counts.
func (l *Leader) excuse() {
	kn := &l.known
	if l.excused == kn.job.ClosedEpoch || !kn.awaitsNodes() {
		return
	}
	in := l.input()
	for _, f := range kn.job.Faults {
		if f.OfNode() || kn.stale(f) {
			continue
		}
		if n := kn.job.Ranks[f.Rank].Node; in.Reports[n].Short != "" {
			l.excused = kn.job.ClosedEpoch
			kn.clocks.EndAll(func(k replica.Clock) bool { return k.Kind == clockRecovered && k.Epoch == kn.job.ClosedEpoch })
			kn.clocks.endTold(func(k replica.Clock) bool { return k.Kind == clockRecovered && k.Epoch == kn.job.ClosedEpoch })
			return
		}
	}
}
