package recovery

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/replica"
)

// opening has every rank claimed and its initial state sealed, and then plans the first epoch; or, where the job goes on
// from a durable generation, plans as for any recovery.
func (l *Leader) opening() {
	if l.known.job.Growth != nil {
		l.growing()
		return
	}
	if l.spent() || l.abandoned() {
		return
	}
	if l.known.job.ClosedEpoch >= l.known.job.Epoch {
		l.begin()
		return
	}
	l.fillRanks()
	l.overdue()
	l.plan()
}

// abandoned ends a job that has never been opened and that nobody works at any more: nothing is lost with it, and what its launchers were
// told to start is asked for again by starting them.
func (l *Leader) abandoned() bool {
	if l.known.t.Abandoned <= 0 {
		return false
	}
	alone := replica.Clock{Kind: clockAlone}
	if !l.unattended() {
		l.known.clocks.End(alone)
		return false
	}
	if until := notBefore(l.known.began, l.known.clocks.Since(l.known.now, alone)+l.known.bound(AwaitLauncher), l.known.t.Ack); l.known.now < until {
		l.outbox.wakeAt(until)
		return false
	}
	l.outbox.propose(replica.EndJob{Job: l.known.id, Reason: fmt.Sprintf("abandoned: it was never opened, and no launcher of it has been there for %v (timing.abandoned); the same replicad run starts it again", l.known.t.Abandoned)})
	return true
}

// begin mints an epoch to attach under; what failed together is collected first.
func (l *Leader) begin() {
	if until := l.known.faults.last + l.known.t.Collect; len(l.known.faults.list) > 0 && l.known.now < until {
		l.outbox.wakeAt(until)
		return
	}
	l.outbox.propose(replica.Begin{Job: l.known.id, Epoch: l.known.job.Epoch + 1})
}

