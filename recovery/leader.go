package recovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// maxEvidence bounds the faults that wait to be recorded; what is dropped is seen again by whoever saw it.
const maxEvidence = 4096

// Leader is the recovery of one job on the Raft leader. One goroutine drives it.
type Leader struct {
	id     replica.JobID
	t      Timing
	budget Budget

	// What it knows.
	now      time.Duration
	job      *record
	nodes    map[replica.NodeName]replica.Node
	reports  map[replica.Holder]replica.NodeReport // newest of each life of a node's memory
	heard    map[replica.Holder]time.Duration      // when its last report came
	signs    map[replica.Rank]sign
	up       map[replica.NodeName]bool
	evidence map[faultKey]replica.Fault // accepted, not yet recorded

	// What it has asked for.
	pending map[string]proposed // proposals by name
	offers  map[replica.Rank]*offering
	turn    replica.Rank // the first to be offered in the next step
	short   int          // vacant ranks that no node offers a process for
	noted   map[string]string
	failed  map[replica.Generation]map[replica.Incarnation]bool // who could not load it
	blamed  map[replica.Generation]string                       // to be condemned, and why

	Clocks Clocks                             // since when what has lasted: the job's
	away   map[replica.NodeName]time.Duration // since when missed, since this leader began to
	began  time.Duration                      // negative: not yet
	reach  reach                              // who can't have parts from whom
	stage  stage                              // where the job is, and since when
	came   map[replica.NodeName]bool          // this leader has seen them go, or come anew
	lies   lies
	asks   asks // of ranks to grow

	shunned shunned // who does not take which part
	made    furthest

	closing   closing // the recovery under way
	lastFault time.Duration
	faults    []replica.Fault                  // recorded when last looked
	faultedAt map[replica.Holder]time.Duration // when the newest fault of a node was seen first
	naming    naming
	parting   parting
	// writesNoMore: durable writes of the job have ended for good.
	writesNoMore bool
	pace         pace
	writes       writes
	verdict      Verdict // the planner's newest

	excused   replica.Epoch // whose closing began a recovery that does not count
	committed replica.Step

	out  []Effect
	wake time.Duration // negative: none

	// What follows from all of this, counted once a step.
	in     *PlanInput
	owned  []*replica.RankReport
	seated *seats
}

// NewLeader starts the recovery of a job, knowing nothing: one for each Raft term.
func NewLeader(job replica.JobID, t Timing) *Leader {
	l := &Leader{id: job, t: t, budget: DefaultBudget(),
		reports: make(map[replica.Holder]replica.NodeReport), heard: make(map[replica.Holder]time.Duration), signs: make(map[replica.Rank]sign), up: make(map[replica.NodeName]bool),
		evidence: make(map[faultKey]replica.Fault), pending: make(map[string]proposed), away: make(map[replica.NodeName]time.Duration), began: -1, reach: reach{}, came: make(map[replica.NodeName]bool), lies: newLies(), closing: newClosing(0),
		faultedAt: make(map[replica.Holder]time.Duration), offers: make(map[replica.Rank]*offering), noted: make(map[string]string), wake: -1,
		failed: make(map[replica.Generation]map[replica.Incarnation]bool), blamed: make(map[replica.Generation]string)}
	return l
}

// Step takes one event in and returns what to do, in order. now is monotonic; an earlier one than before counts as equal.
func (l *Leader) Step(now time.Duration, ev Event) []Effect {
	l.out, l.wake = nil, -1
	l.Learn(now, ev)
	if l.job != nil && l.job.Phase != replica.Ended {
		l.decide()
	}
	return l.out
}

// Learn takes one event in and decides nothing: the next Step does. A driver that has many events for a large job, and other things
// to do, has it decide on several of them at once; what is decided is a function of what is known by then.
func (l *Leader) Learn(now time.Duration, ev Event) {
	l.now = max(l.now, now)
	if l.began < 0 {
		l.began = l.now
	}
	l.in, l.owned, l.seated = nil, nil, nil
	l.learn(ev)
}

