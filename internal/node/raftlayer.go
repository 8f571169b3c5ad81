package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/replica"
)

// raftLayer carries Raft between voters over raft-class connections: one connection to each voter by each address in use, a stream for each of
// raft's. Only voters get in: those of the configuration, and those that Raft itself names.
type raftLayer struct {
	endpoint *endpoint.Endpoint
	paths    *paths
	addr     advertised
	voters   []replica.NodeName
	streams  chan net.Conn
	closed   chan struct{}
	once     sync.Once
	cons     atomic.Pointer[consensus.Node] // nil until it has started

	mu    sync.Mutex // guards both; not held across a dial
	conns map[voterAddr]*endpoint.Conn
	open  map[replica.NodeName]int // accepted streams, by voter
}

// maxRaftStreams is how many streams one voter may have open here: a few of each kind of request, and those that it left behind when it
// started anew. All voters' together fit what consensus takes in, so none shuts out another.
const maxRaftStreams = 12

var errLayerClosed = errors.New("raft layer closed")

func newRaftLayer(e *endpoint.Endpoint, p *paths, addr string, voters []replica.NodeName) *raftLayer {
	return &raftLayer{endpoint: e, paths: p, addr: advertised(addr), voters: voters, streams: make(chan net.Conn), closed: make(chan struct{}), conns: map[voterAddr]*endpoint.Conn{}, open: map[replica.NodeName]int{}}
}

// votes tells whether a node is a voter as far as this one knows.
func (l *raftLayer) votes(n replica.NodeName) bool {
	if slices.Contains(l.voters, n) {
		return true
	}
	cons := l.cons.Load()
	return cons != nil && slices.ContainsFunc(cons.Voters(), func(v consensus.Voter) bool { return v.Name == n })
}

// accept serves one raft-class connection.
func (l *raftLayer) accept(ctx context.Context, c *endpoint.Conn) {
	if !l.votes(c.Peer()) {
		c.Close(fmt.Sprintf("node %s is no voter: raft is for voters", c.Peer()))
		return
	}
	for {
		s, err := c.Accept(ctx)
		if err != nil {
			return
		}
		counted, ok := l.count(c.Peer(), s)
		if !ok {
			s.Abort(endpoint.CodeTooMany)
			continue
		}
		select {
		case l.streams <- counted:
		case <-l.closed:
			counted.Close()
			return
		case <-ctx.Done():
			counted.Close()
			return
		}
	}
}

// raftStream counts as its voter's until it is closed.
type raftStream struct {
	net.Conn
	leave func()
}

func (s *raftStream) Close() error {
	s.leave()
	return s.Conn.Close()
}

// count takes a stream into the book; false: its voter has too many.
func (l *raftLayer) count(peer replica.NodeName, s net.Conn) (net.Conn, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[peer] >= maxRaftStreams {
		return nil, false
	}
	l.open[peer]++
	return &raftStream{s, sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.open[peer]--; l.open[peer] == 0 {
			delete(l.open, peer)
		}
	})}, true
}

func (l *raftLayer) Accept() (net.Conn, error) {
	select {
	case s := <-l.streams:
		return s, nil
	case <-l.closed:
		return nil, errLayerClosed
	}
}

// Dial opens a stream to a voter at addr, or at another of its addresses where that one is silent.
func (l *raftLayer) Dial(ctx context.Context, addr string, name replica.NodeName) (net.Conn, error) {
	return tryEach(ctx, l.paths.ways(name, addr), func(ctx context.Context, way string) (net.Conn, error) { return l.dial(ctx, way, name) })
}

func (l *raftLayer) dial(ctx context.Context, addr string, name replica.NodeName) (net.Conn, error) {
	to := voterAddr{name, addr} // who is asked for at another address is not answered by a connection to the former
	l.mu.Lock()
	c := l.conns[to]
	l.mu.Unlock()
	if c != nil {
		select {
		case <-c.Done():
		default:
			if s, err := c.Open(ctx); err == nil {
				return s, nil
			}
		}
	}
	c, err := l.endpoint.Dial(ctx, addr, name, endpoint.Raft)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	if old := l.conns[to]; old != nil {
		select {
		case <-old.Done():
		default: // another stream's dial was first: both live until they end
		}
	}
	l.conns[to] = c
	l.mu.Unlock()
	s, err := c.Open(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (l *raftLayer) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr is the one that the other voters dial, which need not be the one that is bound: raft tells them where the leader is.
func (l *raftLayer) Addr() net.Addr { return l.addr }

// advertised is an address as the configuration has it.
type advertised string

func (advertised) Network() string  { return "udp" }
func (a advertised) String() string { return string(a) }
