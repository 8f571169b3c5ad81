package host

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/host/agents"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const (
	hostQueue     = 4096                 // events waiting for the host; producers block beyond it
	busyTick      = 5 * time.Millisecond // while something local is awaited that sends no event (words of a rank)
	noLeaderAfter = 5 * time.Second      // without a link the log is told that there is no leader
	noLeaderAgain = 10 * time.Minute     // and told again

	idleTick    = 200 * time.Millisecond // reports and housekeeping
	reportEvery = time.Second            // a report is sent at least so often, so that status is fresh anywhere
)

// Config is what a host needs of its daemon. The functions may be called from any goroutine.
type Config struct {
	Daemon  *config.Config
	Cluster replica.ClusterID
	Self    replica.Node // as registered; Session and Incarnation from the keeper
	Journal *journal.Journal
	Audit   *journal.Auditor
	// Sessions brings what the ranks and launchers here say.
	Sessions  Sessions
	Processes Processes // missing: those that really run
	Keeper    Keeper
	// Return finds another keeper where that one ends beside this daemon; missing: there is none.
	Return holding.Return
	// Dial opens a lane for parts to a node, by one or several of its addresses.
	Dial func(ctx context.Context, addrs []string, node replica.NodeName, over transfer.Transport) (transfer.Lane, error)
	// Ways are a node's addresses in the order in which to use them; missing: as registered.
	Ways func(replica.Node) []string
	// TCPLanes is how many lanes over TCP there are to each holder; 0: Dial knows QUIC alone.
	TCPLanes int
	// SlowestPush is mover.Config.Slowest.
	SlowestPush float64
	// Hears tells whether a node's newest probe was answered; missing: none was.
	Hears func(replica.NodeName) bool
	// NotVoting names the voters that do not vote, with why and the remedy, as far as this daemon knows; missing: it knows of none.
	NotVoting func() []string
	// Learn takes in revocations that the leader tells of; missing: nobody does.
	Learn func([]replica.Revocation) []replica.Revocation
	Store Tier         // nil: no durable tier here
	Spool *spool.Spool // nil: durable writes hold their slots until the store has read them
}

// Sessions are the connections of the ranks and launchers here.
type Sessions interface {
	Events() <-chan session.Event
	// Watch has a session.Exited come once the process has ended.
	Watch(pid int, start uint64) error
}

// Keeper holds descriptors beyond the daemon's death. Its calls may take seconds.
type Keeper interface {
	holding.Vault
	All() (map[string]*os.File, error)
}

// Mover brings parts, and sends them to their mirrors: *mover.Mover.
type Mover interface {
	Fetch(context.Context, mover.Wanted, func(replica.Manifest) (mover.Staging, error)) (mover.Fetched, error)
	Push(l mover.Line, p mover.Push, awaited func(transfer.Key) bool) (dropped []mover.Push)
	Prune(job replica.JobID, wanted func(mover.Line, transfer.Key) bool) (dropped []mover.Push)
	EndPushes(replica.JobID)
	Moving(replica.JobID, replica.Generation) []mover.Moving
	Traffic() []mover.Traffic
	Close()
}

// Host is this node's side of every job. Its goroutine (run) owns all fields below the line; everybody else posts events.
// Invariant: nothing on it costs more than microseconds an item, and nothing on it waits, for whatever it does all jobs of the
// node wait. Arenas are made, bytes hashed and memory given back beside it, keeper and disk are the custodian's; what comes
// of it is an event, and is held against the state as it is then.
type Host struct {
	around
	linkage
	memory
	parts
	began       time.Time // when the daemon did: what pulses count from
	durableRate *writer.Rate
	mover       Mover
	fetches     *fetch.Fetcher
	in          chan Event
	ended       chan struct{}
	work        sync.WaitGroup // everything that takes time; waited for by run

	// Owned by run.
	ctx        context.Context // run's: for what it starts
	jobs       jobs
	requests   uint64        // last request id
	asking     *account.Pace // of what processes here ask the leader
	lastReport time.Time
	leaving    leaving
	yielding   yielding
}