// Next is when the leader wants a Tick; ok is false while only other events matter.
func (l *Leader) Next() (at time.Duration, ok bool) { return l.wake, l.wake >= 0 }

func (l *Leader) learn(ev Event) {
	switch ev := ev.(type) {
	case JobChanged:
		l.learnJob(ev)
	case Report:
		l.learnReport(ev.NodeReport)
	case Evidence:
		l.learnLoadFailure(ev.Fault)
		l.learnFault(ev.Fault)
	case Rejected:
		l.learnRejected(ev)
	case Unreached:
		l.learnUnreached(ev)
	case Corrupt:
		l.learnCorrupt(ev)
	case PutOff:
		l.learnPutOff(ev)
	case Stalled:
		l.learnStalled(ev)
	case WritesOver:
		l.writesNoMore = true
	case Writing:
		l.writes.learn(ev, l.now)
	case NodeUp:
		l.up[ev.Holder.Node] = true
		delete(l.away, ev.Holder.Node) // it is here, and has its time to answer
		l.Clocks.End(goneClock(ev.Holder.Node, l.nodes[ev.Holder.Node]))
		if l.came[ev.Holder.Node] {
			l.Clocks.End(missedClock(l.job, ev.Holder.Node))
		}
		l.askAgain(ev.Holder.Node)
		linkedMeets(l, ev.Holder.Node)
		l.asks.linked(ev.Holder.Node)
		l.closing.mirrored = replica.Generation{}
	case NodeGone:
		delete(l.up, ev.Node)
		l.Clocks.End(goneClock(ev.Node, l.nodes[ev.Node]))
		l.Clocks.Since(l.now, goneClock(ev.Node, l.nodes[ev.Node]))
		l.came[ev.Node] = true
		l.reach.gone(ev.Node)
		l.withdraw(ev.Node)
	case DurableFound:
		l.closing.durable, l.closing.scanned, l.closing.unread = ev.Generations, true, ""
	case DurableUnread:
		l.closing.unread, l.closing.scanNext = cmp.Or(ev.Why, "no reason was given"), l.now+scanRetry
	case Regions:
		l.learnRegions(ev.RegionReport)
	case Kept:
		l.Clocks.Learn(l.now, ev.From, ev.Ledger, ev.Most)
	case Outcome:
		l.learnOutcome(ev)
	case Tick:
	}
}

