package leader

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/leader/agents"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/internal/leader/operators"
	"github.com/replicad/replicad/internal/leader/voters"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	leaderQueue   = 4096 // events waiting for the leader; links block beyond it, which stops their readers
	operatorsMost = 16   // requests of operators that wait for the leader, and ends of jobs by them under way
	answers       = 4    // answers to status that are written at once; one more is dropped, and its asker says what it knows itself
)

// Leader is the Raft leader's side of every job. Its goroutine (run) owns all fields below the line; links and proposals
// reach it through in.
type Leader struct {
	cfg       Config
	cons      Log // cfg.Log; timing, store, log and audit are likewise what cfg has
	timing    recovery.Timing
	store     Tier
	log       *journal.Journal
	audit     *journal.Auditor
	start     time.Time
	in        chan any
	first     chan any      // what goes before whatever jobs bring: an operator's word
	ending    chan struct{} // operators' ends of jobs under way, beside run
	answering chan struct{} // answers to status that are being written, beside run
	steps     steps
	ended     chan struct{} // closed when run has returned: posts are dropped from then on
	work      sync.WaitGroup
	paces     paces // of registrations
	authority *operators.Authority
	reads     readings
	spools    spools

	// Owned by run.
	revoked    []replica.Revocation // learned
	active     bool
	term       uint64
	numbered   numbered
	view       lock.View
	looked     time.Duration // when the committers were last asked without an event
	followed   time.Duration // until when the state is not followed again: it is large
	links      links
	jobs       map[replica.JobID]*ledJob
	suspicions map[replica.Holder]*suspicion
	kv         *rendezvous.Store
	accounts   accounts
	brought    map[replica.NodeName]*nodeLink // on which a node has brought what its ranks contributed to rendezvous
	since      time.Duration                  // it leads
	operators  *operators.Room
	again      rereading
	leaving    map[replica.NodeName]*leaving // whose daemons were asked to end
	strays     strays
	voters     voters.Book
	proposals  proposals
}

// ledJob is the soft state of one job.
type ledJob struct {
	job        *replica.Job
	committer  *lock.Committer
	recovery   *recovery.Leader
	short      bool // a commit was told in short since the last change
	candidate  replica.Candidate
	reports    map[replica.NodeName]replica.NodeReport
	fenced     replica.Epoch // logged as fenced
	pinnedAt   time.Time     // when the newest pin of the candidate arrived
	notes      map[string]string
	durable    *durable.Room // its durable writes
	halt       *halt         // it is about to stop; nil: it is not
	moved      time.Duration // when the position last changed, or the stall alarm last rang
	restsUntil time.Duration // until then events are learned, and looked at together
	due        bool          // there are some
	disputing  bool          // the last steps of ranks that have all left
	gathered   bool          // all nodes brought what they keep for the rendezvous
	waits      waits
	handing    recovery.Handing // of its clocks, to the nodes
	guard      guard
	rhythm     rhythm
	offered    map[replica.Rank]offered // by this leader
	agents     *agents.Room             // torchrun's; nil: it has none
}

// numbered is how far this process has numbered what it gave out when it led before. Terms tell leaders apart, but one that could not write its log
// falls silent, and may lead again in the same term. Whoever heard of the higher numbers takes lower ones for old: jobs would commit nothing more.
type numbered struct{ candidate, write, round uint64 }

func (n *numbered) by(l *Leader) {
	n.write = max(n.write, l.kv.Last())
	for _, led := range l.jobs {
		c, _ := led.committer.Candidate()
		n.candidate = max(n.candidate, c.N)
		if led.agents != nil {
			n.round = max(n.round, led.agents.Last())
		}
	}
}

// lead is the soft state of a job of which nothing is known yet.
func (l *Leader) lead() *ledJob {
	led := &ledJob{committer: lock.NewCommitter(l.term, l.numbered.candidate), reports: map[replica.NodeName]replica.NodeReport{}, notes: map[string]string{}}
	led.committer.Listen()
	var looks time.Duration
	if l.store != nil {
		looks = durable.LookEvery(l.store.URL())
	}
	led.durable = durable.New(shelf{l, led}, looks, cmp.Or(l.cfg.DurableWriters, config.DefaultDurableWriters))
	return led
}

const (
	// commitLook is how often committers are asked again without an event.
	commitLook = 200 * time.Millisecond
	// listenFor is how long a new leader waits for the reports of ranks' nodes before it names a candidate without them.
	listenFor = 10 * time.Second
)

