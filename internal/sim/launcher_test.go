package sim

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// process is one that a launcher started: a rank, alive until it ends or is killed.
type process struct {
	pid   int
	start uint64
	m     *machine
	rank  replica.Rank
	ended chan struct{}
	*dice
	holds atomic.Uint64 // the newest epoch that it has loaded
	meets atomic.Bool   // it has attached
	wrong atomic.Bool   // its state differs from what its twins have

	mu     sync.Mutex // held while the process touches memory: a killed one touches none
	dead   bool
	status int32
	thaw   chan struct{} // closed when it may go on; nil: nothing has stopped it
	raise  bool          // it is to have an exception
	ctx    context.Context
	cancel context.CancelFunc
}

// killed unwinds the goroutine of a process.
type killed struct{}

// do runs what the process does at once; in a dead process it unwinds.
func (p *process) do(fn func()) {
	p.waits()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		panic(killed{})
	}
	fn()
}

func (p *process) end(status int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return
	}
	p.dead, p.status = true, status
	p.cancel()
	close(p.ended)
}

// sleep lets time pass for the process.
func (p *process) sleep(d time.Duration) {
	select {
	case <-p.ctx.Done():
		panic(killed{})
	case <-time.After(d):
	}
	p.waits()
}

// waits stands still while a signal has stopped the process.
func (p *process) waits() {
	p.mu.Lock()
	thaw := p.thaw
	p.mu.Unlock()
	if thaw == nil {
		return
	}
	select {
	case <-p.ctx.Done():
		panic(killed{})
	case <-thaw:
	}
}

// stop is SIGSTOP, and cont SIGCONT.
func (p *process) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thaw == nil {
		p.thaw = make(chan struct{})
	}
}

func (p *process) cont() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thaw != nil {
		close(p.thaw)
		p.thaw = nil
	}
}

// fail has the process meet an exception in its next step; raised tells it.
func (p *process) fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.raise = true
}

func (p *process) raised() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.raise
	p.raise = false
	return was
}

// message is what a daemon sends to a process.
type message struct {
	head wire.RankHeader
	body []byte
	file *os.File
}

// peer is a connection of a process to its node's daemon: what the daemon sees of it is a session.Peer.
type peer struct {
	d     *daemon
	id    uint64
	pid   int
	start uint64
	in    chan message
	once  sync.Once
}

func (d *daemon) connect(pid int, start uint64) *peer {
	return &peer{d: d, id: d.peersID.Add(1), pid: pid, start: start, in: make(chan message, 256)}
}

func (p *peer) ID() uint64        { return p.id }
func (p *peer) PID() int          { return p.pid }
func (p *peer) StartTime() uint64 { return p.start }
func (p *peer) UID() int          { return os.Geteuid() }
func (p *peer) Close()            {}

func (p *peer) Send(h wire.RankHeader, body []byte) error { return p.SendFile(h, body, nil) }

func (p *peer) SendFile(h wire.RankHeader, body []byte, f *os.File) error {
	if p.d.ctx.Err() != nil {
		return session.ErrClosed
	}
	m := message{head: h, body: body}
	if f != nil {
		var err error
		if m.file, err = unixsock.Duplicate(f); err != nil {
			return err
		}
	}
	select {
	case p.in <- m:
		return nil
	default:
		return session.ErrSlow
	}
}

func (p *peer) Refuse(req uint32, code int32, text string) {
	p.Send(wire.RankHeader{Type: wire.MRefused, Request: req}, wire.Refused{Code: code, Text: text}.Append(nil)) //nolint:errcheck // as over a socket
}

// hangUp ends the session.
func (p *peer) hangUp() { p.once.Do(func() { p.d.post(session.Gone{Peer: p, Err: io.EOF}) }) }

// launcher is a `replicad run` on a machine.
type launcher struct {
	m      *machine
	ctx    context.Context
	cancel context.CancelFunc
	pid    int
	runs   sync.WaitGroup
	*dice
	ends chan *process

	children map[replica.Rank]*process // its goroutine's, as what follows
	begun    map[replica.Rank]uint64
	job      replica.JobID
	untold   []wire.RunExited
}