func (l *Leader) learnJob(ev JobChanged) {
	if ev.Job == nil || ev.Job.ID != l.id || l.job != nil && (ev.Job.LastIndex < l.job.LastIndex || olderNodes(ev.Nodes, l.nodes)) {
		return
	}
	first := l.job == nil
	for name, n := range ev.Nodes {
		if was := l.nodes[name]; was.Incarnation != n.Incarnation || was.Session != n.Session {
			delete(l.away, name)
			l.reach.renewed(name)
			l.lies.renewed(name)
			if l.came[name] = l.came[name] || !first; l.came[name] {
				l.Clocks.End(missedClock(l.job, name))
			}
		}
	}
	if l.nodes = ev.Nodes; first || l.job.Job != ev.Job {
		l.job = newRecord(ev.Job)
	}
	for h := range l.reports {
		// A life of a node's memory that was followed by a registered and reporting one says nothing more.
		if n, ok := l.nodes[h.Node]; ok && n.Incarnation != h.Incarnation {
			if _, reporting := l.reports[replica.Holder{Node: h.Node, Incarnation: n.Incarnation}]; reporting {
				delete(l.reports, h)
				delete(l.heard, h)
			}
		}
	}
	l.learnStage(first)
	if l.job.Position.Step > l.committed {
		l.pace.commits(l.job.Epoch, l.now, &l.Clocks)
		l.committed = l.job.Position.Step
		l.Clocks.EndAll(func(k replica.Clock) bool { return endedClock(l, k) && k.Kind == clockRecovered })
	}
	if l.job.ClosedEpoch != l.closing.epoch || first {
		l.closing = newClosing(l.job.ClosedEpoch)
		l.fenced()
		if under := l.job.Phase == replica.Closed || l.job.Phase == replica.Planned; (!first || under) && l.job.Growth == nil { // a growth closes an epoch, and recovers nothing
			l.Clocks.Since(l.now, recoveredClock(l))
		}
	}
	if first || anyNew(l.job.Faults, l.faults) {
		l.lastFault = l.now
	}
	for _, f := range l.job.Faults {
		if f.OfNode() && (first || !slices.Contains(l.faults, f)) {
			l.faultedAt[replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}] = l.now
		}
	}
	maps.DeleteFunc(l.faultedAt, func(h replica.Holder, _ time.Duration) bool {
		return !slices.ContainsFunc(l.job.Faults, func(f replica.Fault) bool { return f.Node == h.Node && f.NodeIncarnation == h.Incarnation })
	})
	for _, f := range l.faults {
		if f.OfNode() && f.Epoch == l.job.Epoch && !slices.Contains(l.job.Faults, f) {
			delete(l.away, f.Node) // it has registered again, and has its time to answer: nobody waited for it before
			l.Clocks.End(missedClock(l.job, f.Node))
			l.came[f.Node] = true
		}
	}
	l.faults = l.job.Faults
	if l.job.Phase == replica.Open {
		if len(l.offers) > 0 {
			l.Clocks.EndAll(func(k replica.Clock) bool { return k.Kind == clockVacant || k.Kind == clockOffered })
		}
		clear(l.offers)
	}
}

// anyNew tells whether a list of faults has one that another has not.
func anyNew(faults, than []replica.Fault) bool {
	had := make(map[replica.Fault]bool, len(than))
	for _, f := range than {
		had[f] = true
	}
	return slices.ContainsFunc(faults, func(f replica.Fault) bool { return !had[f] })
}

// olderNodes tells whether a view of the nodes is from before another: a node's session or life in it was superseded.
func olderNodes(view, than map[replica.NodeName]replica.Node) bool {
	for name, n := range than {
		v, known := view[name]
		if !known || v.Incarnation == n.Incarnation && v.Session < n.Session || slices.Contains(n.Former, v.Incarnation) {
			return true
		}
	}
	return false
}

// fenced drops the times that earlier epochs took. A node that the job has something recorded on has its time from each fence on.
func (l *Leader) fenced() {
	l.Clocks.forget(l.job.ClosedEpoch)
	maps.DeleteFunc(l.away, func(n replica.NodeName, _ time.Duration) bool { return l.job.involved(n) })
}

func (l *Leader) learnReport(r replica.NodeReport) {
	if r.Job != l.id {
		return
	}
	old, seen := l.reports[r.Holder]
	if seen && (r.Session < old.Session || r.Session == old.Session && r.Seq < old.Seq) {
		return
	}
	l.reports[r.Holder], l.heard[r.Holder] = r, l.now
	l.learnSigns(r)
	l.stage.hear(l.now, r)
	if l.job != nil {
		l.made.learn(l.job.Job, r.Ranks)
	}
	l.up[r.Holder.Node] = true
}

func (l *Leader) learnOutcome(o Outcome) {
	name := proposalName(o.Cmd)
	was, known := l.pending[name]
	if _, grows := o.Cmd.(replica.Grow); grows && o.Err != nil {
		l.asks.failed++
		l.asks.why = o.Err.Error()
	}
	if o.Err != nil {
		l.pending[name] = proposed{l.now + max(l.t.Collect, time.Millisecond), was.on}
		return
	}
	// The change comes before its outcome, so what is still missing after it is asked for at once. What changed nothing would be
	// asked for again and again: that keeps its time.
	if known && l.job != nil && l.job.LastIndex > was.on {
		delete(l.pending, name)
	}
	if f, ok := o.Cmd.(replica.ReportFault); ok {
		delete(l.evidence, keyOf(f.Fault))
	}
}

