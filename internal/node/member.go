package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

const (
	memberQueue   = 4096                 // events waiting for the member; producers block beyond it
	busyTick      = 5 * time.Millisecond // while something local is awaited that sends no event (words of a rank)
	noLeaderAfter = 5 * time.Second      // without a link the log is told that there is no leader
	noLeaderAgain = 10 * time.Minute     // and told again

	idleTick    = 200 * time.Millisecond // reports and housekeeping
	reportEvery = time.Second            // a report is sent at least so often, so that status is fresh anywhere
)

// member is this node's side of every job. Its goroutine (run) owns all fields below the line; everybody else posts events.
// Invariant: nothing on it costs more than microseconds an item, and nothing on it waits, for whatever it does all jobs of the
// node wait. Arenas are made, bytes hashed and memory given back beside it, keeper and disk are the custodian's; what comes
// of it is an event, and is held against the state as it is then.
type member struct {
	began    time.Time // when the daemon did: what pulses count from
	cfg      *config.Config
	cluster  replica.ClusterID
	self     replica.Node // as registered; Session and Incarnation from the keeper
	log      *journal.Journal
	audit    *journal.Auditor
	sessions *session.Server
	keeper   *shm.Keeper
	endpoint *endpoint.Endpoint
	hears    func(replica.NodeName) bool // the prober's
	learn    func([]replica.Revocation) []replica.Revocation
	store    *checkpoint.Store // nil: no durable tier here
	custody  *custodian
	in       chan memberEvent
	ended    chan struct{}
	work     sync.WaitGroup // everything that takes time; waited for by run

	// What takes seconds for large states, and so runs beside the member; a test may put something slow in its place.
	create func(shm.Spec) (*shm.Arena, error)
	reuse  func(*shm.Staging) error

	// Owned by run.
	ctx          context.Context  // run's: for what it starts
	link         *control.Link    // nil while no leader is known
	leader       replica.NodeName // of link
	term         uint64
	era          replica.Era
	nodes        map[replica.NodeName]replica.Node
	informed     bool         // a view came since start: jobs can be judged
	told         control.Told // by the leader of link
	asked        bool         // for a whole view, which has not come
	jobs         map[replica.JobID]*localJob
	attaching    map[uint64]*attaching // by session peer
	launchers    map[uint64]*launcher  // by session peer
	awaited      []arenaEntry          // arenas that only a live rank can bring back
	awaitedSince time.Time
	orphans      []*arenaRef // adopted before their job is known
	requests     uint64      // last request id
	claims       map[uint64]*attaching
	creates      map[uint64]*launcher
	callers      map[uint64]caller      // at the rendezvous, by session peer
	kvs          map[uint64]*kvPending  // not answered
	asking       map[caller]uint64      // the newest of them, by who waits for it
	kept         map[kvScopeKey]*ledger // contributed to epochs that are not closed
	statuses     map[uint64]chan<- []byte
	pushers      map[pusherKey]*pusher
	strains      map[strainKey]strain
	lastReport   time.Time
	unlinked     time.Time         // since when there is no link to a leader; zero: there is one
	saidNoLeader time.Time         // when the log was told so, zero: not yet
	suspects     []control.Suspect // what the last round of probes gave cause for
	keeperLost   bool              // the keeper has gone: not replaced, because another one's node would be another
}

// memberEvent is anything that happens to the member.
type memberEvent any

type (
	linkUp struct {
		link    *control.Link
		welcome control.Welcome
		leader  replica.NodeName
	}
	linkDown struct {
		link *control.Link
		err  error
	}
	keeperGone struct{}
	fromLeader struct {
		link *control.Link
		msg  any
	}
	// call runs a function on the member's goroutine: how transfers and the admin socket read and change its state.
	call struct {
		fn   func()
		done chan struct{}
	}
)

