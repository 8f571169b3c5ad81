package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const (
	leaderQueue    = 4096            // events waiting for the leader; links block beyond it, which stops their readers
	proposals      = 64              // commands on their way at once; one more waits for its turn
	proposeTimeout = 5 * time.Second // after it the outcome is unknown, and is read from the state
)

// leader is the Raft leader's side of every job. Its goroutine (run) owns all fields below the line; links and proposals
// reach it through in.
type leader struct {
	cons    *consensus.Node
	cluster replica.ClusterID
	timing  recovery.Timing
	alarm   time.Duration     // without a commit while training goes on
	store   *checkpoint.Store // nil: no durable tier on this node
	log     *journal
	start   time.Time
	in      chan any
	ended   chan struct{} // closed when run has returned: posts are dropped from then on
	work    sync.WaitGroup
	slots   chan struct{}

	// Owned by run.
	active     bool
	term       uint64
	view       lock.View
	looked     time.Duration // when the committers were last asked without an event
	beaten     time.Duration // when the links last got a beat
	links      map[replica.NodeName]*nodeLink
	jobs       map[replica.JobID]*ledJob
	suspicions map[replica.Holder]*suspicion
	kv         *rendezvous.Store
}

// nodeLink is a registered node's link.
type nodeLink struct {
	*link
	node replica.Node
}

// ledJob is the soft state of one job.
type ledJob struct {
	job       *replica.Job
	committer *lock.Committer
	recovery  *recovery.Leader
	candidate replica.Candidate
	reports   map[replica.NodeName]replica.NodeReport
	fenced    replica.Epoch // logged as fenced
	pinnedAt  time.Time     // when the newest pin of the candidate arrived
	notes     map[string]string
	shards    map[replica.Part]shardReport
	writeFrom time.Time
	moved     time.Duration // when the position last changed, or the stall alarm last rang
	ending    bool
}

// suspicion collects the witnesses against a node.
type suspicion struct {
	logged  bool
	witness map[replica.NodeName]time.Duration
	base    map[replica.JobID]replica.Step
}

// commitLook is how often committers are asked again without an event.
const commitLook = 200 * time.Millisecond

// witnessFresh is how long a witness's word counts; members repeat it each probe interval.
const witnessFresh = 1500 * time.Millisecond

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
	proposalOutcome struct {
		job  replica.JobID
		cmd  replica.Command
		out  lock.Outcome
		err  error
		done func(lock.Outcome, error) // nil: nobody waits
		rule origin
	}
	scanned struct {
		job   replica.JobID
		found []recovery.DurableGen
	}
)

// origin says which rule proposed a command, and so who learns its outcome.
type origin uint8

const (
	fromDriver origin = iota
	fromCommitter
	fromRecovery
)

func newLeader(cons *consensus.Node, cluster replica.ClusterID, timing recovery.Timing, alarm time.Duration, store *checkpoint.Store, log *journal) *leader {
	return &leader{cons: cons, cluster: cluster, timing: timing, alarm: alarm, store: store, log: log, start: time.Now(), in: make(chan any, leaderQueue), ended: make(chan struct{}), slots: make(chan struct{}, proposals),
		links: map[replica.NodeName]*nodeLink{}, jobs: map[replica.JobID]*ledJob{}, suspicions: map[replica.Holder]*suspicion{}, kv: rendezvous.New()}
}

// serve handles one link from hello to its end, in the caller's goroutine.
func (l *leader) serve(ctx context.Context, peer replica.NodeName, conn net.Conn) {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(linkHandshake)) //nolint:errcheck // a dead stream fails what follows
	k, body, err := wire.Read(conn, maxLinkFrame)
	if err != nil || k != kindLinkHello {
		return
	}
	h, err := decode[linkHello](body)
	if err != nil || h.Node.Name != peer || h.Cluster != l.cluster {
		wire.Write(conn, kindWelcome, welcome{Reason: fmt.Sprintf("hello of node %q, cluster %s on a connection of node %q, cluster %s", h.Node.Name, h.Cluster, peer, l.cluster)}) //nolint:errcheck // refused anyway
		return
	}
	name, addr, _, self := l.cons.Leadership()
	if !self {
		wire.Write(conn, kindWelcome, welcome{Reason: "not the leader", Leader: name, Address: addr}) //nolint:errcheck // the node asks the next voter
		return
	}
	if err := l.register(ctx, h.Node); err != nil {
		wire.Write(conn, kindWelcome, welcome{Reason: err.Error()}) //nolint:errcheck // the node comes again
		return
	}
	conn.SetDeadline(time.Time{}) //nolint:errcheck // as above
	n := &nodeLink{link: newLink(conn), node: h.Node}
	l.post(leaderLinkUp{n})
	err = n.run(ctx, func(kind wire.Kind, body []byte) error {
		msg, err := decodeFromNode(kind, body)
		if err != nil {
			return fmt.Errorf("message %d from node %s: %w", kind, peer, err)
		}
		l.post(nodeMessage{n, msg})
		return nil
	})
	l.post(leaderLinkDown{n, err})
}

