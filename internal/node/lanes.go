package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// tcpLanes is how many connections over TCP a fetch opens to each holder. On two cores two move 1.15 times what one does, and four no
// more than two (bench/transfer).
const tcpLanes = 2

// errDeadWay ends a lane before its connection has noticed: another address of the node answers.
var errDeadWay = errors.New("this address of the node does not answer probes, and another does")

// quicLane is a lane over a bulk-class QUIC connection.
type quicLane struct {
	*endpoint.Conn
	d    *daemon
	addr string
}

func (l quicLane) Open(ctx context.Context) (transfer.Stream, error) {
	if l.d.paths.dead(l.Peer(), l.addr) {
		return nil, fmt.Errorf("%s: %w", l.addr, errDeadWay)
	}
	s, err := l.Conn.Open(ctx)
	if err != nil {
		return nil, err // a nil *Stream in an interface would not be nil
	}
	return &quicStream{s, l.d.paths.begin(l.Peer(), l.addr, l.cut)}, nil
}
func (l quicLane) Close() { l.Conn.Close("lane done") }
func (l quicLane) cut()   { l.Conn.Close(errDeadWay.Error()) }

// quicStream is a stream of a lane's, metered.
type quicStream struct {
	*endpoint.Stream
	m *meter
}

func (s *quicStream) Read(b []byte) (int, error) {
	n, err := s.Stream.Read(b)
	s.m.received.Add(uint64(n))
	return n, err
}

func (s *quicStream) Write(b []byte) (int, error) {
	n, err := s.Stream.Write(b)
	s.m.sent.Add(uint64(n))
	return n, err
}

func (s *quicStream) Close() error {
	s.m.end()
	return s.Stream.Close()
}

// tcpLane has one connection over TCP for each stream that is open, and keeps one for the next. Those that are open at once take turns
// among the addresses that answer.
type tcpLane struct {
	d     *daemon
	peer  replica.NodeName
	addrs []string

	mu     sync.Mutex // guards the rest
	turn   int
	idle   *tcpWay
	closed bool
}

// tcpWay is a connection, and the address that it goes to.
type tcpWay struct {
	*endpoint.TCPConn
	addr string
}

func (l *tcpLane) Peer() replica.NodeName { return l.peer }

func (l *tcpLane) dial(ctx context.Context) (*tcpWay, error) {
	l.mu.Lock()
	turn := l.turn
	l.turn++
	l.mu.Unlock()
	addrs, answering := l.d.paths.order(l.peer, l.addrs)
	if answering > 0 {
		turn %= answering
		addrs = slices.Concat(addrs[turn:answering], addrs[:turn], addrs[answering:])
	}
	return tryEach(ctx, addrs, func(ctx context.Context, addr string) (*tcpWay, error) {
		c, err := l.d.endpoint.DialTCP(ctx, addr, l.peer)
		return &tcpWay{c, addr}, err
	})
}

func (l *tcpLane) Open(ctx context.Context) (transfer.Stream, error) {
	l.mu.Lock()
	c := l.idle
	l.idle = nil
	l.mu.Unlock()
	if c != nil && l.d.paths.dead(l.peer, c.addr) {
		_ = c.Close()
		c = nil
	}
	if c == nil {
		var err error
		if c, err = l.dial(ctx); err != nil {
			return nil, err
		}
	}
	return &tcpStream{c, l, l.d.paths.begin(l.peer, c.addr, func() { _ = c.Close() })}, nil
}

func (l *tcpLane) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.idle != nil {
		_ = l.idle.Close() // nothing is lost with it
		l.idle = nil
	}
}

// tcpStream is a connection of a lane's, in use.
type tcpStream struct {
	*tcpWay
	lane *tcpLane
	m    *meter
}

var _ transfer.Keeper = (*tcpStream)(nil)

func (s *tcpStream) Read(b []byte) (int, error) {
	n, err := s.tcpWay.Read(b)
	s.m.received.Add(uint64(n))
	return n, err
}

func (s *tcpStream) Write(b []byte) (int, error) {
	n, err := s.tcpWay.Write(b)
	s.m.sent.Add(uint64(n))
	return n, err
}

func (s *tcpStream) Close() error {
	s.m.end()
	return s.tcpWay.Close()
}

func (s *tcpStream) Keep() {
	s.m.end()
	s.lane.mu.Lock()
	defer s.lane.mu.Unlock()
	if s.lane.closed || s.lane.idle != nil {
		_ = s.tcpWay.Close()
		return
	}
	s.lane.idle = s.tcpWay
}

// dialLane opens a lane for parts to a node at these addresses.
func (d *daemon) dialLane(ctx context.Context, addrs []string, node replica.NodeName, over transfer.Transport) (transfer.Lane, error) {
	if over == transfer.TCP {
		l := &tcpLane{d: d, peer: node, addrs: addrs}
		c, err := l.dial(ctx)
		if err != nil {
			return nil, err
		}
		l.idle = c
		return l, nil
	}
	addrs, _ = d.paths.order(node, addrs)
	return tryEach(ctx, addrs, func(ctx context.Context, addr string) (transfer.Lane, error) {
		c, err := d.endpoint.Dial(ctx, addr, node, endpoint.Bulk)
		if err != nil {
			return nil, err
		}
		return quicLane{c, d, addr}, nil
	})
}

// waysOf are the addresses of a node's endpoint, those first that answer.
func (d *daemon) waysOf(n replica.Node) []string {
	ways, _ := d.paths.order(n.Name, n.Ways())
	return ways
}

// serveBulk serves the streams of a bulk-class QUIC connection.
func serveBulk(ctx context.Context, conn *endpoint.Conn, st transfer.Store, gate *transfer.Gate, m *meter) {
	var serves sync.WaitGroup
	defer serves.Wait()
	for {
		s, err := conn.Accept(ctx)
		if err != nil {
			return
		}
		serves.Go(func() {
			defer s.Close()
			transfer.Serve(ctx, conn.Peer(), servedConn{s, m}, st, gate) //nolint:errcheck // the peer sees it, and says so where it matters
		})
	}
}
