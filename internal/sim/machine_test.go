package sim

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/directory"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// machine is a node: what of it outlives its daemon. The script alone starts and ends things on it.
type machine struct {
	w        *world
	name     replica.NodeName
	dir      string
	spare    bool
	prefers  []replica.Rank
	capacity int
	launcher *launcher

	short  atomic.Bool  // of memory, for a daemon that starts
	pushed atomic.Int32 // groups' parts that its daemon is taking in

	mu     sync.Mutex // guards the rest
	up     bool
	boot   replica.BootID
	keeper *keeper
	self   replica.Node // as its newest daemon registered
	daemon *daemon      // nil: none runs
}

func (m *machine) running() *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.daemon
}

func (m *machine) life() (up bool, inc replica.NodeIncarnation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up, m.self.Incarnation
}

// fragile tells whether the memory of the machine would not survive its daemon: the keeper has ended beside it.
func (m *machine) fragile() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.keeper.incarnation != m.self.Incarnation || m.keeper.gone()
}

// start starts the machine with an empty memory.
func (m *machine) start() {
	m.mu.Lock()
	m.up, m.keeper = true, newKeeper(m.w)
	m.boot = replica.BootID{byte(m.keeper.incarnation)}
	m.mu.Unlock()
	m.serve()
	m.launcher = newLauncher(m)
}

// replaceKeeper kills the machine's keeper, whose supervisor starts another one.
func (m *machine) replaceKeeper() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keeper.kill()
	m.keeper = newKeeper(m.w)
}

// crash ends everything on the machine, and its memory is lost.
func (m *machine) crash() {
	m.mu.Lock()
	m.up = false
	k := m.keeper
	m.mu.Unlock()
	m.launcher.kill()
	m.w.killOn(m)
	m.kill()
	k.kill()
}

// daemon is one life of a node's daemon.
type daemon struct {
	m       *machine
	host    *host.Host
	leader  *leader.Leader // nil: no voter
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	events  chan session.Event
	gate    *transfer.Gate
	self    replica.Node
	adopted atomic.Bool
	lanes   atomic.Uint64
	*dice
	peersID  atomic.Uint64
	silences sync.Map // by node, the silence of it

	mu    sync.Mutex // guards conns
	conns []io.Closer
}

// silence is what probes of a node met last.
type silence struct {
	since    time.Time // zero: it answers
	refused  bool
	adopting bool
	answered bool
}

// serve starts the machine's daemon.
func (m *machine) serve() {
	m.mu.Lock()
	d := &daemon{m: m, events: make(chan session.Event, 256), gate: transfer.NewGate(32, 16, 64<<20)}
	d.self = replica.Node{Name: m.name, Incarnation: m.keeper.incarnation, Session: m.keeper.session(), Boot: m.boot, Addr: string(m.name) + ":7000", Voter: m.w.votes(m.name)}
	kept := &handle{m.keeper, &d.ctx}
	m.self = d.self
	m.pushed.Store(0)
	m.mu.Unlock()
	d.dice = m.w.dice("daemon of "+string(m.name), d.life())
	d.ctx, d.cancel = context.WithCancel(m.w.ctx)
	c := config.Default()
	c.Timing = timing()
	c.Node, c.StateDir, c.MemoryMargin = m.name, m.dir, 1<<20
	if m.short.Load() {
		c.MemoryMargin = 1 << 50
	}
	c.Voters = m.w.voterConfig()
	log, err := journal.New(m.w.out(m.name), config.Log{Level: *level}, m.name)
	if err != nil {
		m.w.t.Fatal(err)
	}
	audit := &journal.Auditor{}
	disk, err := d.disk()
	if err != nil {
		m.w.t.Fatal(err)
	}
	var writes host.Tier
	var shelf leader.Tier
	if disk != nil {
		writes, shelf = disk, disk
	}
	d.host = host.New(host.Config{Daemon: &c, Cluster: m.w.cluster, Self: d.self, Journal: log, Audit: audit, Sessions: d, Processes: m.w, Keeper: kept, Dial: d.dial, Hears: d.hears, Store: writes, Spool: d.spool(), SlowestPush: m.w.slowest})
	if err := d.host.Adopt(); err != nil {
		m.w.t.Errorf("node %s: %v", m.name, err)
		return
	}
	if d.self.Voter {
		d.leader = leader.New(leader.Config{Log: m.w.raft.join(m.name), Cluster: m.w.cluster, Timing: c.Timing, Journal: log, Audit: audit, Answers: d.answers, Hears: d.hears, Tier: shelf})
		d.work.Go(func() { d.leader.Run(d.ctx) })
	}
	d.work.Go(func() { d.host.Run(d.ctx) })
	d.work.Go(d.speak)
	d.work.Go(func() { d.probe(c.Timing) })
	m.mu.Lock()
	m.daemon = d
	m.mu.Unlock()
	m.w.see(sight{moment: adopting, at: m, on: func() bool { return m.running() == d && !d.adopted.Load() }})
}