// register records the node as it is now; what it says afterwards is judged by that entry.
func (l *leader) register(ctx context.Context, n replica.Node) error {
	if have, ok := l.cons.State().Nodes[n.Name]; ok && sameNode(have, n) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, linkHandshake)
	defer cancel()
	_, out, err := l.cons.Propose(ctx, replica.RegisterNode{Node: n})
	if err == nil {
		err = out.Err
	}
	if err != nil {
		return fmt.Errorf("register node %s, session %d: %w", n.Name, n.Session, err)
	}
	return nil
}

// run owns the leader's state until ctx ends; then it closes every link and waits for what it started.
func (l *leader) run(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.resign(context.Cause(ctx))
			close(l.ended)
			l.work.Wait()
			return
		case <-l.cons.Changes():
			l.refresh(ctx)
		case ev := <-l.in:
			l.refresh(ctx)
			l.handle(ctx, ev)
		case <-tick.C:
			l.refresh(ctx)
			l.tick(ctx)
		}
	}
}

// post hands an event to run; it blocks while the queue is full, and drops the event once run has returned.
func (l *leader) post(ev any) {
	select {
	case l.in <- ev:
	case <-l.ended:
	}
}

func (l *leader) now() time.Duration { return time.Since(l.start) }

// refresh follows Raft: leadership first, then what was applied since.
func (l *leader) refresh(ctx context.Context) {
	_, _, term, self := l.cons.Leadership()
	if self != l.active || self && term != l.term {
		l.resign(errors.New("leadership moved"))
		l.active, l.term = self, term
		if self {
			l.log.leader(term)
		}
	}
	if !l.active {
		return
	}
	v := l.cons.State()
	if v.Index == l.view.Index && l.view.Jobs != nil {
		return
	}
	before := l.view
	l.view = v
	l.follow(ctx, before)
}

// resign forgets all soft state; nodes bring it again to whoever leads next.
func (l *leader) resign(why error) {
	for _, n := range l.links {
		n.close(why)
	}
	clear(l.links)
	clear(l.jobs)
	clear(l.suspicions)
	l.kv = rendezvous.New()
	l.view = lock.View{}
	l.active = false
}

// follow tells rules and nodes what changed between two applied states.
func (l *leader) follow(ctx context.Context, before lock.View) {
	nodesChanged := !maps.EqualFunc(before.Nodes, l.view.Nodes, sameNode)
	full := nodesChanged
	var short []progress
	for id, job := range l.view.Jobs {
		led := l.jobs[id]
		if led == nil {
			led = &ledJob{committer: lock.NewCommitter(l.term), recovery: recovery.NewLeader(id, l.term, l.timing), reports: map[replica.NodeName]replica.NodeReport{}, notes: map[string]string{}}
			l.jobs[id] = led
			for _, n := range l.links {
				l.recoverStep(ctx, id, led, recovery.NodeUp{Holder: holderOf(n.node), Session: n.node.Session})
			}
		}
		if was := led.job; was != job {
			led.job = job
			if was == nil || was.Position != job.Position {
				led.moved = l.now()
			}
			if was != nil && onlyCommitted(was, job) {
				short = append(short, progress{id, job.LastIndex, job.Position, job.Committed})
			} else {
				full = true
			}
			l.log.jobChanged(was, job, led.pinnedAt)
			if was == nil || was.Epoch != job.Epoch || was.ClosedEpoch != job.ClosedEpoch {
				l.kv.Advance(id, job.ClosedEpoch+1)
			}
		}
	}
	if full { // nodes first: what the rules send afterwards must find them informed
		for _, n := range l.links {
			n.send(kindView, l.viewMessage())
		}
	} else {
		for _, p := range short {
			for _, n := range l.links {
				n.send(kindProgress, p)
			}
		}
	}
	for id, led := range l.jobs {
		job, ok := l.view.Jobs[id]
		if !ok {
			delete(l.jobs, id)
			continue
		}
		if before.Jobs[id] == job && !nodesChanged {
			continue
		}
		l.commitEffects(ctx, id, led, led.committer.Job(job, l.view.Nodes))
		l.recoverStep(ctx, id, led, recovery.JobChanged{Job: job, Nodes: l.view.Nodes})
		l.durable(ctx, led)
	}
}

