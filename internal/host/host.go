package host

import (
	"context"
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
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/session"
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
	restTick    = time.Second            // while no job and no process is there
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

// Tier is the durable tier as a host needs it.
type Tier = hands.Tier

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

// Host is this node's side of every job. Its goroutine (run) owns all fields below the line; everybody else posts events.
// Invariant: nothing on it costs more than microseconds an item, and nothing on it waits, for whatever it does all jobs of the
// node wait. Arenas are made, bytes hashed and memory given back beside it, keeper and disk are the custodian's; what comes
// of it is an event, and is held against the state as it is then.
type Host struct {
	around
	linkage
	parts
	keeper Keeper
	hands  *hands.Hands
	began  time.Time // when the daemon did: what pulses count from
	in     chan Event
	ended  chan struct{}
	work   sync.WaitGroup // everything that takes time; waited for by run

	// Owned by run.
	ctx        context.Context // run's: for what it starts
	jobs       jobs
	requests   uint64        // last request id
	asking     *account.Pace // of what processes here ask the leader
	lastReport time.Time
	leaving    leaving
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
	hears     func(replica.NodeName) bool
	notVoting func() []string // nil: nobody knows of any
	learn     func([]replica.Revocation) []replica.Revocation
}

// parts are the owners of what jobs share on the node. Owned by run.
type parts struct {
	launchers *launchers.Pool // with what they and others here are short of
	admission *admission.Gate // the processes that are on their way to their arena
	desk      *desk.Desk      // the rendezvous, as ranks here see it
	scrub     *scrub.Room
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
)

// request is what a goroutine beside the host asks of it. What is to be known is in its fields, and what was found is left there.
type request interface {
	// serve runs on the host's goroutine.
	serve(h *Host)
}

func New(c Config) *Host {
	m := &Host{began: time.Now(), keeper: c.Keeper, in: make(chan Event, hostQueue), ended: make(chan struct{}),
		around: around{cfg: c.Daemon, cluster: c.Cluster, self: c.Self, log: c.Journal, audit: c.Audit, sessions: c.Sessions, processes: c.Processes,
			hears: c.Hears, notVoting: c.NotVoting, learn: c.Learn},
		linkage: linkage{unlinked: time.Now(), nodes: map[replica.NodeName]replica.Node{}, questions: map[uint64]chan<- any{}}}
	if m.processes == nil {
		m.processes = kernel{}
	}
	if c.Ways == nil {
		c.Ways = replica.Node.Ways
	}
	if m.hears == nil {
		m.hears = func(replica.NodeName) bool { return false }
	}
	if m.learn == nil {
		m.learn = func([]replica.Revocation) []replica.Revocation { return nil }
	}
	m.hands = hands.New(hands.Config{Owner: handsOwner{m}, Log: m.log, Config: m.cfg, Self: m.self.Name, Cluster: m.cluster,
		Store: c.Store, Spool: c.Spool, Custody: holding.NewCustodian(m.keeper, c.Return, m.log, arenaListPath(m.cfg)),
		Dial: c.Dial, Ways: c.Ways, TCPLanes: c.TCPLanes, Slowest: c.SlowestPush, Parts: m.Parts(), Ask: m.fetchAsks,
		Pushed: func(p mover.Pushed) { m.Post(hands.Answer{To: m.push, Event: push.Ended{Pushed: p}}) }})
	m.launchers = launchers.New(launcherOwner{m}, m.log, m.audit, m.cfg, m.cluster, m.self.Name)
	m.asking = account.NewPace(m.cfg.PerUser.Requests)
	m.desk = desk.New(deskOwner{m}, m.log)
	m.admission = admission.New(admissionOwner{rooms{m}}, admissionOwner{rooms{m}}, m.launchers, m.desk, m.log, m.audit, m.cfg)
	m.adoption = adoption.New(rooms{m}, m.log, m.self.Boot, m.cfg.Timing.HangFirst)
	m.scrub = scrub.New(rooms{m}, m.log, uint64(m.cfg.ScrubRate))
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
	h.work.Go(func() { h.hands.Custody.Run(ctx) })
	h.work.Go(func() { h.hands.Read(ctx, h.scrub) })
	due := time.Now().Add(idleTick)
	timer := time.NewTimer(idleTick)
	defer timer.Stop()
	for {
		at, waits := h.asking.Next() // a recovery may wait for it
		if soon := time.Now().Add(idleTick); due.After(soon) && !rests(h) && (!waits || at.After(soon)) {
			at, waits = soon, true
		}
		if waits && at.Before(due) {
			due = at
			timer.Reset(time.Until(due))
		}
		select {
		case <-ctx.Done():
			close(h.ended)
			h.work.Wait()
			h.hands.Mover.Close()
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
	case act.Wake:
		h.wake(ev)
	case ended:
		ev.ending.End(h.jobs.of(ev.job))
	case hands.Answer:
		h.answer(ev)
	case hands.Reply:
		h.reply(ev)
	case hands.Released:
		h.released(ev)
	case hands.Short:
		h.short(ev)
	case desk.Event:
		h.desk.Handle(ev)
	}
}

func (h *Host) nextRequest() uint64 {
	h.requests++
	return h.requests
}

// tick does what no event announces, and says when it wants to be called again.
func (h *Host) tick() time.Duration {
	next := restTick
	if !rests(h) {
		next = idleTick
	}
	due := time.Since(h.lastReport) >= reportEvery
	for _, j := range h.jobs.all {
		if j.Tick(due) {
			next = busyTick
		}
	}
	if due {
		h.lastReport = time.Now()
	}
	h.hands.Yield(time.Since(h.began), h.jobs.training)
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

// rests reports whether there is nothing here that time alone changes, besides what rooms have named a time for. An event brings something.
func rests(h *Host) bool {
	return h.informed && h.link != nil && h.jobs.ended() && h.admission.Empty() && h.launchers.Empty()
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