// disk opens the durable tier; nil: there is none.
func (d *daemon) disk() (*tier.Tier, error) {
	if d.m.w.durable == 0 {
		return nil, nil
	}
	st, err := directory.Open(d.ctx, d.m.w.disk)
	if err != nil {
		return nil, err
	}
	t := tier.New(paced{st, d}, tier.Settings{Reader: string(d.m.name), Cluster: d.m.w.cluster, Now: d.clock().now})
	d.track(t)
	return t, nil
}

// paced is a store whose uploads take their time, before each part of one. Nobody waits for those of a daemon that is dead.
type paced struct {
	store.Store
	d *daemon
}

func (p paced) Upload(ctx context.Context, key string, size int64) (store.Upload, error) {
	u, err := p.Store.Upload(ctx, key, size)
	return pacedUpload{u, p.d}, err
}

type pacedUpload struct {
	store.Upload
	d *daemon
}

func (u pacedUpload) Part(ctx context.Context, i int, b []byte) error {
	u.d.pause(time.Duration(float64(len(b)) / float64(u.d.m.w.weights) * float64(u.d.m.w.writes)))
	return u.Upload.Part(ctx, i, b)
}

// spool is what durable writes go through on every other machine; nil: they hold their slots. The directory of an episode is in memory, if it can be.
func (d *daemon) spool() *spool.Spool {
	if d.m.w.durable == 0 || !d.m.w.spooled && d.m.w.dice("spool of "+string(d.m.name), 0).rng.IntN(2) == 0 {
		return nil
	}
	s, err := d.m.w.openSpool(d.ctx, d.m.name, d.life())
	if err != nil {
		d.m.w.t.Error(err)
		return nil
	}
	return s
}

// openSpool opens the spool of a machine for one life of its daemon.
func (w *world) openSpool(ctx context.Context, n replica.NodeName, life uint64) (*spool.Spool, error) {
	return spool.Open(ctx, spool.Config{Dir: filepath.Join(w.disk, "..", "spool"), Owner: n, Epoch: life, Most: 1 << 30})
}

// life is a number that no two daemons of a cluster have in common.
func (d *daemon) life() uint64 { return uint64(d.self.Incarnation)<<32 | uint64(d.self.Session) }

// kill ends the machine's daemon as SIGKILL does: from here on nothing that it does counts.
func (m *machine) kill() {
	m.mu.Lock()
	d := m.daemon
	m.daemon = nil
	k := m.keeper
	m.mu.Unlock()
	if d == nil {
		return
	}
	j := m.w.now()
	left, err := k.halfDone(j != nil && j.Phase == replica.Planned)
	if err != nil {
		m.w.t.Error(err)
	}
	d.cancel()
	m.w.raft.leave(m.name)
	d.mu.Lock()
	conns := d.conns
	d.conns = nil
	d.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	d.work.Wait()
	d.host.Close()
	for _, h := range left {
		if err := h.leave(); err != nil && !errors.Is(err, os.ErrClosed) {
			m.w.t.Error(err)
		}
	}
}

// Events and Watch make a daemon its host's sessions.
func (d *daemon) Events() <-chan session.Event { return d.events }

func (d *daemon) Watch(pid int, start uint64) error {
	p := d.m.w.process(pid)
	if p == nil || p.start != start {
		d.work.Go(func() { d.post(session.Exited{PID: pid, StartTime: start}) })
		return nil
	}
	d.work.Go(func() {
		select {
		case <-p.ended:
			d.post(session.Exited{PID: pid, StartTime: start})
		case <-d.ctx.Done():
		}
	})
	return nil
}

// post hands the host an event; false: the daemon has ended.
func (d *daemon) post(ev session.Event) bool {
	select {
	case d.events <- ev:
		return true
	case <-d.ctx.Done():
		return false
	}
}