// onlyCommitted tells whether a commit is all that happened: the once-a-step case, sent in short form. Several entries may
// have been applied since; what a commit does not touch is shared by both values, so that comparing costs little.
func onlyCommitted(was, is *replica.Job) bool {
	told := *was
	told.LastIndex, told.Position, told.Committed, told.Parts = is.LastIndex, is.Position, is.Committed, is.Parts
	return was.Phase == replica.Open && was.Position != is.Position && reflect.DeepEqual(&told, is)
}

// sameNode tells whether two registrations are of one life and session of a node, reached the same way.
func sameNode(a, b replica.Node) bool {
	return a.Incarnation == b.Incarnation && a.Session == b.Session && a.Addr == b.Addr && a.Boot == b.Boot && a.Voter == b.Voter && maps.Equal(a.Labels, b.Labels)
}

func holderOf(n replica.Node) replica.Holder {
	return replica.Holder{Node: n.Name, Incarnation: n.Incarnation}
}

func (l *leader) viewMessage() view {
	v := view{Index: l.view.Index, Term: l.term, Era: l.view.Era, Nodes: l.view.Nodes}
	for _, j := range l.view.Jobs {
		v.Jobs = append(v.Jobs, j)
	}
	return v
}

func (l *leader) handle(ctx context.Context, ev any) {
	switch ev := ev.(type) {
	case leaderLinkUp:
		l.linkUp(ctx, ev.nodeLink)
	case leaderLinkDown:
		if l.links[ev.node.Name] == ev.nodeLink {
			delete(l.links, ev.node.Name)
			for id, led := range l.jobs {
				l.commitEffects(ctx, id, led, led.committer.Voided(ev.node.Name))
				l.recoverStep(ctx, id, led, recovery.NodeGone{Node: ev.node.Name})
			}
		}
	case nodeMessage:
		if l.active && l.links[ev.from.node.Name] == ev.from {
			l.message(ctx, ev.from, ev.msg)
		}
	case proposalOutcome:
		l.outcome(ctx, ev)
	case adopt:
		if ev.refused != "" {
			ev.from.send(kindCreateReply, createReply{ID: ev.request.ID, Refused: ev.refused})
		} else if _, ok := l.view.JobByName(ev.request.Name); ok {
			ev.from.send(kindCreateReply, createReply{ID: ev.request.ID}) // another launcher was first
		} else {
			l.mint(ctx, ev.from, ev.request, ev.command)
		}
	case scanned:
		if led := l.jobs[ev.job]; led != nil {
			l.recoverStep(ctx, ev.job, led, recovery.DurableFound{Generations: ev.found})
		}
	}
}

func (l *leader) linkUp(ctx context.Context, n *nodeLink) {
	if !l.active {
		n.close(errors.New("not the leader"))
		return
	}
	if old := l.links[n.node.Name]; old != nil {
		old.close(errors.New("superseded by a newer link of the node"))
	}
	l.links[n.node.Name] = n
	delete(l.suspicions, holderOf(n.node))
	n.send(kindWelcome, welcome{OK: true, Term: l.term, Era: l.view.Era})
	n.send(kindView, l.viewMessage())
	for id, led := range l.jobs {
		if led.candidate.Job == id && led.job.Phase == replica.Open {
			n.send(kindCandidate, led.candidate)
		}
		l.recoverStep(ctx, id, led, recovery.NodeUp{Holder: holderOf(n.node), Session: n.node.Session})
	}
}