// around is what a host was given.
type around struct {
	cfg       *config.Config
	cluster   replica.ClusterID
	self      replica.Node
	log       *journal.Journal
	audit     *journal.Auditor
	sessions  Sessions
	processes Processes
	dial      func(ctx context.Context, addrs []string, node replica.NodeName, over transfer.Transport) (transfer.Lane, error)
	ways      func(replica.Node) []string
	hears     func(replica.NodeName) bool
	notVoting func() []string // nil: nobody knows of any
	learn     func([]replica.Revocation) []replica.Revocation
	store     Tier
	spool     *spool.Spool
}

// parts are the owners of what jobs share on the node. Owned by run.
type parts struct {
	launchers *launchers.Pool // with what they and others here are short of
	admission *admission.Gate // the processes that are on their way to their arena
	desk      *desk.Desk      // the rendezvous, as ranks here see it
	scrubber  scrubber
	adoption  *adoption.Room
	push      *push.Room
	mirrors   *mirrors.Room
	restores  *restore.Room
	growing   *growth.Room
	writer    *writer.Room
	agents    *agents.Room
}

// Event is anything that happens to the host. From elsewhere come LinkUp, FromLeader and LinkDown.
type Event any

type (
	// LinkUp is a link that a leader has welcomed, LinkDown its end, FromLeader what came on it.
	LinkUp struct {
		Link    *control.Link
		Welcome control.Welcome
		Leader  replica.NodeName
	}
	LinkDown struct {
		Link *control.Link
		Err  error
	}
	FromLeader struct {
		Link *control.Link
		Msg  any
	}
	// asked is a request whose sender waits for done.
	asked struct {
		request request
		done    chan struct{}
	}
	// released is the end of a read of a place.
	released struct {
		arena *holding.Arena
		place shm.Place
	}
)

// request is what a goroutine beside the host asks of it. What is to be known is in its fields, and what was found is left there.
type request interface {
	// serve runs on the host's goroutine.
	serve(h *Host)
}

func New(c Config) *Host {
	m := &Host{began: time.Now(), durableRate: writer.NewRate(uint64(c.Daemon.DurableRate)), in: make(chan Event, hostQueue), ended: make(chan struct{}),
		around: around{cfg: c.Daemon, cluster: c.Cluster, self: c.Self, log: c.Journal, audit: c.Audit, sessions: c.Sessions, processes: c.Processes,
			dial: c.Dial, ways: c.Ways, hears: c.Hears, notVoting: c.NotVoting, learn: c.Learn, store: c.Store, spool: c.Spool},
		linkage:  linkage{unlinked: time.Now(), nodes: map[replica.NodeName]replica.Node{}, questions: map[uint64]chan<- any{}},
		memory:   memory{keeper: c.Keeper, create: shm.Create, room: shm.Room, reuse: (*shm.Staging).Reuse},
		yielding: yielding{pacer: new(manners.Pacer)}}
	if m.processes == nil {
		m.processes = kernel{}
	}
	if m.ways == nil {
		m.ways = replica.Node.Ways
	}
	if m.hears == nil {
		m.hears = func(replica.NodeName) bool { return false }
	}
	if m.learn == nil {
		m.learn = func([]replica.Revocation) []replica.Revocation { return nil }
	}
	m.custody = holding.NewCustodian(m.keeper, c.Return, m.log, m.arenaListPath())
	m.mover = mover.New(mover.Config{Self: m.self.Name, Dial: m.dialLane, Ways: m.waysTo, TCPLanes: c.TCPLanes, Slowest: c.SlowestPush, Parts: m.Parts(), Disk: m.store, Pushed: func(p mover.Pushed) { m.Post(answer{m.push, push.Ended{Pushed: p}}) }})
	m.fetches = newFetcher(m)
	m.launchers = launchers.New(launcherOwner{m}, m.log, m.audit, m.cfg, m.cluster, m.self.Name)
	m.asking = account.NewPace(m.cfg.PerUser.Requests)
	m.desk = desk.New(deskOwner{m}, m.log)
	m.admission = admission.New(admissionOwner{rooms{m}}, admissionOwner{rooms{m}}, m.launchers, m.desk, m.log, m.audit, m.cfg)
	m.adoption = adoption.New(rooms{m}, m.log, m.self.Boot, m.cfg.Timing.HangFirst)
	m.scrubber = newScrubber(m)
	m.restores = restore.New(rooms{m}, m.log)
	m.mirrors = mirrors.New(rooms{m}, m.log, m.self.Name)
	m.growing = growth.New(rooms{m})
	m.writer = writer.New(rooms{m})
	m.agents = agents.New()
	m.push = push.New(rooms{m}, m.log, m.cluster, m.self.Name)
	m.jobs = jobs{all: map[replica.JobID]*job.Job{}, at: &job.At{Node: jobNode{m}, Memory: jobMemory{m}, Log: m.log, Config: m.cfg,
		Launchers: m.launchers, Admission: m.admission, Growing: m.growing, Restores: m.restores, Mirrors: m.mirrors, Push: m.push, Writer: m.writer}}
	return m
}

