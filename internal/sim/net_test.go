package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// network is what lies between the nodes: who hears whom, and how many bytes a second a node sends and receives.
type network struct {
	names []replica.NodeName
	pace  float64 // bytes a second, of a node each way; 0: as many as there are

	mu   sync.Mutex // guards the rest
	sent uint64     // bytes between all of them, over paced connections
	cuts map[way]cut
	open map[way][]net.Conn    // by who opened them
	busy map[port]time.Time    // until when
	mend map[way]chan struct{} // closed when a cut ends
}

// way is from one node to another.
type way struct{ from, to replica.NodeName }

func (w way) back() way { return way{w.to, w.from} }

// port is a node's side of the network.
type port struct {
	node replica.NodeName
	in   bool
}

// cut says how packets of one way are lost.
type cut uint8

const (
	whole  cut = iota
	told       // connections end at once, and new ones are refused
	silent     // nobody is told: connections hang until somebody gives them up
)

// idle is how long a connection that brings nothing through is kept, as QUIC's idle timeout does.
const idle = 5 * time.Second

func newNetwork(names []replica.NodeName, pace float64) *network {
	return &network{names: names, pace: pace, cuts: map[way]cut{}, open: map[way][]net.Conn{}, busy: map[port]time.Time{}, mend: map[way]chan struct{}{}}
}

// cut tells whether one of two nodes does not hear the other: nothing that wants an answer works between them.
func (n *network) cut(a, b replica.NodeName) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cutLocked(a, b)
}

func (n *network) cutLocked(a, b replica.NodeName) bool {
	return n.cuts[way{a, b}] != whole || n.cuts[way{b, a}] != whole
}

// torn tells whether any two nodes do not hear each other.
func (n *network) torn() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.cuts) > 0
}

// gossips tells whether one node hears of another, by itself or by a third.
func (n *network) gossips(a, b replica.NodeName) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.names, func(c replica.NodeName) bool { return !n.cutLocked(a, c) && !n.cutLocked(c, b) })
}

// reaches tells whether a node hears any other: the collectives of its ranks go over the same wires.
func (n *network) reaches(a replica.NodeName) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.names, func(c replica.NodeName) bool { return c != a && !n.cutLocked(a, c) })
}

// sever keeps two nodes from hearing each other, or with oneWay the second from hearing the first; join ends that.
func (n *network) sever(a, b replica.NodeName, oneWay bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if oneWay {
		n.cuts[way{a, b}] = silent
		n.mend[way{a, b}] = make(chan struct{})
		return
	}
	n.cuts[way{a, b}] = told
	for _, w := range []way{{a, b}, {b, a}} {
		for _, c := range n.open[w] {
			c.Close()
		}
		delete(n.open, w)
	}
}

func (n *network) join(a, b replica.NodeName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range []way{{a, b}, {b, a}} {
		delete(n.cuts, w)
		if mend := n.mend[w]; mend != nil {
			close(mend)
			delete(n.mend, w)
		}
	}
}

// hangUp ends what two nodes have open; they may connect anew.
func (n *network) hangUp(a, b replica.NodeName) {
	n.sever(a, b, false)
	n.join(a, b)
}

// track has a connection end when its pair is cut.
func (n *network) track(w way, c net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open[w] = append(n.open[w], c)
}

// muted is closed when packets of a way get through again; nil: they do.
func (n *network) muted(w way) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mend[w]
}

// reserve takes the time that bytes need on both ports of a way, after what they have been given already, and says when they are through.
// Transfers that overlap share a port that way, a write at a time.
func (n *network) reserve(w way, bytes int) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if n.pace == 0 {
		return now
	}
	n.sent += uint64(bytes)
	long := time.Duration(float64(bytes) / n.pace * float64(time.Second))
	through := now
	for _, p := range []port{{w.from, false}, {w.to, true}} {
		n.busy[p] = later(n.busy[p], now).Add(long)
		through = later(through, n.busy[p])
	}
	return through
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// conn is one end of a connection between two nodes. What it writes takes its time.
type conn struct {
	net.Conn
	n      *network
	way    way
	paced  bool
	once   sync.Once
	closed chan struct{}

	mu sync.Mutex // guards by
	by time.Time  // the deadline of writes
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *conn) SetDeadline(t time.Time) error {
	c.until(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.until(t)
	return c.Conn.SetWriteDeadline(t)
}

func (c *conn) until(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by = t
}

func (c *conn) Write(b []byte) (int, error) {
	if mended := c.n.muted(c.way); mended != nil {
		if err := c.waits(mended, idle); err != nil {
			if !os.IsTimeout(err) {
				return 0, err
			}
			c.Close()
			return 0, fmt.Errorf("write to node %s: %w", c.way.to, err)
		}
	}
	if c.paced {
		if long := time.Until(c.n.reserve(c.way, len(b))); long > 0 {
			if err := c.waits(nil, long); err != nil && !(os.IsTimeout(err) && !c.late()) {
				return 0, err
			}
		}
	}
	return c.Conn.Write(b)
}

// waits lets at most so much time pass, until what it is given is closed; otherwise it says what ended it.
func (c *conn) waits(until <-chan struct{}, most time.Duration) error {
	c.mu.Lock()
	if !c.by.IsZero() {
		most = min(most, time.Until(c.by))
	}
	c.mu.Unlock()
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-until:
		return nil
	case <-c.closed:
		return io.ErrClosedPipe
	case <-t.C:
		return os.ErrDeadlineExceeded
	}
}

func (c *conn) late() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.by.IsZero() && !time.Now().Before(c.by)
}

// pipe connects two daemons.
func (d *daemon) pipe(ctx context.Context, to replica.NodeName, paced bool) (near, far net.Conn, there *daemon, err error) {
	m, n := d.m.w.machines[to], d.m.w.net
	there = m.running()
	if up, _ := m.life(); !up || n.muted(way{d.m.name, to}) != nil || n.muted(way{to, d.m.name}) != nil {
		select { // packets go nowhere
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if there == nil || n.cut(d.m.name, to) {
		return nil, nil, nil, fmt.Errorf("node %s: %w", to, errUnreachable)
	}
	a, b := net.Pipe()
	w := way{d.m.name, to}
	near = &conn{Conn: a, n: n, way: w, paced: paced, closed: make(chan struct{})}
	far = &conn{Conn: b, n: n, way: w.back(), paced: paced, closed: make(chan struct{})}
	d.track(near)
	there.track(far)
	n.track(w, near)
	return near, far, there, nil
}