// message handles what a registered node says.
func (l *leader) message(ctx context.Context, from *nodeLink, msg any) {
	name := from.node.Name
	switch m := msg.(type) {
	case replica.NodeReport:
		if led := l.jobs[m.Job]; led != nil && m.Holder == holderOf(from.node) && m.Session == from.node.Session {
			led.reports[name] = m
			l.recoverStep(ctx, m.Job, led, recovery.Report{NodeReport: m})
			l.fenced(led)
			l.finished(ctx, led)
		}
	case replica.Pinned:
		if led := l.jobs[m.Job]; led != nil && m.Holder == holderOf(from.node) && m.Session == from.node.Session {
			led.pinnedAt = time.Now()
			l.log.z.Debug().Str("event", "pinned").Str("node", string(name)).Uint64("n", m.N).Str("generation", m.Generation.String()).Str("parts", fmt.Sprint(m.Parts)).Msg("pins")
			l.commitEffects(ctx, m.Job, led, led.committer.Pinned(m))
		}
	case replica.Passed:
		if led := l.jobs[m.Job]; led != nil && m.Holder == holderOf(from.node) && m.Session == from.node.Session {
			l.log.z.Debug().Str("event", "passed").Str("node", string(name)).Uint64("n", m.N).Uint32("rank", uint32(m.Rank)).Str("live", m.Live.String()).Str("holds", fmt.Sprint(m.Holds)).Msg("rank passed the candidate")
			l.commitEffects(ctx, m.Job, led, led.committer.Passed(m))
		}
	case evidence: // a node speaks for its own ranks alone; what it thinks of other nodes goes through suspect
		if led := l.jobs[m.Job]; led != nil && !m.Fault.OfNode() && int(m.Fault.Rank) < len(led.job.Ranks) && led.job.Ranks[m.Fault.Rank].Node == name {
			l.recoverStep(ctx, m.Job, led, recovery.Evidence{Fault: m.Fault})
		}
	case suspect:
		l.suspect(ctx, name, m)
	case claimRequest:
		if m.Claim.Holder != holderOf(from.node) {
			from.send(kindClaimReply, claimReply{ID: m.ID, Refused: fmt.Sprintf("a claim for node %s on the link of node %s", m.Claim.Holder.Node, name)})
			return
		}
		l.propose(ctx, m.Claim.Job, m.Claim, fromDriver, func(out lock.Outcome, err error) {
			r := claimReply{ID: m.ID, Incarnation: out.Incarnation}
			if err == nil {
				err = out.Err
			} else {
				r.Retry = true
			}
			if err != nil {
				r.Refused = err.Error()
			}
			from.send(kindClaimReply, r)
		})
	case createRequest:
		l.create(ctx, from, m)
	case kvRequest:
		l.rendezvous(from, m)
	case shardReport:
		l.shard(ctx, name, m)
	case markedReport:
		if led := l.jobs[m.Job]; led != nil && led.job.Writer != nil && led.job.Writer.Generation == m.Generation && led.job.Writer.Writer == name {
			if m.Failed != "" {
				l.log.failed("durable", "commit marker of generation "+m.Generation.String(), m.Failed)
			}
			l.propose(ctx, m.Job, replica.EndDurable{Job: m.Job, Generation: m.Generation, Done: m.Failed == ""}, fromDriver, nil)
		}
	case endRequest:
		if job, ok := l.view.JobByName(m.Name); ok {
			l.propose(ctx, job.ID, replica.EndJob{Job: job.ID, Reason: m.Reason}, fromDriver, nil)
		}
	case statusRequest:
		b, err := json.Marshal(l.status())
		if err == nil {
			from.send(kindStatusReply, statusReply{m.ID, b})
		}
	}
}

// propose hands a command to Raft in a goroutine of its own; the outcome comes back as an event, so rules see outcomes
// and changes in the order of this goroutine.
func (l *leader) propose(ctx context.Context, job replica.JobID, c replica.Command, rule origin, done func(lock.Outcome, error)) {
	l.work.Go(func() {
		l.slots <- struct{}{}
		pctx, cancel := context.WithTimeout(ctx, proposeTimeout)
		_, out, err := l.cons.Propose(pctx, c)
		cancel()
		<-l.slots
		l.post(proposalOutcome{job, c, out, err, done, rule})
	})
}

