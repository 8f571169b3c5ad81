package consensus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/replica"
)

// StreamLayer carries Raft's messages between voters, over authenticated streams. Implementations let only voters in: that is
// the place that knows the peer's certificate. Close ends Accept; it may be called again.
type StreamLayer interface {
	Dial(ctx context.Context, addr string, name replica.NodeName) (net.Conn, error)
	Accept() (net.Conn, error)
	Close() error
	Addr() net.Addr
}

// streams fits a StreamLayer to raft. It knows all open streams, so that Close ends the goroutines which read them, and can
// be muted: then nothing leaves this node.
type streams struct {
	layer StreamLayer
	life  context.Context
	end   context.CancelFunc

	mu     sync.Mutex // guards the rest
	closed bool
	muted  bool
	open   map[*stream]struct{}
}

var errMuted = errors.New("this node's leader can't write its log and is silent until it can")

func newStreams(l StreamLayer) *streams {
	s := &streams{layer: l, open: make(map[*stream]struct{})}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

type stream struct {
	net.Conn
	of     *streams
	dialed bool
}

func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// A target is what raft takes for an address: the voter's name too, since a stream is dialed to a name. Names hold no '@'.
func target(name replica.NodeName, addr string) raft.ServerAddress {
	return raft.ServerAddress(string(name) + "@" + addr)
}

func (s *streams) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.dial(s.life, to, timeout)
}

func (s *streams) dial(ctx context.Context, to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	name, addr, ok := strings.Cut(string(to), "@")
	if !ok {
		return nil, fmt.Errorf("dial voter at %q: its name is not known", to)
	}
	s.mu.Lock()
	err := s.refuses(true)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := s.layer.Dial(ctx, addr, replica.NodeName(name))
	if err != nil {
		return nil, err
	}
	return s.keep(conn, true)
}

func (s *streams) Accept() (net.Conn, error) {
	for {
		conn, err := s.layer.Accept()
		if err != nil {
			return nil, err
		}
		if kept, err := s.keep(conn, false); err == nil {
			return kept, nil
		} else if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
	}
}

// keep takes a new stream into the book, or closes it.
func (s *streams) keep(conn net.Conn, dialed bool) (net.Conn, error) {
	c := &stream{conn, s, dialed}
	s.mu.Lock()
	err := s.refuses(dialed)
	if err == nil && !dialed && len(s.open) >= acceptBacklog {
		err = errors.New("too many streams")
	}
	if err == nil {
		s.open[c] = struct{}{}
	}
	s.mu.Unlock()
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (s *streams) refuses(dialed bool) error {
	if s.closed {
		return net.ErrClosed
	}
	if s.muted && dialed {
		return errMuted
	}
	return nil
}

// mute ends all streams that this node dialed and refuses new ones until it is undone.
func (s *streams) mute(on bool) {
	s.mu.Lock()
	s.muted = on
	var drop []*stream
	for c := range s.open {
		if on && c.dialed {
			drop = append(drop, c)
		}
	}
	s.mu.Unlock()
	for _, c := range drop {
		c.Close()
	}
}

// Close is called by raft's transport.
func (s *streams) Close() error {
	s.mu.Lock()
	s.closed = true
	drop := make([]*stream, 0, len(s.open))
	for c := range s.open {
		drop = append(drop, c)
	}
	s.mu.Unlock()
	s.end()
	err := s.layer.Close()
	for _, c := range drop {
		c.Close()
	}
	return err
}

func (s *streams) Addr() net.Addr { return s.layer.Addr() }