func (m *member) init() {
	if m.learn == nil {
		m.learn = func([]replica.Revocation) []replica.Revocation { return nil }
	}
	m.in, m.ended = make(chan memberEvent, memberQueue), make(chan struct{})
	m.unlinked = time.Now()
	m.custody = newCustodian(m.keeper, m.log, m.writeArenas)
	m.create, m.reuse = shm.Create, (*shm.Staging).Reuse
	m.jobs, m.attaching, m.launchers = map[replica.JobID]*localJob{}, map[uint64]*attaching{}, map[uint64]*launcher{}
	m.claims, m.creates, m.kvs, m.statuses = map[uint64]*attaching{}, map[uint64]*launcher{}, map[uint64]*kvPending{}, map[uint64]chan<- []byte{}
	m.callers, m.asking, m.kept = map[uint64]caller{}, map[caller]uint64{}, map[kvScopeKey]*ledger{}
	m.strains = map[strainKey]strain{}
	m.pushers, m.nodes = map[pusherKey]*pusher{}, map[replica.NodeName]replica.Node{}
}

// post hands an event to run; it blocks while the queue is full, and drops the event once run has returned.
func (m *member) post(ev memberEvent) {
	select {
	case m.in <- ev:
	case <-m.ended:
	}
}

// do runs fn on the member's goroutine and waits for it; false when ctx or the member ended first.
func (m *member) do(ctx context.Context, fn func()) bool {
	c := call{fn, make(chan struct{})}
	select {
	case m.in <- c:
	case <-m.ended:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case <-c.done:
		return true
	case <-m.ended:
		return false
	}
}

// spawn runs fn beside the member; its result comes back as an event.
func (m *member) spawn(fn func(ctx context.Context) memberEvent) {
	ctx := m.ctx
	m.work.Go(func() {
		if ev := fn(ctx); ev != nil {
			m.post(ev)
		}
	})
}

// run owns the member's state until ctx ends, then waits for what it started.
func (m *member) run(ctx context.Context) {
	m.ctx = ctx
	m.work.Go(func() { m.custody.run(ctx) })
	m.watchKeeper()
	timer := time.NewTimer(idleTick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			close(m.ended)
			m.work.Wait()
			return
		case ev := <-m.in:
			m.handle(ev)
		case ev := <-m.sessions.Events():
			m.handleSession(ev)
		case <-timer.C:
			timer.Reset(m.tick())
		}
	}
}

func (m *member) handle(ev memberEvent) {
	switch ev := ev.(type) {
	case call:
		ev.fn()
		close(ev.done)
	case linkUp:
		m.link, m.leader, m.term = ev.link, ev.leader, ev.welcome.Term
		m.told, m.asked = control.Told{}, false
		m.lastReport = time.Time{}
		m.log.Linked(ev.leader, ev.welcome.Term)
		if !m.saidNoLeader.IsZero() {
			m.log.LeaderAgain(ev.leader, time.Since(m.unlinked))
		}
		m.unlinked, m.saidNoLeader = time.Time{}, time.Time{}
		m.resend()
	case linkDown:
		if m.link == ev.link {
			m.link, m.unlinked = nil, time.Now()
			m.log.Unlinked(ev.err)
			for id, ch := range m.statuses { // no answer will come
				delete(m.statuses, id)
				close(ch)
			}
		}
	case fromLeader:
		if m.link == ev.link {
			m.leaderSays(ev.msg)
		}
	case keeperGone:
		m.keeperLost = true
		m.log.KeeperLost(m.cfg.KeeperSocket)
	case arenaReady:
		m.arenaReady(ev)
	case arenaParked:
		m.arenaParked(ev)
	case ledgerParked:
		m.ledgerParked(ev)
	case ledgerRewritten:
		m.ledgerRewritten(ev)
	case mirrorMade:
		m.mirrorMade(ev)
	case mirrorParked:
		m.mirrorParked(ev)
	case finished:
		m.finishedPart(ev)
	case restored:
		m.restored(ev)
	case mirrored:
		m.mirrored(ev)
	case mirrorFetched:
		m.mirrorFetched(ev)
	case pushEnded:
		m.pushEnded(ev)
	case shardWritten:
		m.shardWritten(ev)
	case regionsHashed:
		m.regionsHashed(ev)
	case durableRead:
		m.durableRead(ev)
	case markerWritten:
		m.send(control.MarkedReport(ev))
	}
}