func (l *leader) outcome(ctx context.Context, o proposalOutcome) {
	if o.done != nil {
		o.done(o.out, o.err)
	}
	err := o.err
	if err == nil {
		err = o.out.Err
	}
	if err != nil {
		l.log.refused(o.cmd, err)
	}
	led := l.jobs[o.job]
	if led == nil || !l.active {
		return
	}
	switch o.rule {
	case fromCommitter:
		l.commitEffects(ctx, o.job, led, led.committer.Outcome(o.cmd, err))
	case fromRecovery:
		l.recoverStep(ctx, o.job, led, recovery.Outcome{Cmd: o.cmd, Err: err})
	}
	if _, ok := o.cmd.(replica.EndJob); ok && err != nil {
		led.ending = false
	}
}

func (l *leader) commitEffects(ctx context.Context, id replica.JobID, led *ledJob, effects []lock.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case lock.Announce:
			led.candidate = e.Candidate
			l.log.z.Debug().Str("event", "candidate").Uint64("term", e.Candidate.Term).Uint64("n", e.Candidate.N).Str("generation", e.Candidate.Generation.String()).Msg("candidate named")
			for _, n := range l.links {
				n.send(kindCandidate, e.Candidate)
			}
		case lock.Propose:
			l.propose(ctx, id, e.Command, fromCommitter, nil)
		}
	}
}

func (l *leader) recoverStep(ctx context.Context, id replica.JobID, led *ledJob, ev recovery.Event) {
	for _, e := range led.recovery.Step(l.now(), ev) {
		switch e := e.(type) {
		case recovery.Propose:
			l.propose(ctx, id, e.Command, fromRecovery, nil)
		case recovery.Offer:
			if n := l.links[e.Node]; n != nil {
				l.log.offered(led.job, e.Rank, e.Node)
				n.send(kindOffer, offer{id, e.Rank, e.Expect})
			}
		case recovery.Capture:
			for _, n := range l.links {
				n.send(kindCapture, captureOrder{id, e.Generation})
			}
		case recovery.ScanDurable:
			l.scan(ctx, led.job)
		case recovery.Note:
			if led.notes[e.Code] != e.Text {
				led.notes[e.Code] = e.Text
				l.log.note(led.job, e)
			}
		}
	}
}

func (l *leader) tick(ctx context.Context) {
	if !l.active {
		return
	}
	now := l.now()
	if now-l.beaten >= linkBeat {
		l.beaten = now
		for _, n := range l.links {
			n.send(kindBeat, beat{})
		}
	}
	again := now-l.looked >= commitLook
	if again {
		l.looked = now
	}
	for id, led := range l.jobs {
		if again && led.job.Phase == replica.Open { // an outcome that stayed unknown brings no event of its own
			l.commitEffects(ctx, id, led, led.committer.Job(led.job, l.view.Nodes))
		}
		if at, ok := led.recovery.Next(); ok && at <= now {
			l.recoverStep(ctx, id, led, recovery.Tick{})
		}
		l.durable(ctx, led)
		if led.job.Phase == replica.Open && now-led.moved > l.alarm && l.alarm > 0 {
			l.log.stalled(led.job, now-led.moved, led.committer.Waiting())
			led.moved = now
		}
	}
}

// create mints a job for a launcher, once: the same name with the same layout is the same job.
func (l *leader) create(ctx context.Context, from *nodeLink, m createRequest) {
	if job, ok := l.view.JobByName(m.Name); ok {
		r := createReply{ID: m.ID}
		if job.Layout.World != m.Layout.World || !slices.Equal(job.Layout.Groups, m.Layout.Groups) {
			r.Refused = fmt.Sprintf("job %q runs with %d ranks in groups %v, not %d in %v: end it (replicad job end %s) or use another name", m.Name, job.Layout.World, job.Layout.Groups, m.Layout.World, m.Layout.Groups, m.Name)
		}
		from.send(kindCreateReply, r)
		return
	}
	if m.Resume && l.store == nil { // starting afresh would be a silent loss
		from.send(kindCreateReply, createReply{ID: m.ID, Refused: fmt.Sprintf("resume job %q: the leader runs without its durable tier, its log says why: mend that and start its daemon again, or leave out --resume", m.Name)})
		return
	}
	if m.Resume {
		l.work.Go(func() { l.post(l.adoptable(from, m)) })
		return
	}
	l.mint(ctx, from, m, replica.CreateJob{})
}