// track has a connection end with the daemon.
func (d *daemon) track(c io.Closer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		c.Close()
		return
	}
	d.conns = append(d.conns, c)
}

// speak links to whoever leads, once the host has its arenas again.
func (d *daemon) speak() {
	if d.host.AwaitAdoption(d.ctx) != nil {
		return
	}
	d.adopted.Store(true)
	for d.ctx.Err() == nil {
		if to := d.m.w.raft.heardOf(d.m.name); to != "" {
			d.link(to)
		}
		after := 30*time.Millisecond + d.delay()
		if slow := time.Duration(d.m.w.slow.Load()); slow > 0 {
			after += d.below(slow)
		}
		d.pause(after)
	}
}

func (d *daemon) pause(long time.Duration) {
	select {
	case <-d.ctx.Done():
	case <-time.After(long):
	}
}

// link runs one link until it goes down.
func (d *daemon) link(to replica.NodeName) {
	near, far, there, err := d.pipe(d.ctx, to, false)
	if err != nil || there.leader == nil {
		return
	}
	there.work.Go(func() { there.leader.Serve(there.ctx, d.m.name, far) })
	l := control.NewLink(near, control.ToLeader)
	defer l.Close(nil)
	near.SetDeadline(time.Now().Add(control.LinkHandshake))
	running, ok := d.host.Running(d.ctx)
	if !ok || control.WriteHello(near, control.Hello{Cluster: d.m.w.cluster, Node: d.self, Running: running, Raft: control.Standing{State: control.Votes}}) != nil {
		return
	}
	w, err := control.ReadWelcome(near)
	if err != nil || !w.OK {
		if w.Refused {
			d.m.w.t.Errorf("node %s is refused by %s: %s", d.m.name, to, w.Reason)
		}
		return
	}
	near.SetDeadline(time.Time{})
	d.host.Post(host.LinkUp{Link: l, Welcome: w, Leader: to})
	var in control.Decoder
	err = l.Run(d.ctx, func(kind wire.Kind, body []byte) error {
		msg, err := in.Decode(kind, body)
		if err == nil && msg != nil {
			d.host.Post(host.FromLeader{Link: l, Msg: msg})
		}
		return err
	})
	d.host.Post(host.LinkDown{Link: l, Err: err})
}

// probe looks at the other nodes' data paths, and says which are silent, as the prober of package node does.
func (d *daemon) probe(t config.Timing) {
	loses := d.loses()
	for d.ctx.Err() == nil {
		d.pause(t.ProbeInterval)
		if !d.adopted.Load() {
			continue
		}
		seen, ok := d.host.Witness(d.ctx)
		if !ok {
			return
		}
		var suspects []control.Suspect
		for name, n := range seen.Nodes {
			m := d.m.w.machines[name]
			there, cut := m.running(), loses(name) || d.m.w.net.cut(d.m.name, name)
			up, inc := m.life()
			old, _ := d.silences.Load(name)
			s, _ := old.(silence)
			itself := !cut && there != nil && inc == n.Incarnation
			switch {
			case itself && there.adopted.Load():
				s = silence{answered: true}
			case !cut && up && there == nil:
				s = silence{refused: true, answered: s.answered}
			default:
				s.refused, s.adopting = false, itself
				if s.since.IsZero() {
					s.since = time.Now()
				}
			}
			d.silences.Store(name, s)
			gossips := up && inc == n.Incarnation && d.m.w.net.gossips(d.m.name, name)
			if silent := time.Since(s.since); !s.since.IsZero() && silent >= t.SilentAfter && !gossips {
				suspects = append(suspects, control.Suspect{Target: n.Holder(), Live: seen.Live, SilentMS: uint64(silent.Milliseconds()), Steps: seen.Steps})
			}
		}
		d.host.Suspect(d.ctx, suspects)
	}
}

func (d *daemon) met(n replica.NodeName) (s silence, ok bool) {
	v, ok := d.silences.Load(n)
	if ok {
		s = v.(silence)
	}
	return s, ok
}

func (d *daemon) hears(n replica.NodeName) bool {
	s, _ := d.met(n)
	return s.answered && s.since.IsZero() && !s.refused
}

func (d *daemon) answers(n replica.NodeName) bool {
	s, ok := d.met(n)
	return !ok || s.adopting || !s.refused && (s.since.IsZero() || time.Since(s.since) < time.Second)
}