// watchKeeper has the member told when its keeper goes, whether it asks the keeper for anything or not.
func (m *member) watchKeeper() {
	m.spawn(func(ctx context.Context) memberEvent {
		select {
		case <-m.keeper.Done():
			return keeperGone{}
		case <-ctx.Done():
			return nil
		}
	})
}

// send says something to the leader; without a link it is dropped: resend repeats what still matters.
func (m *member) send(v any) {
	if m.link != nil {
		m.link.Send(v)
	}
}

// suspected tells the leader which nodes the last round of probes gave cause to suspect. A leader that comes meanwhile is told
// too (resend): where the lost node led, a witness's word waits for its successor, not for the next round.
func (m *member) suspected(s []control.Suspect) {
	m.suspects = s
	for _, s := range s {
		m.send(s)
	}
}

// unheard are the registered nodes that did not answer this one's newest probe.
func (m *member) unheard() (names []replica.NodeName) {
	for name := range m.nodes {
		if name != m.self.Name && !m.hears(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (m *member) nextRequest() uint64 {
	m.requests++
	return m.requests
}

func (m *member) leaderSays(msg any) {
	switch msg := msg.(type) {
	case control.View:
		m.learn(msg.Revoked)
		m.told, m.asked = control.ToldBy(msg), false // it may be some seconds old; a change comes right behind it
	case control.Change:
		m.changed(msg)
	case control.Progress:
		if job := m.told.Jobs[msg.Job]; job != nil {
			m.told.Jobs[msg.Job] = msg.After(job)
		}
		if lj := m.jobs[msg.Job]; lj != nil {
			m.progressed(lj, msg)
		}
	case replica.Candidate:
		if lj := m.jobs[msg.Job]; lj != nil && msg.Compare(lj.candidate) > 0 {
			m.newCandidate(lj, msg)
		}
	case control.Offer:
		m.offered(msg)
	case control.CaptureOrder:
		if lj := m.jobs[msg.Job]; lj != nil {
			m.captureNow(lj, msg.Generation)
		}
	case control.MirrorOrder:
		if lj := m.jobs[msg.Job]; lj != nil {
			lj.scarce = msg
			m.mirrorScarce(lj, true)
		}
	case control.UnheardQuestion:
		m.send(control.UnheardAnswer{ID: msg.ID, Nodes: m.unheard()})
	case control.RelayOrder:
		if lj := m.jobs[msg.Job]; lj != nil {
			m.relay(lj, msg)
		}
	case control.CorruptCopy:
		if lj := m.jobs[msg.Job]; lj != nil {
			m.recheck(lj, msg)
		}
	case control.RegionsOrder:
		m.hashRegions(msg)
	case control.Tell:
		m.tellLaunchers(msg)
	case control.ClaimReply:
		m.claimReplied(msg)
	case control.CreateReply:
		if l := m.creates[msg.ID]; l != nil {
			delete(m.creates, msg.ID)
			if msg.Retry {
				l.creating = false // the next tick asks again
				break
			}
			m.created(l, msg.Refused)
		}
	case control.KVReply:
		m.kvReplied(msg)
	case control.MarkerOrder:
		m.writeMarker(msg)
	case control.StatusReply:
		if ch := m.statuses[msg.ID]; ch != nil {
			delete(m.statuses, msg.ID)
			ch <- msg.JSON // buffered for its one answer
		}
	}
}

// viewed takes over the leader's state and brings everything local in line with it.
func (m *member) viewed(v control.View) {
	m.era, m.nodes, m.informed = v.Era, v.Nodes, true
	known := make(map[replica.JobID]bool, len(v.Jobs))
	for _, job := range v.Jobs {
		lj := m.jobs[job.ID]
		if lj == nil {
			lj = newLocalJob(job)
			m.jobs[job.ID] = lj
		}
		if job.LastIndex >= lj.job.LastIndex {
			if lj.job.Phase == replica.Ended && job.Phase != replica.Ended {
				lj.reported = replica.NodeReport{} // a new run, of which the leader knows nothing yet
			}
			was := lj.job
			moved := was.Position != job.Position || was.Committed != job.Committed
			lj.job = job
			m.outages(lj, was)
			if moved { // a commit that came with another change, or a plan that went back
				m.tellCommitted(lj)
			}
		}
		known[job.ID] = true
	}
	for id, lj := range m.jobs {
		if !known[id] && v.Index >= lj.job.LastIndex && lj.job.Phase != replica.Ended {
			lj.job = endedUnseen(lj.job, v.Index)
		}
	}
	m.claimOrphans()
	m.dropUnknownKept()
	for _, lj := range m.jobs {
		m.reconcile(lj)
	}
	m.placeWaiting()
	m.serveLaunchers()
	m.serveAttaching()
	for id, lj := range m.jobs {
		if !known[id] && v.Index >= lj.job.LastIndex && len(lj.ranks)+len(lj.mirrors)+len(lj.retired) == 0 && !m.launching(lj.job.Name) {
			delete(m.jobs, id)
		}
	}
}

// changed makes of the state that the leader told last the one that it tells now. A change that does not follow what is known here is
// passed over whole, and the whole state asked for.
func (m *member) changed(c control.Change) {
	m.learn(c.Revoked) // whatever it follows: revocations are never taken back
	if m.asked {
		return // it comes
	}
	v, err := m.told.After(c)
	if err != nil {
		m.log.Failed("view", fmt.Sprintf("change from entry %d to %d by leader %s", c.After, c.Index, m.leader), err.Error()+": the whole state is asked for")
		m.asked = true
		m.send(control.AskView{})
		return
	}
	v.Term = m.term
	m.told = control.ToldBy(v)
	m.viewed(v)
}

// endedUnseen is a job that the state machine has forgotten: it ended while this node was away.
func endedUnseen(job *replica.Job, index uint64) *replica.Job {
	is := *job
	is.Phase, is.ClosedEpoch, is.Plan, is.Writer, is.LastIndex = replica.Ended, is.Epoch, nil, nil, index
	is.EndReason = "it ended while this node was away"
	return &is
}

// resend repeats to a new leader whatever waits for an answer.
func (m *member) resend() {
	for id, a := range m.claims {
		m.send(control.ClaimRequest{ID: id, Claim: a.claim, Token: a.hello.Token})
	}
	for id, l := range m.creates {
		m.send(l.createRequest(id))
	}
	for _, s := range m.suspects {
		m.send(s)
	}
	m.resendKV()
	for _, lj := range m.jobs {
		lj.reported = replica.NodeReport{}
		clear(lj.answered) // with the link the leader lost this node's pins
		clear(lj.passed)
		for _, s := range lj.written {
			m.send(s)
		}
		m.report(lj)
		m.answerCandidate(lj)
	}
}

// tick does what no event announces, and says when it wants to be called again.
func (m *member) tick() time.Duration {
	next := idleTick
	due := time.Since(m.lastReport) >= reportEvery
	for _, lj := range m.jobs {
		if m.settle(lj) {
			next = busyTick
		}
		m.reap(lj)
		m.peersLost(lj)
		m.pulses(lj)
		m.retryRestores(lj)
		m.mirrorScarce(lj, false)
		m.takeOffers(lj)
		if lj.job.Phase == replica.Open {
			m.answerCandidate(lj)
			m.mirrorAgain(lj)
		}
		if due {
			m.lookAtProgress(lj)
			m.sayWhoIsAwaited(lj)
			m.report(lj)
		}
	}
	if due {
		m.lastReport = time.Now()
	}
	m.kvAgain()
	m.serveLaunchers()
	m.killStuck()
	m.leaderless(time.Now())
	return next
}

// leaderless tells the log that no leader is heard, once that has lasted longer than an election, and again now and then.
func (m *member) leaderless(now time.Time) {
	if m.link == nil && now.Sub(m.unlinked) >= noLeaderAfter && (m.saidNoLeader.IsZero() || now.Sub(m.saidNoLeader) >= noLeaderAgain) {
		m.saidNoLeader = now
		m.log.NoLeader(now.Sub(m.unlinked), m.cfg.Voters)
	}
}