// adopt is the end of looking for a durable generation to open a job from.
type adopt struct {
	from    *nodeLink
	request createRequest
	command replica.CreateJob // ID zero: there is none, the job starts afresh
	refused string
}

// adoptable looks for the newest durable generation of a job's name: its UUID, epochs and lineage are taken over (protocol
// section 5.4). One of another layout is refused, not passed over: starting afresh would be a silent loss.
func (l *leader) adoptable(from *nodeLink, m createRequest) adopt {
	a := adopt{from: from, request: m}
	found, skipped, err := l.store.Find(m.Name, replica.JobID{})
	for _, s := range skipped {
		l.log.skipped(nil, s.Path, s.Reason)
	}
	switch {
	case err != nil:
		a.refused = fmt.Sprintf("resume job %q from the durable tier: %v", m.Name, err)
	case len(found) == 0:
		l.log.note2(nil, "resume", fmt.Sprintf("no durable generation of job %q: it starts afresh", m.Name))
	case found[0].Layout.World != m.Layout.World || !slices.Equal(found[0].Layout.Groups, m.Layout.Groups):
		a.refused = fmt.Sprintf("resume job %q: durable generation %v in %s has %d ranks in groups %v, not %d in %v: start it with that layout, or without --resume", m.Name, found[0].Generation, found[0].Path,
			found[0].Layout.World, found[0].Layout.Groups, m.Layout.World, m.Layout.Groups)
	default:
		f := found[0]
		a.command = replica.CreateJob{ID: f.Job, Epoch: max(f.Lineage.Last().Epoch, f.Generation.Epoch), Lineage: f.Lineage, Condemned: f.Condemned, Durable: f.Generation}
		l.log.note2(nil, "resume", fmt.Sprintf("job %q goes on from durable generation %v in %s", m.Name, f.Generation, f.Path))
	}
	return a
}

// mint creates the job, under the adopted identity where there is one.
func (l *leader) mint(ctx context.Context, from *nodeLink, m createRequest, c replica.CreateJob) {
	if c.ID == (replica.JobID{}) {
		rand.Read(c.ID[:]) //nolint:errcheck // never fails
	}
	c.Name, c.Layout, c.Options = m.Name, m.Layout, m.Options
	c.Copies = max(1, min(m.Options.WithDefaults().MinCopies, len(l.view.Nodes)))
	l.propose(ctx, c.ID, c, fromDriver, func(out lock.Outcome, err error) {
		r := createReply{ID: m.ID}
		if err == nil {
			err = out.Err
		}
		if err != nil {
			if _, ok := l.cons.State().JobByName(m.Name); !ok { // two launchers may have asked at once
				r.Refused = err.Error()
			}
		}
		from.send(kindCreateReply, r)
	})
}

// rendezvous serves the ranks' key-value store and barrier: soft state that clients send again to the next leader.
func (l *leader) rendezvous(from *nodeLink, m kvRequest) {
	reply := func(r kvReply) { r.ID = m.ID; from.send(kindKVReply, r) }
	led := l.jobs[m.Job]
	if led == nil || led.job.Phase == replica.Ended || m.Epoch <= led.job.ClosedEpoch {
		reply(kvReply{Fenced: true})
		return
	}
	var err error
	switch m.Op {
	case kvSet:
		if err = l.kv.Set(m.Job, m.Epoch, m.Key, m.Value); err == nil {
			reply(kvReply{})
		}
	case kvGet:
		err = l.kv.Wait(m.Job, m.Epoch, m.Key, fmt.Sprintf("%s/%d", from.node.Name, m.ID), func(v []byte) { reply(kvReply{Value: v}) })
	case kvBarrier:
		err = l.kv.Barrier(m.Job, m.Epoch, m.Key, fmt.Sprint(m.Rank), m.Members, func() { reply(kvReply{}) })
	default:
		err = fmt.Errorf("unknown rendezvous operation %d", m.Op)
	}
	if err != nil {
		reply(kvReply{Refused: err.Error()})
	}
}