// closedEpoch collects faults, acknowledgements and claims, and plans when there is nothing left to wait for.
func (l *Leader) closedEpoch() {
	if l.known.job.Stop != nil {
		l.stopped()
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
	l.fillRanks()
	if until := l.known.faults.last + l.known.t.Collect; l.known.now < until {
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
	began := l.known.recoveries()
	if !l.budget.Spent(began, l.known.now) {
		return false
	}
	last := "an unknown fault"
	for _, d := range disputes(l.known.job.Job) {
		last = "a dispute: " + describe(d)
	}
	if n := len(l.known.job.Faults); n > 0 {
		last = fmt.Sprintf("%v: %s", keyOf(l.known.job.Faults[n-1]), l.known.job.Faults[n-1].Detail)
	}
	l.outbox.propose(replica.EndJob{Job: l.known.id, Reason: DoNotRequeue + fmt.Sprintf("recovered %d times without a step beyond %d; the last cause was %s",
		len(began), l.known.job.Position.Step, last), Keep: true})
	return true
}

// revive has a node that was taken for dead or silent, and has acknowledged the fence since, registered again, which ends
// its fault: its ranks and copies are there. An acknowledgement refutes that the node was silent also if it came before that fault did: a
// node that is linked has nothing more to say, and nobody would ask it again.
func (l *Leader) revive() {
	in := l.input()
	for _, f := range l.known.job.Faults {
		h := replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}
		if !f.OfNode() || !f.Kind.IsCondition() {
			continue
		}
		if rep, ok := in.acknowledged(f.Node); ok && rep.Holder == h && (l.known.heard[h] > l.known.faults.at[h] || f.Kind == replica.Silent && l.known.up[f.Node]) {
			l.outbox.propose(replica.RegisterNode{Node: l.known.nodes[f.Node]})
		}
	}
}

// plan runs the planner and acts on its verdict.
func (l *Leader) plan() {
	in := l.input()
	ch, v := in.decide()
	l.verdict = v
	if v.Scan {
		l.scan()
	}
	switch {
	case v.Kind == Ready:
		// The placement of mirrors is the greater part of a plan: it is not made for a proposal that is under way.
		if next := (replica.ApplyPlan{Job: l.known.id, Plan: in.cites()}); !l.outbox.proposed(next) {
			next.Plan = in.write(ch)
			l.outbox.propose(next)
		}
		return
	case v.Kind == Stuck && v.disputed != nil:
		l.trust.endDisputed(*v.disputed, v.Reason)
		return
	case v.Kind == Stuck:
		if v.dispute != nil {
			regions, done := l.trust.nameRegions(v.dispute)
			if !done {
				l.outbox.note("waiting", v.Reason+"; the two daemons compare its regions", map[string]string{"why": "regions"})
				return
			}
			v.Reason += fmt.Sprintf(": %s; remedy: broadcast the state of one rank of the group to the others before seal_initial; roots: %s", regions, v.dispute.roots)
		}
		l.outbox.note("stuck", v.Reason, nil)
		if v.Final {
			l.outbox.propose(replica.EndJob{Job: l.known.id, Reason: v.Reason})
		}
		return
	}
	l.outbox.note("waiting", v.Reason, map[string]string{"why": string(v.Why)})
	switch v.Why {
	case ForHolders:
		for _, n := range v.WaitFor {
			l.known.miss(n)
		}
		l.outbox.wakeAt(v.Until)
	case ForRanks:
		l.mirror(v.Scarce)
	case ForAcks, ForScan: // what comes of them is an event, or overdue's
	}
}

// mirror has the generation that the job is to resume at copied while it waits for processes. What was sealed last may lie on its
// node alone, since the fence came before its push; the wait takes as long as a program takes to start, or a node to be replaced,
// and a further fault in it must not cost the step.
func (l *Leader) mirror(g replica.Generation) {
	if l.known.job.Phase == replica.Closed && !g.IsZero() && g != l.closing.mirrored {
		l.closing.mirrored = g
		l.outbox.send(Mirror{g})
	}
}

// scanRetry is how long after a scan of the durable tier that failed the next one is asked for: what ails a disk or a mount
// takes a person, and each try costs the file system.
const scanRetry = 5 * time.Second

// scan asks for the durable tier's contents, again if no answer came or it could not be read.
func (l *Leader) scan() {
	if l.closing.scanned {
		return
	}
	if l.known.now < l.closing.scanNext {
		l.outbox.wakeAt(l.closing.scanNext)
		return
	}
	l.closing.scanNext = l.known.now + l.known.bound(AwaitDisk)
	l.outbox.wakeAt(l.closing.scanNext)
	l.outbox.send(ScanDurable{})
}

// capturing is a capture of the survivors' live state that was asked for.
type capturing struct {
	asked bool
	gen   replica.Generation
	at    time.Duration
}

// captureLive asks the survivors to capture their live state where all of them stand whole at one step that is newer than
// the best eligible generation and would then be eligible (protocol section 6, settle), and waits for them to begin. Once they copy, their
// daemons are not settled, and the plan waits for that; one without a free slot never begins.
func (l *Leader) captureLive() (waiting bool) {
	in := l.input()
	if _, wait := in.waitForAcks(); wait {
		return false
	}
	if !l.closing.capture.asked {
		g, ok := in.capturable()
		if !ok {
			return false
		}
		l.closing.capture = capturing{asked: true, gen: g, at: l.known.now}
		l.outbox.send(Capture{g})
	}
	best, _, found := in.stock().newest(l.known.job)
	if found && newer(best, l.closing.capture.gen) <= 0 && in.allCaptured(l.closing.capture.gen) {
		return false
	}
	until := l.closing.capture.at + l.known.bound(AwaitCapture)
	l.outbox.wakeAt(until)
	return l.known.now < until
}

// capturable is the step at which all survivors stand whole, if its capture would give a newer eligible generation.
func (in *PlanInput) capturable() (g replica.Generation, ok bool) {
	j, st := in.record(), in.stock()
	groups := make(map[replica.GroupID][]replica.Rank) // survivors of each
	for r := range j.Ranks {
		rank := replica.Rank(r)
		if j.vacant(rank) {
			continue
		}
		rep, here := in.rank(rank)
		live := rep.Live.Generation()
		switch {
		case here && !survivor(rep):
			continue
		case !here || !rep.Whole || !rep.Stopped || len(groups) > 0 && live != g:
			return g, false
		}
		g = live
		groups[j.Layout.Groups[r]] = append(groups[j.Layout.Groups[r]], rank)
	}
	if len(groups) == 0 || !eligible(j.Job, g) {
		return g, false
	}
	best, _, found := st.newest(j)
	if found && newer(g, best) >= 0 {
		return g, false
	}
	// A capture goes into a slot that holds neither of these.
	if kept := map[replica.Generation]bool{j.Committed: true, best: true}; len(kept) >= max(2, j.Options.Slots) {
		return g, false
	}
	lone := false // a group would have one producer to speak for it
	for _, p := range parts(j.Layout) {
		if p.Kind != replica.ReplicatedPart {
			if len(st[g][p]) == 0 {
				return g, false
			}
			continue
		}
		group := replica.GroupID(p.Index)
		if len(st[g][p]) == 0 && len(groups[group]) == 0 {
			return g, false
		}
		lone = lone || st.voices(g, p, groups[group]) < min(2, len(j.membersOf(group)))
	}
	return g, !lone || !j.Options.RequireVotes && !(found && nearEnough(j.Job, g, best))
}

// voices counts the ranks that have sealed a part of g themselves, or will.
func (st stock) voices(g replica.Generation, p replica.Part, will []replica.Rank) int {
	speak := make(map[replica.Rank]bool)
	for _, r := range will {
		speak[r] = true
	}
	for _, c := range st[g][p] {
		if c.produced() {
			speak[c.held.Rank] = true
		}
	}
	return len(speak)
}

// survivor tells whether a process has state of an opened epoch; one that claimed its rank since the fault has none yet.
func survivor(rep replica.RankReport) bool { return rep.Loaded != 0 && rep.Loaded == rep.Live.Epoch() }

// allCaptured tells whether every survivor holds its replicated part of g in its own arena.
func (in *PlanInput) allCaptured(g replica.Generation) bool {
	held := make(map[replica.Rank]bool)
	for p, copies := range in.stock()[g] {
		for _, c := range copies {
			if p.Kind == replica.ReplicatedPart && !c.held.Mirror {
				held[c.held.Rank] = true
			}
		}
	}
	for r := range in.Job.Ranks {
		rep, here := in.rank(replica.Rank(r))
		if here && survivor(rep) && !held[rep.Rank] {
			return false
		}
	}
	return true
}