// Post hands an event to run; it blocks while the queue is full, and drops the event once run has returned.
func (h *Host) Post(ev Event) {
	select {
	case h.in <- ev:
	case <-h.ended:
	}
}

// ask has a request served and waits for that; false when ctx or the host ended first: the request must not be read then.
func (h *Host) ask(ctx context.Context, r request) bool {
	c := asked{r, make(chan struct{})}
	select {
	case h.in <- c:
	case <-h.ended:
		return false
	case <-ctx.Done():
		return false
	}
	select {
	case <-c.done:
		return true
	case <-h.ended:
		return false
	}
}

// spawn runs fn beside the host; its result comes back as an event.
func (h *Host) spawn(fn func(ctx context.Context) Event) {
	ctx := h.ctx
	h.work.Go(func() {
		if ev := fn(ctx); ev != nil {
			h.Post(ev)
		}
	})
}

// Run owns the host's state until ctx ends, then waits for what it started.
func (h *Host) Run(ctx context.Context) {
	h.ctx = ctx
	h.work.Go(func() { h.custody.Run(ctx) })
	h.work.Go(func() { h.readAgain(ctx) })
	due := time.Now().Add(idleTick)
	timer := time.NewTimer(idleTick)
	defer timer.Stop()
	for {
		if at, waits := h.asking.Next(); waits && at.Before(due) { // a recovery may wait for it
			due = at
			timer.Reset(time.Until(due))
		}
		select {
		case <-ctx.Done():
			close(h.ended)
			h.work.Wait()
			h.mover.Close()
			return
		case ev := <-h.in:
			h.handle(ev)
		case ev := <-h.sessions.Events():
			h.handleSession(ev)
		case <-timer.C:
			next := h.tick()
			due = time.Now().Add(next)
			timer.Reset(next)
		}
	}
}

func (h *Host) handle(ev Event) {
	switch ev := ev.(type) {
	case asked:
		ev.request.serve(h)
		close(ev.done)
	case released:
		h.released(ev)
	case launchers.Kept:
		if j := h.jobs.of(ev.Job); j != nil {
			h.launchers.Of(j).Keeps(ev)
		}
	case LinkUp:
		h.linked(ev)
	case LinkDown:
		h.linkLost(ev)
	case FromLeader:
		if h.link == ev.Link {
			h.leaderSays(ev.Msg)
		}
	case leaveAsked:
		h.leaves(ev)
	case admission.Event:
		h.admission.Handle(ev, time.Now())
	case arenaShort:
		h.arenaShort(ev)
	case answer:
		h.notify(ev.to, ev.ev)
	case act.Wake:
		h.wake(ev)
	case ended:
		ev.ending.End(h.jobs.of(ev.job))
	case desk.Event:
		h.desk.Handle(ev)
	case scrub.FetchEnded:
		h.fetchedBack(ev)
	case regionsHashed:
		h.regionsHashed(ev)
	case spooled:
		h.send(control.SpoolReport(ev))
	}
}