type (
	leaderLinkUp   struct{ *nodeLink }
	leaderLinkDown struct {
		*nodeLink
		err error
	}
	nodeMessage struct {
		from *nodeLink
		msg  any
	}
	leadershipMoved struct {
		term uint64
		to   replica.NodeName
		err  error
	}
	scanned struct {
		job   replica.JobID
		found []plan.DurableGen
		err   error // the durable tier could not be read: nobody knows what lies there
	}
)

func New(c Config) *Leader {
	c = c.withDefaults()
	l := &Leader{cfg: c, cons: c.Log, timing: recoveryTiming(c.Timing), store: c.Tier, log: c.Journal, audit: c.Audit, start: time.Now(),
		accounts: newAccounts(c.PerUser), strays: newStrays(), kv: rendezvous.New(0, 0),
		in: make(chan any, leaderQueue), first: make(chan any, operatorsMost), ending: make(chan struct{}, operatorsMost),
		answering: make(chan struct{}, answers), ended: make(chan struct{}), proposals: newProposals(c.Log),
		links: links{of: map[replica.NodeName]*nodeLink{}}, jobs: map[replica.JobID]*ledJob{}, suspicions: map[replica.Holder]*suspicion{}, brought: map[replica.NodeName]*nodeLink{}, leaving: map[replica.NodeName]*leaving{}}
	l.authority, l.operators = newOperators(l)
	return l
}

// Run owns the leader's state until ctx ends; then it closes every link and waits for what it started.
func (l *Leader) Run(ctx context.Context) {
	tick := newClock() // ends with what refers to it
	for {
		tick.follow(l)
		select { // an operator goes before everybody
		case ev := <-l.first:
			l.event(ctx, ev)
			continue
		default:
		}
		select {
		case <-ctx.Done():
			l.resign(context.Cause(ctx))
			close(l.ended)
			l.work.Wait()
			return
		case <-l.cons.Changes():
			l.step("change of the state", func() { l.refresh(ctx, false) })
		case ev := <-l.first:
			l.event(ctx, ev)
		case ev := <-l.in:
			l.event(ctx, ev)
		case <-tick.C:
			l.step("tick", func() {
				l.refresh(ctx, false)
				l.nextProposals(ctx)
				l.tick(ctx)
				l.turnAway(ctx)
			})
		}
	}
}

// event takes one event in. What rules and operators asked for, and a node that has just linked, find the newest state followed.
func (l *Leader) event(ctx context.Context, ev any) {
	l.step(ev, func() {
		m, said := ev.(nodeMessage)
		o, outcome := ev.(proposalOutcome)
		_, asked := m.msg.(control.Order)
		l.refresh(ctx, asked || !said && !(outcome && o.rule == fromDriver))
		l.handle(ctx, ev)
		l.turnAway(ctx)
	})
}

// post hands an event to run; it blocks while the queue is full, and drops the event once run has returned.
func (l *Leader) post(ev any) {
	select {
	case l.in <- ev:
	case <-l.ended:
	}
}

// postFirst is post for what goes before everything else.
func (l *Leader) postFirst(ev any) {
	select {
	case l.first <- ev:
	case <-l.ended:
	}
}

func (l *Leader) now() time.Duration { return time.Since(l.start) }

// refresh follows Raft: leadership first, then what was applied since. A large state is not followed again at once, unless it must be.
func (l *Leader) refresh(ctx context.Context, must bool) {
	_, _, term, self := l.cons.Leadership()
	if self != l.active || self && term != l.term {
		l.resign(errors.New("leadership moved"))
		l.active, l.term = self, term
		if self {
			l.kv, l.since = rendezvous.New(term, l.numbered.write), l.now()
			l.beginReread(ctx)
			l.log.Leader(term)
		}
	}
	v := l.cons.State()
	if !sameRevoked(v.Revoked, l.revoked) { // also where another leads: it need not tell
		l.revoked = v.Revoked
		l.turnOut(ctx, l.cfg.Learn(v.Revoked))
	}
	if !l.active {
		return
	}
	if v.Index == l.view.Index && l.view.Jobs != nil || !must && l.now() < l.followed {
		return
	}
	before, began := l.view, l.now()
	l.view = v
	sent := l.follow(ctx, before)
	size := len(v.Nodes)
	for _, j := range v.Jobs {
		size += len(j.Ranks)
	}
	l.followed = l.rest(size, max(l.now()-began, time.Duration(sent)*time.Second/viewRate/restTimes))
}

