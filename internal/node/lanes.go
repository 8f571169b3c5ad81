package node

import (
	"context"
	"sync"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// tcpLanes is how many connections over TCP a fetch opens to each holder. On two cores two move 1.15 times what one does, and four no
// more than two (bench/transfer).
const tcpLanes = 2

// quicLane is a lane over a bulk-class QUIC connection.
type quicLane struct{ *endpoint.Conn }

func (l quicLane) Open(ctx context.Context) (transfer.Stream, error) {
	s, err := l.Conn.Open(ctx)
	if err != nil {
		return nil, err // a nil *Stream in an interface would not be nil
	}
	return s, nil
}
func (l quicLane) Close() { l.Conn.Close("lane done") }

// tcpLane has one connection over TCP for each stream that is open, and keeps one for the next.
type tcpLane struct {
	dial func(context.Context) (*endpoint.TCPConn, error)
	peer replica.NodeName

	mu     sync.Mutex // guards the rest
	idle   *endpoint.TCPConn
	closed bool
}

func (l *tcpLane) Peer() replica.NodeName { return l.peer }

func (l *tcpLane) Open(ctx context.Context) (transfer.Stream, error) {
	l.mu.Lock()
	c := l.idle
	l.idle = nil
	l.mu.Unlock()
	if c == nil {
		var err error
		if c, err = l.dial(ctx); err != nil {
			return nil, err
		}
	}
	return &tcpStream{c, l}, nil
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
	*endpoint.TCPConn
	lane *tcpLane
}

var _ transfer.Keeper = (*tcpStream)(nil)

func (s *tcpStream) Keep() {
	s.lane.mu.Lock()
	defer s.lane.mu.Unlock()
	if s.lane.closed || s.lane.idle != nil {
		_ = s.Close()
		return
	}
	s.lane.idle = s.TCPConn
}

// dialLane opens a lane to a node for parts.
func (d *daemon) dialLane(ctx context.Context, addr string, node replica.NodeName, over transfer.Transport) (transfer.Lane, error) {
	if over == transfer.TCP {
		l := &tcpLane{peer: node, dial: func(ctx context.Context) (*endpoint.TCPConn, error) { return d.endpoint.DialTCP(ctx, addr, node) }}
		c, err := l.dial(ctx)
		if err != nil {
			return nil, err
		}
		l.idle = c
		return l, nil
	}
	c, err := d.endpoint.Dial(ctx, addr, node, endpoint.Bulk)
	if err != nil {
		return nil, err
	}
	return quicLane{c}, nil
}

// serveBulk serves the streams of a bulk-class QUIC connection.
func serveBulk(ctx context.Context, conn *endpoint.Conn, st transfer.Store, gate *transfer.Gate) {
	var serves sync.WaitGroup
	defer serves.Wait()
	for {
		s, err := conn.Accept(ctx)
		if err != nil {
			return
		}
		serves.Go(func() {
			defer s.Close()
			transfer.Serve(ctx, conn.Peer(), s, st, gate) //nolint:errcheck // the peer sees it, and says so where it matters
		})
	}
}