// suspect counts a witness. A node is dead when two nodes (or all others, where there are fewer) find it silent on gossip
// and on the data path, and none of its jobs made a step since: protocol section 6, evidence.
func (l *leader) suspect(ctx context.Context, from replica.NodeName, m suspect) {
	n, ok := l.view.Nodes[m.Target.Node]
	if !ok || n.Incarnation != m.Target.Incarnation || l.links[m.Target.Node] != nil && from == m.Target.Node {
		return
	}
	s := l.suspicions[m.Target]
	if s == nil {
		s = &suspicion{witness: map[replica.NodeName]time.Duration{}, base: map[replica.JobID]replica.Step{}}
		l.suspicions[m.Target] = s
	}
	for job, live := range m.Live {
		base, seen := s.base[job]
		if led := l.jobs[job]; led != nil && led.job.Phase == replica.Open && holdsRank(led.job, m.Target) && seen && live > base+1 {
			clear(s.witness) // the job passes steps: its ranks there are alive, whatever is silent
			s.base[job] = live
		} else if !seen {
			s.base[job] = live
		}
	}
	s.witness[from] = l.now()
	count := 0
	for _, at := range s.witness {
		if l.now()-at <= witnessFresh {
			count++
		}
	}
	if count < min(2, max(1, l.couldWitness(m.Target.Node))) {
		return
	}
	if !s.logged {
		s.logged = true
		l.log.nodeState(m.Target.Node, "silent")
	}
	for id, led := range l.jobs {
		if led.job.Phase != replica.Ended {
			l.recoverStep(ctx, id, led, recovery.Evidence{Fault: replica.Fault{Epoch: led.job.Epoch, Kind: replica.NodeDead, Node: m.Target.Node, NodeIncarnation: m.Target.Incarnation,
				Detail: fmt.Sprintf("silent on gossip and on the data path for %d nodes", count)}})
		}
	}
}

func holdsRank(job *replica.Job, h replica.Holder) bool {
	return slices.ContainsFunc(job.Ranks, func(c replica.Claimed) bool {
		return c.Incarnation != 0 && c.Node == h.Node && c.NodeIncarnation == h.Incarnation
	})
}

// couldWitness counts the registered nodes besides one that no job holds for dead or silent. Links don't count: a leader that
// was just elected has hardly any, and one node's word must not be enough then.
func (l *leader) couldWitness(except replica.NodeName) int {
	n := 0
	for name, node := range l.view.Nodes {
		faulted := false
		for _, led := range l.jobs {
			faulted = faulted || slices.ContainsFunc(led.job.Faults, func(f replica.Fault) bool {
				return f.OfNode() && f.Kind.IsCondition() && f.Node == name && f.NodeIncarnation == node.Incarnation
			})
		}
		if name != except && !faulted {
			n++
		}
	}
	return n
}

// fenced logs, once per closed epoch, that every surviving daemon has acknowledged the fence and settled.
func (l *leader) fenced(led *ledJob) {
	if led.job.Phase != replica.Closed || led.fenced == led.job.ClosedEpoch {
		return
	}
	dead := map[replica.Holder]bool{}
	for _, f := range led.job.Faults {
		if f.OfNode() {
			dead[replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}] = true
		}
	}
	for _, c := range led.job.Ranks {
		h := replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}
		if r, ok := led.reports[c.Node]; c.Incarnation != 0 && !dead[h] && (!ok || r.Fenced < led.job.ClosedEpoch || !r.Settled) {
			return
		}
	}
	led.fenced = led.job.ClosedEpoch
	l.log.fenced(led.job)
}

// finished ends a job once every rank has said that it is done.
func (l *leader) finished(ctx context.Context, led *ledJob) {
	if led.ending || led.job.Phase != replica.Open {
		return
	}
	left := 0
	for _, r := range led.reports {
		for _, rank := range r.Ranks {
			if int(rank.Rank) < len(led.job.Ranks) && rank.Left && led.job.Ranks[rank.Rank].Incarnation == rank.Incarnation {
				left++
			}
		}
	}
	if left == len(led.job.Ranks) {
		led.ending = true
		l.propose(ctx, led.job.ID, replica.EndJob{Job: led.job.ID, Reason: jobFinished}, fromDriver, nil)
	}
}

// jobFinished is the reason of a job whose ranks all left; launchers exit 0 on it.
const jobFinished = "finished"