// resign forgets all soft state; nodes bring it again to whoever leads next.
func (l *Leader) resign(why error) {
	l.numbered.by(l)
	for n := range l.links.of {
		l.spools.down(n)
	}
	l.links.resign(why)
	clear(l.jobs)
	clear(l.suspicions)
	clear(l.brought)
	l.endReread()
	l.authority.Forget()
	l.strays = newStrays()
	l.voters.Forget()
	l.kv = rendezvous.New(0, 0)
	l.view, l.followed = lock.View{}, 0
	l.active = false
	clear(l.leaving)
	l.operators.Resign()
}

// follow tells rules and nodes what changed between two applied states, and how many bytes of views that took.
func (l *Leader) follow(ctx context.Context, before lock.View) (sent int) {
	nodesChanged := !maps.EqualFunc(before.Nodes, l.view.Nodes, sameNode)
	news := newsSince(before, l.view)
	var short []control.Progress
	for id, job := range l.view.Jobs {
		led := l.jobs[id]
		if led == nil {
			led = l.lead()
			l.jobs[id] = led
		}
		if led.recovery == nil || job.Phase != replica.Ended && led.job.Phase == replica.Ended {
			// A new run under the UUID of one that ended: what that one waited for, and since when, is over. Candidates are numbered on.
			led.recovery, led.disputing = recovery.NewLeader(id, l.timing), false
			for _, n := range l.links.of {
				l.recoverStep(ctx, id, led, recovery.NodeUp{Holder: n.node.Holder(), Session: n.node.Session})
			}
		}
		if was := led.job; was != job {
			led.job = job
			if was == nil || was.Position != job.Position {
				led.moved = l.now()
			}
			if was != nil && was.Position != job.Position && job.Phase == replica.Open && was.Phase == replica.Open {
				led.rhythm.committed(l.now(), led.candidate, job)
			}
			if was != nil && onlyCommitted(was, job) {
				short, led.short = append(short, control.Progress{Job: id, Index: job.LastIndex, Position: job.Position, Generation: job.Committed}), true
			} else {
				news.Jobs, led.short = append(news.Jobs, control.JobChanged(was, job, led.short)), false
			}
			l.log.JobChanged(was, job, led.pinnedAt)
			l.wrote(was, job)
			l.agentsFollow(led, was, job)
			led.durable.Learn(l.now(), durable.Changed{Job: job})
			if was == nil || was.Epoch != job.Epoch || was.ClosedEpoch != job.ClosedEpoch {
				l.kv.Advance(id, job.ClosedEpoch+1)
			}
			if job.Phase == replica.Ended {
				l.kv.Drop(id)
				led.reports, led.notes = map[replica.NodeName]replica.NodeReport{}, map[string]string{}
			}
		}
	}
	sent = l.links.news(news, short) // nodes first: what the rules send afterwards must find them informed
	for id, led := range l.jobs {
		job, ok := l.view.Jobs[id]
		if !ok {
			delete(l.jobs, id)
			l.kv.Drop(id)
			continue
		}
		if before.Jobs[id] == job && !nodesChanged {
			continue
		}
		began := l.now()
		l.commitEffects(ctx, id, led, led.committer.Job(job, l.view.Nodes))
		l.timed(job, "commit", began)
		l.recoverStep(ctx, id, led, recovery.JobChanged{Job: job, Nodes: l.view.Nodes})
		l.durableTurn(ctx, led)
	}
	return sent
}

