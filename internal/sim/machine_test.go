package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/leader"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/unixsock"
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

	mu          sync.Mutex // guards the rest
	up          bool
	incarnation replica.NodeIncarnation
	session     replica.Session
	keeper      *keeper
	daemon      *daemon // nil: none runs
}

func (m *machine) running() *daemon {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.daemon
}

func (m *machine) life() (up bool, inc replica.NodeIncarnation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up, m.incarnation
}

// boot starts the machine with an empty memory.
func (m *machine) boot() {
	m.mu.Lock()
	m.up, m.session = true, 0
	m.incarnation = m.w.nextNode()
	m.keeper = &keeper{files: map[string]*os.File{}}
	m.mu.Unlock()
	m.start()
	m.launcher = newLauncher(m)
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
	k.wipe()
}

// daemon is one life of a node's daemon.
type daemon struct {
	m        *machine
	host     *host.Host
	leader   *leader.Leader // nil: no voter
	ctx      context.Context
	cancel   context.CancelFunc
	parts    sync.WaitGroup
	events   chan session.Event
	gate     *transfer.Gate
	self     replica.Node
	adopted  atomic.Bool
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

// start starts the machine's daemon.
func (m *machine) start() {
	m.mu.Lock()
	m.session++
	d := &daemon{m: m, events: make(chan session.Event, 256), gate: transfer.NewGate(32, 16, 64<<20)}
	d.self = replica.Node{Name: m.name, Incarnation: m.incarnation, Session: m.session, Boot: replica.BootID{byte(m.incarnation)}, Addr: string(m.name) + ":7000", Voter: m.w.votes(m.name)}
	kept := &handle{m.keeper, &d.ctx}
	m.mu.Unlock()
	d.ctx, d.cancel = context.WithCancel(m.w.ctx)
	c := config.Default()
	c.Node, c.StateDir, c.MemoryMargin = m.name, m.dir, 1<<20
	c.Voters = m.w.voterConfig()
	log, err := journal.New(m.w.out(m.name), config.Log{Level: *level}, m.name)
	if err != nil {
		m.w.t.Fatal(err)
	}
	audit := &journal.Auditor{}
	d.host = host.New(host.Config{Daemon: &c, Cluster: m.w.cluster, Self: d.self, Journal: log, Audit: audit, Sessions: d, Processes: m.w, Keeper: kept, Dial: d.dial, Hears: d.hears})
	if err := d.host.Adopt(); err != nil {
		m.w.t.Errorf("node %s: %v", m.name, err)
		return
	}
	if d.self.Voter {
		d.leader = leader.New(leader.Config{Log: m.w.raft.join(m.name), Cluster: m.w.cluster, Timing: c.Timing, Journal: log, Audit: audit, Answers: d.answers, Hears: d.hears})
		d.parts.Go(func() { d.leader.Run(d.ctx) })
	}
	d.parts.Go(func() { d.host.Run(d.ctx) })
	d.parts.Go(d.speak)
	d.parts.Go(func() { d.probe(c.Timing) })
	m.mu.Lock()
	m.daemon = d
	m.mu.Unlock()
}

// kill ends the machine's daemon as SIGKILL does: from here on nothing that it does counts.
func (m *machine) kill() {
	m.mu.Lock()
	d := m.daemon
	m.daemon = nil
	m.mu.Unlock()
	if d == nil {
		return
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
	d.parts.Wait()
	d.host.Close()
}

// Events and Watch make a daemon its host's sessions.
func (d *daemon) Events() <-chan session.Event { return d.events }

func (d *daemon) Watch(pid int, start uint64) error {
	p := d.m.w.process(pid)
	if p == nil || p.start != start {
		d.parts.Go(func() { d.post(session.Exited{PID: pid, StartTime: start}) })
		return nil
	}
	d.parts.Go(func() {
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

var errUnreachable = errors.New("no daemon answers there")

// pipe connects two daemons.
func (d *daemon) pipe(ctx context.Context, to replica.NodeName) (near, far net.Conn, there *daemon, err error) {
	m := d.m.w.machines[to]
	there = m.running()
	if up, _ := m.life(); !up {
		select { // packets go nowhere
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if there == nil || d.m.w.cut(d.m.name, to) {
		return nil, nil, nil, fmt.Errorf("node %s: %w", to, errUnreachable)
	}
	near, far = net.Pipe()
	d.track(near)
	there.track(far)
	d.m.w.track(d.m.name, to, near)
	return near, far, there, nil
}

// lane moves parts over pipes.
type lane struct {
	d  *daemon
	to replica.NodeName
}

func (d *daemon) dial(_ context.Context, _ []string, to replica.NodeName, _ transfer.Transport) (transfer.Lane, error) {
	if d.m.w.machines[to].running() == nil || d.m.w.cut(d.m.name, to) {
		return nil, fmt.Errorf("node %s: %w", to, errUnreachable)
	}
	return &lane{d, to}, nil
}

func (l *lane) Peer() replica.NodeName { return l.to }
func (l *lane) Close()                 {}

func (l *lane) Open(ctx context.Context) (net.Conn, error) {
	near, far, there, err := l.d.pipe(ctx, l.to)
	if err != nil {
		return nil, err
	}
	there.parts.Go(func() {
		defer far.Close()
		time.Sleep(l.d.m.w.delay())
		transfer.Serve(there.ctx, l.d.m.name, far, there.m.w.takes(there.m, there.host.Parts()), there.gate) //nolint:errcheck // the near end sees it
	})
	return near, nil
}

// speak links to whoever leads, once the host has its arenas again.
func (d *daemon) speak() {
	if d.host.AwaitAdoption(d.ctx) != nil {
		return
	}
	d.adopted.Store(true)
	for d.ctx.Err() == nil {
		if to, _ := d.m.w.raft.leads(); to != "" {
			d.link(to)
		}
		d.pause(30*time.Millisecond + d.m.w.delay())
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
	near, far, there, err := d.pipe(d.ctx, to)
	if err != nil || there.leader == nil {
		return
	}
	there.parts.Go(func() { there.leader.Serve(there.ctx, d.m.name, far) })
	l := control.NewLink(near, control.ToLeader)
	defer l.Close(nil)
	near.SetDeadline(time.Now().Add(control.LinkHandshake))
	running, ok := d.host.Running(d.ctx)
	if !ok || control.WriteHello(near, control.Hello{Cluster: d.m.w.cluster, Node: d.self, Running: running}) != nil {
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
			there, cut := m.running(), d.m.w.cut(d.m.name, name)
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
			gossips := up && inc == n.Incarnation && d.m.w.gossips(d.m.name, name)
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

// keeper holds descriptors beyond the daemon's death. handle is the keeper as one daemon sees it.
type keeper struct {
	mu    sync.Mutex
	files map[string]*os.File
}

// flip changes a bit of the first arena here that has some bytes; false: none has.
func (w *world) flip(m *machine, bytesOf []byte) bool {
	m.mu.Lock()
	k := m.keeper
	m.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(k.files)) {
		all, err := io.ReadAll(io.NewSectionReader(k.files[key], 0, 1<<30))
		if err != nil {
			w.t.Error(err)
			return false
		}
		if at := bytes.Index(all, bytesOf); at >= 0 {
			_, err := k.files[key].WriteAt([]byte{bytesOf[7] ^ 4}, int64(at)+7)
			if err != nil {
				w.t.Error(err)
			}
			return err == nil
		}
	}
	return false
}

func (k *keeper) wipe() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, f := range k.files {
		f.Close()
		delete(k.files, key)
	}
}

type handle struct {
	k   *keeper
	ctx *context.Context // of the daemon
}

func (h *handle) do(fn func(map[string]*os.File) error) error {
	if err := (*h.ctx).Err(); err != nil {
		return err
	}
	h.k.mu.Lock()
	defer h.k.mu.Unlock()
	return fn(h.k.files)
}

func (h *handle) Put(key string, f *os.File) error {
	return h.do(func(files map[string]*os.File) error {
		mine, err := unixsock.Duplicate(f)
		if err != nil {
			return err
		}
		if old := files[key]; old != nil {
			old.Close()
		}
		files[key] = mine
		return nil
	})
}

func (h *handle) Drop(key string) error {
	return h.do(func(files map[string]*os.File) error {
		if f := files[key]; f != nil {
			f.Close()
			delete(files, key)
		}
		return nil
	})
}

func (h *handle) All() (map[string]*os.File, error) {
	all := map[string]*os.File{}
	err := h.do(func(files map[string]*os.File) error {
		for key, f := range files {
			mine, err := unixsock.Duplicate(f)
			if err != nil {
				return err
			}
			all[key] = mine
		}
		return nil
	})
	return all, err
}

func (h *handle) Done() <-chan struct{} { return nil }
