package netfault

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

const (
	maxStreams  = 512 // under way at once at a node; more are refused
	pieceBytes  = 32 << 10
	maxPieces   = 16 // of a stream's direction
	dialTimeout = 5 * time.Second
)

// accept takes the streams that other nodes open to one.
func (n *Network) accept(to *host, l *net.TCPListener) {
	slots := make(chan struct{}, maxStreams)
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor is left: it tries again when the next one comes
			continue
		}
		p := n.pathFrom(c.RemoteAddr(), to)
		if p == nil {
			_ = c.Close() // a program of no node may ask whether the host is up: it is, also while its daemon stands still
			continue
		}
		if len(slots) == cap(slots) || !n.keep(c) {
			reset(c)
			continue
		}
		slots <- struct{}{} // this goroutine alone puts them in
		n.runs.Go(func() {
			defer func() { <-slots }()
			defer n.drop(c)
			n.serve(p, c)
		})
	}
}

// pathFrom is nil for a sender that is no other node.
func (n *Network) pathFrom(addr net.Addr, to *host) *path {
	ip := addr.(*net.TCPAddr).AddrPort().Addr().Unmap()
	for pair, p := range n.paths {
		if pair[1] == to.name && p.from.ip == ip {
			return p
		}
	}
	return nil
}

// serve connects a stream and carries both directions until both have ended, or either has failed.
func (n *Network) serve(p *path, client *net.TCPConn) {
	ctx, cancel := context.WithCancel(n.life)
	defer cancel()
	there := newPipe(p, client)
	n.runs.Go(func() { there.read(ctx) })
	// The client must not be closed before its reader has ended: the reader's loop is this stream's.
	defer func() { cancel(); _ = client.SetReadDeadline(time.Unix(1, 0)); <-there.ended }()
	d := net.Dialer{Timeout: dialTimeout, LocalAddr: &net.TCPAddr{IP: p.from.gossip.addr.Addr().AsSlice()}}
	c, err := d.DialContext(ctx, "tcp4", p.to.gossip.listen.String())
	if err != nil {
		reset(client)
		return
	}
	server := c.(*net.TCPConn)
	if !n.keep(server) {
		return
	}
	defer n.drop(server)
	back := newPipe(p.back, server)
	n.runs.Go(func() { back.read(ctx) })
	defer func() { cancel(); _ = server.SetReadDeadline(time.Unix(1, 0)); <-back.ended }()
	results := make(chan error, 2)
	n.runs.Go(func() { results <- there.write(ctx, n, server) })
	n.runs.Go(func() { results <- back.write(ctx, n, client) })
	for range 2 {
		if err := <-results; err != nil {
			reset(client)
			reset(server)
			cancel()
		}
	}
}

// pipe is one direction of a stream.
type pipe struct {
	path   *path
	src    *net.TCPConn
	pieces chan piece
	ended  chan struct{} // closed when src gives no more
	err    error         // why, once ended is closed
}

type piece struct {
	data []byte
	due  time.Time
}

func newPipe(p *path, src *net.TCPConn) *pipe {
	return &pipe{path: p, src: src, pieces: make(chan piece, maxPieces), ended: make(chan struct{})}
}

// read takes pieces from src until its end.
func (p *pipe) read(ctx context.Context) {
	defer close(p.ended)
	defer close(p.pieces)
	for {
		data := make([]byte, pieceBytes)
		size, err := p.src.Read(data)
		if size > 0 {
			lost, wait := p.path.draw(p.path.rule.Load())
			if lost {
				wait += resendGap
			}
			select {
			case p.pieces <- piece{data[:size], time.Now().Add(wait)}:
			case <-ctx.Done():
				p.err = ctx.Err()
				return
			}
		}
		if err != nil {
			p.err = err
			return
		}
	}
}

// write brings the pieces to dst in their order, each when it is due and the path is not cut; and then the end.
func (p *pipe) write(ctx context.Context, n *Network, dst *net.TCPConn) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next, ok := <-p.pieces:
			if !ok {
				if !n.awaitPath(ctx, p.path) {
					return ctx.Err()
				}
				if errors.Is(p.err, io.EOF) {
					return dst.CloseWrite()
				}
				return p.err
			}
			if wait := time.Until(next.due); wait > 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(wait):
				}
			}
			if !n.awaitPath(ctx, p.path) {
				return ctx.Err()
			}
			if _, err := dst.Write(next.data); err != nil {
				return err
			}
			p.path.passed(len(next.data))
		}
	}
}

// awaitPath waits until a path is not cut. False: ctx has ended.
func (n *Network) awaitPath(ctx context.Context, p *path) bool {
	for {
		changed := n.changes()
		if !p.rule.Load().cut {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

// reset makes the end of a connection a failure at its other end.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close() // the second to close it changes nothing
}