func (l *Leader) handle(ctx context.Context, ev any) {
	switch ev := ev.(type) {
	case leaderLinkUp:
		l.linkUp(ctx, ev.nodeLink)
	case leaderLinkDown:
		if l.links.of[ev.node.Name] == ev.nodeLink {
			delete(l.links.of, ev.node.Name)
			l.spools.down(ev.node.Name)
			l.agentsLinked(ev.node.Name)
			l.lost(ctx, ev.node.Name)
		}
	case nodeMessage:
		if l.active && l.links.of[ev.from.node.Name] == ev.from {
			l.message(ctx, ev.from, ev.msg)
		}
	case proposalOutcome:
		l.nextProposals(ctx)
		l.outcome(ctx, ev)
	case adopt:
		if ev.refused != "" {
			l.created(ev.from, ev.request, control.CreateReply{ID: ev.request.ID, Refused: ev.refused})
		} else if _, ok := l.view.JobByName(ev.request.Name); ok {
			l.created(ev.from, ev.request, control.CreateReply{ID: ev.request.ID}) // another launcher was first
		} else {
			l.mint(ctx, ev.from, ev.request, ev.command, ev.news...)
		}
	case telling:
		l.tell(ev.job, ev.text)
	case leadershipMoved:
		l.moved(ev)
	case haltAsked:
		l.halted(ev)
	case saveAsked:
		l.saved(ctx, ev)
	case durableSeen:
		if led := l.jobs[ev.job]; led != nil {
			l.durableLearns(ctx, led, ev.seen)
		}
	case rereadLearned:
		l.rereadEnded(ev)
	case scanned:
		switch led := l.jobs[ev.job]; {
		case led == nil:
		case ev.err != nil:
			l.recoverStep(ctx, ev.job, led, recovery.DurableUnread{Why: ev.err.Error()})
		default:
			l.recoverStep(ctx, ev.job, led, recovery.DurableFound{Generations: ev.found})
		}
	}
}

// propose hands a command to Raft beside the leader; the outcome comes back as an event. So rules see outcomes and changes in the order of
// the leader's goroutine.
func (l *Leader) propose(ctx context.Context, job replica.JobID, c replica.Command, rule origin, done func(lock.Outcome, error)) {
	l.proposals.add(proposal{job, c, rule, done})
	l.nextProposals(ctx)
}

// nextProposals starts what waits while there are slots. Outcomes of operators' orders go before everything else.
func (l *Leader) nextProposals(ctx context.Context) {
	for {
		p, ok := l.proposals.next()
		if !ok {
			return
		}
		post, entry := l.post, l.entry(p)
		if p.rule == fromOperator {
			post = l.postFirst
		}
		l.work.Go(func() { post(l.proposals.carry(ctx, p, entry)) })
	}
}

// entry is the command as it goes into the log: a commit leaves out what is recorded, and texts are cut.
func (l *Leader) entry(p proposal) replica.Command {
	if c, ok := p.cmd.(replica.Commit); ok {
		if led := l.jobs[p.job]; led != nil && led.job != nil {
			return lock.ShortCommit(led.job, c)
		}
	}
	return lock.Short(p.cmd)
}

// turnAway delivers the refusals since it was last called. What those who hear of one propose meanwhile has its refusal next time.
func (l *Leader) turnAway(ctx context.Context) {
	for _, o := range l.proposals.refused() {
		l.outcome(ctx, o)
	}
}

func (l *Leader) outcome(ctx context.Context, o proposalOutcome) {
	if o.done != nil {
		o.done(o.out, o.err)
	}
	err := o.err
	if err == nil {
		err = o.out.Err
	}
	if err != nil {
		l.log.Refused(o.cmd, err)
	}
	led := l.jobs[o.job]
	if led == nil || !l.active {
		return
	}
	if err == nil {
		l.log.Excluded(led.job, o.cmd)
	}
	switch o.rule {
	case fromCommitter:
		l.commitEffects(ctx, o.job, led, led.committer.Outcome(o.cmd, err))
	case fromRecovery:
		l.recoverStep(ctx, o.job, led, recovery.Outcome{Cmd: o.cmd, Err: err})
	case fromDriver, fromOperator: // whose done has it, if they want it
	}
	switch cmd := o.cmd.(type) {
	case replica.ReportDispute: // the ranks do their last step again, and leave again
		led.disputing = false
	case replica.EndDurable:
		if o.err != nil {
			led.durable.Learn(l.now(), durable.Unknown{End: cmd})
		}
	}
}

func (l *Leader) commitEffects(ctx context.Context, id replica.JobID, led *ledJob, effects []lock.Effect) {
	if invariant.On && led.job != nil && len(led.job.Ranks) < largeFrom {
		err := led.committer.Check()
		invariant.Holds(err == nil, "job %s: %v", led.job.Name, err)
	}
	for _, e := range effects {
		switch e := e.(type) {
		case lock.Announce:
			led.candidate = e.Candidate
			l.log.Candidate(e.Candidate)
			l.links.all(id, e.Candidate)
		case lock.Propose:
			if c, ok := e.Command.(replica.Commit); ok && c.Write && !led.durable.May(l.now()) {
				c.Write = false // after a write that failed the next one waits
				e.Command = c
			} else if ok && c.Write {
				c.Turns = led.durable.Turns()
				e.Command = c
			}
			l.propose(ctx, id, e.Command, fromCommitter, nil)
		}
	}
}