func (h *Host) linked(ev LinkUp) {
	h.link, h.leader, h.term = ev.Link, ev.Leader, ev.Welcome.Term
	h.told, h.asked = control.Told{}, false
	h.lastReport = time.Time{}
	h.link.Full = func(of any) { h.log.LeftOut(string(ev.Leader), of) }
	h.log.Linked(ev.Leader, ev.Welcome.Term)
	if !h.saidNoLeader.IsZero() {
		h.log.LeaderAgain(ev.Leader, time.Since(h.unlinked))
	}
	h.unlinked, h.saidNoLeader = time.Time{}, time.Time{}
	h.resend()
}

func (h *Host) linkLost(ev LinkDown) {
	if h.link != ev.Link {
		return // it was replaced
	}
	h.link, h.unlinked = nil, time.Now()
	h.log.Unlinked(ev.Err)
	for _, j := range h.jobs.all {
		j.Unlinked(time.Now())
	}
	h.unanswered()
}

func (h *Host) nextRequest() uint64 {
	h.requests++
	return h.requests
}

func (h *Host) leaderSays(msg any) {
	switch msg := msg.(type) {
	case control.View:
		h.learn(msg.Revoked)
		h.told, h.asked = control.ToldBy(msg), false // it may be some seconds old; a change comes right behind it
	case control.Change:
		h.changed(msg)
	case control.Progress:
		if job := h.told.Jobs[msg.Job]; job != nil {
			h.told.Jobs[msg.Job] = msg.After(job)
		}
		if j := h.jobs.of(msg.Job); j != nil {
			j.Progressed(msg)
		}
	case replica.Candidate:
		if j := h.jobs.of(msg.Job); j != nil {
			j.Name(msg)
		}
	case replica.Ledger:
		if j := h.jobs.of(msg.Job); j != nil {
			j.TakeClocks(msg)
		}
	case control.Offers:
		if j := h.jobs.of(msg.Job); j != nil {
			h.launchers.Of(j).Offered(msg, time.Now())
		}
	case control.CaptureOrder:
		if j := h.jobs.of(msg.Job); j != nil {
			j.CaptureNow(msg.Generation)
		}
	case control.MirrorOrder:
		h.notify(h.push, push.Asked{MirrorOrder: msg})
	case control.UnheardQuestion:
		h.send(control.UnheardAnswer{ID: msg.ID, Nodes: h.unheard()})
	case control.GrowthRefused:
		h.notify(h.growing, growth.Refused{Job: msg.Job, Rank: msg.Rank, Ask: msg.Ask, Why: msg.Why})
	case control.RelayOrder:
		h.notify(h.mirrors, mirrors.Relay{RelayOrder: msg})
	case control.CorruptCopy:
		if j := h.jobs.of(msg.Job); j != nil {
			j.Recheck(msg)
		}
	case control.RegionsOrder:
		h.hashRegions(msg)
	case control.Tell:
		if j := h.jobs.of(msg.Job); j != nil {
			j.Told(msg.Text, time.Now())
		}
	case control.ClaimReply:
		h.admission.Claimed(msg)
	case control.CreateReply:
		h.launchers.Created(msg, time.Now())
	case control.AgentRound:
		h.notify(h.agents, agents.Told{AgentRound: msg})
	case control.KVReply:
		h.desk.Reply(msg)
	case control.SpoolOrder:
		h.spools(msg)
	case control.MarkerOrder:
		h.notify(h.writer, writer.Ordered{MarkerOrder: msg})
	case control.WriteTurn:
		h.notify(h.writer, writer.Turned{WriteTurn: msg})
	case control.MayLeave:
		h.mayLeave(msg)
	case control.StatusReply:
		h.answered(msg.ID, msg)
	case control.OperatorReply:
		h.answered(msg.ID, msg)
	}
}

// viewed takes over the leader's state and brings everything local in line with it.
func (h *Host) viewed(v control.View) {
	h.era, h.nodes, h.informed = v.Era, v.Nodes, true
	known := make(map[replica.JobID]bool, len(v.Jobs))
	for _, record := range v.Jobs {
		h.jobs.follow(record)
		known[record.ID] = true
	}
	for id, j := range h.jobs.all {
		if !known[id] {
			j.Unknown(v.Index)
		}
	}
	h.notify(h.adoption, act.Changed{})
	for _, j := range h.jobs.all {
		j.Reconcile()
	}
	h.desk.JobsTold() // behind reconcile: who waited is held against the fences that it raised
	h.launchers.Serve(time.Now())
	h.admission.Serve(time.Now())
	for id, j := range h.jobs.all {
		if !known[id] && v.Index >= j.Job.LastIndex && len(j.View().Arenas()) == 0 && !h.launchers.Launching(j.Job.Name) {
			h.jobs.drop(id)
		}
	}
}