func newLauncher(m *machine) *launcher {
	l := &launcher{m: m, pid: m.w.nextPID(), ends: make(chan *process, 16), children: map[replica.Rank]*process{}, begun: map[replica.Rank]uint64{}}
	_, life := m.life()
	l.dice = m.w.dice("launcher of "+string(m.name), uint64(life))
	l.ctx, l.cancel = context.WithCancel(m.w.ctx)
	l.runs.Go(l.run)
	return l
}

func (l *launcher) kill() {
	l.cancel()
	l.runs.Wait()
}

var errDone = errors.New("the job is done")

// run serves daemon after daemon, until the job is done.
func (l *launcher) run() {
	for l.ctx.Err() == nil {
		if l.job == (replica.JobID{}) && l.m.w.over() {
			return // it would start another job
		}
		if d := l.m.running(); d != nil && errors.Is(l.serve(d), errDone) {
			return
		}
		select {
		case <-l.ctx.Done():
		case <-time.After(100*time.Millisecond + l.delay()):
		}
	}
}

func (l *launcher) serve(d *daemon) error {
	w := l.m.w
	p := d.connect(l.pid, uint64(l.pid))
	defer p.hangUp()
	hello := wire.RunHello{ABI: wire.RankABI, World: w.world, Capacity: uint32(l.m.capacity), Spare: l.m.spare, Ranks: l.m.prefers, Groups: w.groups, Job: "job", Joined: l.job, ChunkBytes: 4096, Slots: uint32(w.slots), Cadence: w.cadence, DurableEvery: w.durable}
	if w.from != nil {
		hello.From = &wire.From{Origin: *w.from}
	}
	if !d.post(session.RunHello{Peer: p, Header: wire.RankHeader{Type: wire.MRunHello, Request: 1}, RunHello: hello}) {
		return nil
	}
	accepted := false
	for {
		select {
		case <-l.ctx.Done():
			return nil
		case <-d.ctx.Done():
			return nil
		case c := <-l.ends:
			delete(l.children, c.rank)
			l.untold = append(l.untold, wire.RunExited{Rank: c.rank, Status: c.status, PID: uint64(c.pid)})
		case m := <-p.in:
			switch m.head.Type {
			case wire.MRunOK:
				welcome, err := wire.ParseWelcome(m.body)
				if err != nil {
					w.t.Error(err)
				}
				l.job, accepted = welcome.Job, true
				for _, c := range l.children {
					d.post(session.RunRunning{Peer: p, RunExited: wire.RunExited{Rank: c.rank, PID: uint64(c.pid)}})
				}
			case wire.MRunStart:
				s, err := wire.ParseRunStart(m.body)
				if err != nil {
					w.t.Error(err)
				}
				c := l.children[s.Rank]
				if c == nil {
					c = w.startRank(l, s.Rank)
					l.children[s.Rank] = c
				}
				d.post(session.RunRunning{Peer: p, RunExited: wire.RunExited{Rank: c.rank, PID: uint64(c.pid)}})
			case wire.MRunStop:
				s, err := wire.ParseRunStop(m.body)
				if err != nil {
					w.t.Error(err)
				}
				if c := l.children[s.Rank]; c != nil {
					c.end(137)
				}
			case wire.MRunDone:
				r, err := wire.ParseRefused(m.body)
				if err != nil {
					w.t.Error(err)
				}
				w.history.tells(operation{verb: ended, job: l.job, pid: l.pid, at: time.Since(w.began)})
				w.finished(r)
				return errDone
			case wire.MRefused:
				r, _ := wire.ParseRefused(m.body)
				w.t.Errorf("the launcher of node %s is refused: %s", l.m.name, r.Text)
				return errDone
			}
		}
		for accepted && len(l.untold) > 0 {
			if !d.post(session.RunExited{Peer: p, RunExited: l.untold[0]}) {
				return nil
			}
			l.untold = l.untold[1:]
		}
	}
}