func (l *Leader) recoverStep(ctx context.Context, id replica.JobID, led *ledJob, ev recovery.Event) {
	var offers offering
	defer func() { l.offer(led, offers) }()
	for _, e := range l.look(led, ev) {
		switch e := e.(type) {
		case recovery.Propose:
			if err := l.fits(e.Command); err != nil {
				l.proposals.refuse(proposalOutcome{job: id, cmd: e.Command, out: lock.Outcome{Err: err}, rule: fromRecovery})
				continue
			}
			l.propose(ctx, id, e.Command, fromRecovery, nil)
		case recovery.RefuseGrowth:
			if n := l.links.of[e.Node]; n != nil { // one that links anew is told again
				n.Send(control.GrowthRefused{Job: id, Rank: e.Rank, Ask: e.Ask, Why: e.Why})
			}
		case recovery.Offer:
			offers.add(e)
		case recovery.Capture:
			for _, n := range l.links.of {
				n.Send(control.CaptureOrder{Job: id, Generation: e.Generation})
			}
		case recovery.Mirror:
			for _, n := range l.links.of {
				n.Send(control.MirrorOrder{Job: id, Epoch: led.job.ClosedEpoch, Generation: e.Generation})
			}
		case recovery.Relay:
			order := control.RelayOrder{Job: id, Epoch: e.Epoch, Part: e.Part, Rank: e.Rank, Node: l.view.Nodes[e.Node].Holder()}
			for _, n := range l.links.of {
				n.Send(order)
			}
		case recovery.AskRegions:
			if n := l.links.of[e.Node]; n != nil { // one that links anew is asked again
				n.Send(control.RegionsOrder{Job: id, Generation: e.Generation, Part: e.Part, Rank: e.Rank, Root: e.Root})
			}
		case recovery.ScanDurable:
			l.scan(ctx, led)
		case recovery.Note:
			l.noted(led, e)
		}
	}
}

// noted logs what a recovery has to say, if it is news. What ranks disagree about is for the launchers too.
func (l *Leader) noted(led *ledJob, n recovery.Note) {
	if led.notes[n.Code] == n.Text {
		return
	}
	led.notes[n.Code] = n.Text
	l.log.Note(led.job, n)
	if n.Code == recovery.NoteDispute || n.Code == recovery.NoteRegions {
		l.tell(led.job.ID, "ranks differ: "+n.Text)
	}
}

// fits refuses what a job's state has no room for, of what recovery wants.
func (l *Leader) fits(c replica.Command) error {
	if _, grows := c.(replica.Grow); !grows {
		return nil
	}
	return lock.Fits(l.view, c)
}

func (l *Leader) tick(ctx context.Context) {
	if !l.active {
		return
	}
	now := l.now()
	l.operators.Drained(ctx)
	l.rereads()
	again := now-l.looked >= commitLook
	if again {
		l.looked = now
		l.tellLeaving(ctx)
		l.lookForStrays()
		sayVoters(l)
	}
	for id, led := range l.jobs {
		if again && led.job.Phase == replica.Open { // an outcome that stayed unknown brings no event of its own
			began := l.now()
			effects := led.committer.Look()
			if now-l.since >= listenFor {
				effects = append(effects, led.committer.Limit()...)
			}
			l.commitEffects(ctx, id, led, effects)
			l.timed(led.job, "commit", began)
		}
		if again {
			l.watch(led)
			led.guard.look(ctx, l, led)
			l.sayShort(led)
			l.sayAwaited(led)
			handOut(l, led)
			l.agentsTurn(led)
		}
		if at, ok := led.recovery.Next(); (led.due || ok && at <= now) && now >= led.restsUntil {
			l.recoverStep(ctx, id, led, recovery.Tick{})
		}
		l.durableTurn(ctx, led)
		l.mayHalt(led)
		if led.job.Phase == replica.Open && now-led.moved > l.cfg.Timing.StallAlarm && l.cfg.Timing.StallAlarm > 0 {
			l.log.Stalled(led.job, now-led.moved, l.waitsFor(led))
			led.moved = now
		}
	}
}