// changed makes of the state that the leader told last the one that it tells now. A change that does not follow what is known here is
// passed over whole, and the whole state asked for.
func (h *Host) changed(c control.Change) {
	h.learn(c.Revoked) // whatever it follows: revocations are never taken back
	if h.asked {
		return // it comes
	}
	v, err := h.told.After(c)
	if err != nil {
		h.log.Failed("view", fmt.Sprintf("change from entry %d to %d by leader %s", c.After, c.Index, h.leader), err.Error()+": the whole state is asked for")
		h.asked = true
		h.send(control.AskView{})
		return
	}
	v.Term = h.term
	h.told = control.ToldBy(v)
	h.viewed(v)
}

// resend repeats to a new leader whatever waits for an answer.
func (h *Host) resend() {
	for _, j := range h.jobs.all { // first of all: since when things last goes with what is said of them
		if l, ok := j.Clocks(); ok {
			h.send(l)
		}
	}
	h.admission.Resend()
	h.launchers.Resend()
	for _, s := range h.suspects {
		h.send(s)
	}
	if h.leaving.words != nil {
		h.send(control.Leaving{Goes: h.leaving.goes})
	}
	h.notify(h.agents, act.Linked{}) // before what the desk repeats, which ends with that all is said: a round may begin then
	h.desk.Resend()
	h.notify(h.scrubber.room, act.Linked{})
	h.notify(h.writer, act.Linked{})
	for _, j := range h.jobs.all {
		j.Linked()
	}
}

// tick does what no event announces, and says when it wants to be called again.
func (h *Host) tick() time.Duration {
	next := idleTick
	due := time.Since(h.lastReport) >= reportEvery
	for _, j := range h.jobs.all {
		if j.Tick(due) {
			next = busyTick
		}
	}
	if due {
		h.lastReport = time.Now()
	}
	h.yield()
	h.asking.Tick(time.Now())
	h.admission.Retry(time.Now())
	next = min(next, h.turnRooms(time.Now()))
	h.launchers.Serve(time.Now())
	h.admission.Tick(time.Now())
	h.desk.Tick() // behind claims: a recovery waits for these, and a job's processes may ask at the rendezvous in a loop
	h.launchers.LetGo()
	h.launchers.KillStuck(time.Now())
	h.leaderless(time.Now())
	return next
}

// leaderless tells the log and, once, the launchers here that no leader is heard, and why, once that has lasted longer than an election, and again now and then.
func (h *Host) leaderless(now time.Time) {
	if h.link == nil && now.Sub(h.unlinked) >= noLeaderAfter && (h.saidNoLeader.IsZero() || now.Sub(h.saidNoLeader) >= noLeaderAgain) {
		var why []string
		if h.notVoting != nil {
			why = h.notVoting()
		}
		remedy := h.log.NoLeader(now.Sub(h.unlinked), h.cfg.Voters, why)
		for _, j := range h.jobs.all {
			if h.saidNoLeader.IsZero() && !room.Over(j.Job) {
				h.launchers.Of(j).Note(fmt.Sprintf("warning: no leader for %v: nothing is committed, and no lost rank is replaced; training goes on: %s", now.Sub(h.unlinked).Round(time.Second), remedy))
			}
		}
		h.saidNoLeader = now
	}
}

// Close gives back the memory that a host holds whose Run has returned: for a process that goes on. The keeper still has it.
func (h *Host) Close() {
	closeAll := func(arenas ...*holding.Arena) {
		for _, a := range arenas {
			a.Close()
		}
	}
	closeAll(h.adoption.Arenas()...)
	for _, a := range h.growing.Close() {
		a.Close()
	}
	closeAll(h.admission.Arenas()...)
	for _, j := range h.jobs.all {
		closeAll(j.View().Arenas()...)
	}
	h.desk.Close()
}
