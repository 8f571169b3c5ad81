package recovery

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/replica"
)

// opening has every rank claimed and its initial state sealed, and then plans the first epoch; or, where the job goes on
// from a durable generation, plans as for any recovery.
func (l *Leader) opening() {
	if l.job.Growth != nil {
		l.growing()
		return
	}
	if l.spent() || l.abandoned() {
		return
	}
	if l.job.ClosedEpoch >= l.job.Epoch {
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
	if l.t.Abandoned <= 0 {
		return false
	}
	alone := replica.Clock{Kind: clockAlone}
	if !l.unattended() {
		l.Clocks.End(alone)
		return false
	}
	if until := notBefore(l.began, l.Clocks.Since(l.now, alone)+l.bound(AwaitLauncher), l.t.Ack); l.now < until {
		l.wakeAt(until)
		return false
	}
	l.propose(replica.EndJob{Job: l.id, Reason: fmt.Sprintf("abandoned: it was never opened, and no launcher of it has been there for %v (timing.abandoned); the same replicad run starts it again", l.t.Abandoned)})
	return true
}

// begin mints an epoch to attach under; what failed together is collected first.
func (l *Leader) begin() {
	if until := l.lastFault + l.t.Collect; len(l.faults) > 0 && l.now < until {
		l.wakeAt(until)
		return
	}
	l.propose(replica.Begin{Job: l.id, Epoch: l.job.Epoch + 1})
}

// closedEpoch collects faults, acknowledgements and claims, and plans when there is nothing left to wait for.
func (l *Leader) closedEpoch() {
	if l.job.Stop != nil {
		l.stopped()
		return
	}
	if l.spent() {
		return
	}
	l.overdue()
	l.tellRegions()
	if l.judge() {
		return
	}
	l.fillRanks()
	if until := l.lastFault + l.t.Collect; l.now < until {
		l.wakeAt(until)
		return
	}
	if l.captureLive() {
		return
	}
	l.plan()
}

// spent ends the job when recoveries no longer get anywhere.
func (l *Leader) spent() bool {
	began := recoveries(l)
	if !l.budget.Spent(began, l.now) {
		return false
	}
	last := "an unknown fault"
	for _, d := range disputes(l.job.Job) {
		last = "a dispute: " + describe(d)
	}
	if n := len(l.job.Faults); n > 0 {
		last = fmt.Sprintf("%v: %s", keyOf(l.job.Faults[n-1]), l.job.Faults[n-1].Detail)
	}
	l.propose(replica.EndJob{Job: l.id, Reason: DoNotRequeue + fmt.Sprintf("recovered %d times without a step beyond %d; the last cause was %s",
		len(began), l.job.Position.Step, last), Keep: true})
	return true
}

// missed keeps account of since when each node has not answered, in all phases: one that the job has nothing recorded on and
// that was silent for ack_timeout before a fault delays no recovery, however many there are.
func (l *Leader) missed() {
	in := l.input()
	l.Clocks.endTold(func(k replica.Clock) bool { return endedClock(l, k) })
	for n := range l.nodes {
		if k := goneClock(n, l.nodes[n]); l.up[n] {
			l.Clocks.End(k)
		} else {
			l.Clocks.Since(l.now, k)
		}
		if _, ok := in.answered(n); ok {
			delete(l.away, n)
			l.Clocks.End(missedClock(l.job, n))
		} else {
			l.miss(n)
		}
	}
}

// miss counts from when a node was missed, by this leader: of one that it has not heard yet, by an earlier one too.
func (l *Leader) miss(n replica.NodeName) {
	if _, ok := l.away[n]; !ok {
		l.away[n] = l.now
	}
	since := l.Clocks.Since(l.now, missedClock(l.job, n))
	if !l.up[n] && !l.came[n] {
		l.away[n] = min(l.away[n], since)
	}
}

// goneClock is that of a node which has no link to the leader.
func goneClock(name replica.NodeName, n replica.Node) replica.Clock {
	return replica.Clock{Kind: clockGone, Node: name, Of: uint64(n.Incarnation)<<32 ^ uint64(n.Session)}
}

// missedClock is that of a node which has not answered. One that the job has something recorded on has its time from each fence on.
func missedClock(job *record, n replica.NodeName) replica.Clock {
	k := replica.Clock{Kind: clockMissed, Node: n}
	if job != nil && job.involved(n) {
		k.Epoch = job.ClosedEpoch
	}
	return k
}

// goneAt is since when a node has had no link to a leader, as far as this one knows.
func (l *Leader) goneAt(n replica.NodeName) time.Duration {
	if at, ok := l.Clocks.At(goneClock(n, l.nodes[n])); ok {
		return at
	}
	return l.now
}

// notBefore is until, unless this leader has just begun: whoever is to be there by then has a third of its time to link first.
func notBefore(began, until, bound time.Duration) time.Duration { return max(until, began+bound/3) }

// endedClock tells whether a clock that an earlier leader handed out is of something that is over.
func endedClock(l *Leader, k replica.Clock) bool {
	switch k.Kind {
	case clockGone:
		return l.up[k.Node] || k != goneClock(k.Node, l.nodes[k.Node])
	case clockVacant, clockOffered:
		return int(k.Rank) >= len(l.job.Ranks) || !l.job.vacant(k.Rank) || uint64(l.job.Ranks[k.Rank].Incarnation) != k.Of
	case clockRecovered:
		return k.Of < uint64(l.committed)
	default:
		return k.Epoch != 0 && k.Epoch < l.job.ClosedEpoch
	}
}

// revive has a node that was taken for dead or silent, and has acknowledged the fence since, registered again, which ends
// its fault: its ranks and copies are there. An acknowledgement refutes that the node was silent also if it came before that fault did: a
// node that is linked has nothing more to say, and nobody would ask it again.
func (l *Leader) revive() {
	in := l.input()
	for _, f := range l.job.Faults {
		h := replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}
		if !f.OfNode() || !f.Kind.IsCondition() {
			continue
		}
		if rep, ok := in.acknowledged(f.Node); ok && rep.Holder == h && (l.heard[h] > l.faultedAt[h] || f.Kind == replica.Silent && l.up[f.Node]) {
			l.propose(replica.RegisterNode{Node: l.nodes[f.Node]})
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
		if next := (replica.ApplyPlan{Job: l.id, Plan: in.cites()}); !l.proposed(next) {
			next.Plan = in.write(ch)
			l.propose(next)
		}
		return
	case v.Kind == Stuck && v.disputed != nil:
		l.endDisputed(*v.disputed, v.Reason)
		return
	case v.Kind == Stuck:
		if v.dispute != nil {
			regions, done := l.nameRegions(v.dispute)
			if !done {
				l.note("waiting", v.Reason+"; the two daemons compare its regions", map[string]string{"why": "regions"})
				return
			}
			v.Reason += fmt.Sprintf(": %s; remedy: broadcast the state of one rank of the group to the others before seal_initial; roots: %s", regions, v.dispute.roots)
		}
		l.note("stuck", v.Reason, nil)
		if v.Final {
			l.propose(replica.EndJob{Job: l.id, Reason: v.Reason})
		}
		return
	}
	l.note("waiting", v.Reason, map[string]string{"why": string(v.Why)})
	switch v.Why {
	case ForHolders:
		for _, n := range v.WaitFor {
			l.miss(n)
		}
		l.wakeAt(v.Until)
	case ForRanks:
		l.mirror(v.Scarce)
	case ForAcks, ForScan: // what comes of them is an event, or overdue's
	}
}

// mirror has the generation that the job is to resume at copied while it waits for processes. What was sealed last may lie on its
// node alone, since the fence came before its push; the wait takes as long as a program takes to start, or a node to be replaced,
// and a further fault in it must not cost the step.
func (l *Leader) mirror(g replica.Generation) {
	if l.job.Phase == replica.Closed && !g.IsZero() && g != l.closing.mirrored {
		l.closing.mirrored = g
		l.out = append(l.out, Mirror{g})
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
	if l.now < l.closing.scanNext {
		l.wakeAt(l.closing.scanNext)
		return
	}
	l.closing.scanNext = l.now + l.bound(AwaitDisk)
	l.wakeAt(l.closing.scanNext)
	l.out = append(l.out, ScanDurable{})
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
		l.closing.capture = capturing{asked: true, gen: g, at: l.now}
		l.out = append(l.out, Capture{g})
	}
	best, _, found := in.stock().newest(l.job)
	if found && newer(best, l.closing.capture.gen) <= 0 && in.allCaptured(l.closing.capture.gen) {
		return false
	}
	until := l.closing.capture.at + l.bound(AwaitCapture)
	l.wakeAt(until)
	return l.now < until
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