// decide looks at all that is known and asks for what is missing. It is a function of the present alone, so that order and
// repetition of events don't matter.
func (l *Leader) decide() {
	l.short, l.verdict = 0, Verdict{}
	for name, p := range l.pending {
		if p.again <= l.now {
			delete(l.pending, name)
		}
	}
	l.missed()
	l.forgetMeets()
	l.awaitCuts()
	l.assertFaults()
	l.condemn()
	l.revive()
	l.excuse()
	switch l.job.Phase {
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

// propose makes a proposal unless it is under way.
func (l *Leader) propose(c replica.Command) {
	name := proposalName(c)
	p, ok := l.pending[name]
	if !ok {
		p = proposed{l.now + max(l.t.Ack, time.Second), l.job.LastIndex}
		l.pending[name] = p
	}
	l.wakeAt(p.again)
	if ok {
		return
	}
	l.out = append(l.out, Propose{c})
}

// proposed tells whether a proposal is under way.
func (l *Leader) proposed(c replica.Command) bool {
	p, ok := l.pending[proposalName(c)]
	if ok {
		l.wakeAt(p.again)
	}
	return ok
}

// proposed is a proposal that was made, on the job as an entry left it.
type proposed struct {
	again time.Duration // when it may be made again
	on    uint64
}

// proposalName tells proposals apart that may be outstanding together.
func proposalName(c replica.Command) string {
	switch c := c.(type) {
	case replica.ReportFault:
		return fmt.Sprintf("fault %v at %d", keyOf(c.Fault), c.Fault.Epoch)
	case replica.ApplyPlan:
		return fmt.Sprintf("plan %d on %d", c.Plan.Epoch, c.Plan.Cites)
	case replica.Resume:
		return fmt.Sprintf("resume %d %v", c.Epoch, c.Spread)
	case replica.Grow:
		return fmt.Sprintf("grow %d", c.Epoch)
	case replica.Begin:
		return fmt.Sprintf("begin %d", c.Epoch)
	case replica.Quarantine:
		return fmt.Sprintf("quarantine %s %v", c.Node, c.Clear)
	case replica.Condemn:
		return fmt.Sprintf("condemn %v", c.Generation)
	case replica.SetCopies:
		return fmt.Sprintf("copies %d", c.Copies)
	case replica.RegisterNode:
		return fmt.Sprintf("register %s %d session %d", c.Node.Name, c.Node.Incarnation, c.Node.Session)
	}
	return fmt.Sprintf("%T", c) // of these one at a time is enough: whatever the next says is of the state after it
}

func (l *Leader) wakeAt(at time.Duration) {
	if at > l.now && (l.wake < 0 || at < l.wake) {
		l.wake = at
	}
}

// note tells people something once, until it changes.
func (l *Leader) note(code, text string, fields map[string]string) {
	if l.noted[code] != text {
		l.noted[code] = text
		l.out = append(l.out, Note{code, text, fields})
	}
}

// input is what the planner gets: the same for all that a step decides.
func (l *Leader) input() *PlanInput {
	if l.in != nil {
		return l.in
	}
	in := &PlanInput{Job: l.job.Job, rec: l.job, Nodes: l.nodes, Reports: make(map[replica.NodeName]replica.NodeReport), Connected: maps.Clone(l.up),
		AwaySince: l.away, Now: l.now, Grace: l.t.HolderGrace, Least: notBefore(l.began, 0, l.t.HolderGrace), Durable: l.closing.durable, Scanned: l.closing.scanned, Unread: l.closing.unread, Misfit: l.misfit, Doubted: l.lies.doubted(l.now), Made: l.made}
	for name, n := range l.nodes {
		if r, ok := l.reports[replica.Holder{Node: name, Incarnation: n.Incarnation}]; ok {
			in.Reports[name] = r
		}
	}
	l.in = in
	return in
}
