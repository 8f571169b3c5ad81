package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/quic-go/quic-go"

	"github.com/replicad/replicad/replica"
)

// Conn is a connection of one class to one node. Both sides may open streams on it.
type Conn struct {
	ep      *Endpoint
	q       *quic.Conn
	peer    replica.NodeName
	class   Class
	inbound bool
}

// Peer is the node's name in its verified certificate.
func (c *Conn) Peer() replica.NodeName { return c.peer }

// Class is the connection's class.
func (c *Conn) Class() Class { return c.class }

// RemoteAddr is the peer's UDP address.
func (c *Conn) RemoteAddr() net.Addr { return c.q.RemoteAddr() }

// Done is closed when the connection has ended, for whatever reason: Err tells it.
func (c *Conn) Done() <-chan struct{} { return c.q.Context().Done() }

// Err is nil while the connection lives; then why it ended.
func (c *Conn) Err() error { return explain(context.Cause(c.q.Context())) }

// Open opens a stream; it waits while the peer has maxIncomingStreams of ours open.
func (c *Conn) Open(ctx context.Context) (*Stream, error) {
	q, err := c.q.OpenStreamSync(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s stream to node %q: %w", c.class, c.peer, explain(err))
	}
	return newStream(c, q), nil
}

// Accept waits for a stream that the peer opens.
func (c *Conn) Accept(ctx context.Context) (*Stream, error) {
	q, err := c.q.AcceptStream(ctx)
	if err != nil {
		return nil, fmt.Errorf("accept %s stream from node %q: %w", c.class, c.peer, explain(err))
	}
	return newStream(c, q), nil
}

// Close ends the connection and all its streams; the peer is told the reason.
func (c *Conn) Close(reason string) { c.Refuse(CodeDone, reason) }

// Refuse is Close with a code.
func (c *Conn) Refuse(code Code, reason string) {
	_ = c.q.CloseWithError(quic.ApplicationErrorCode(code), reason[:min(len(reason), maxReason)])
}

// Dial connects to the node named want at addr; anyone else there is an error. The connection is the caller's to close.
func (e *Endpoint) Dial(ctx context.Context, addr string, want replica.NodeName, c Class) (*Conn, error) {
	fail := func(err error) (*Conn, error) {
		return nil, fmt.Errorf("connect to node %q at %s (%s): %w", want, addr, c, explain(err))
	}
	udp, err := resolve(ctx, addr)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, fmt.Errorf("%w within %v", ErrSilent, handshakeTimeout))
	defer cancel()
	tr := e.tr
	if c == Raft {
		tr = e.own
	}
	q, err := tr.Dial(ctx, udp, e.cfg.ClientTLS(want, string(c)), e.settings())
	if err != nil {
		return fail(err)
	}
	_, peer, err := e.cfg.PeerName(q.ConnectionState().TLS)
	if err == nil && want != "" && peer != want {
		err = fmt.Errorf("the server is node %q", peer)
	}
	if err != nil {
		_ = q.CloseWithError(quic.ApplicationErrorCode(CodeRefused), "not the node wanted")
		return fail(err)
	}
	conn := &Conn{ep: e, q: q, peer: peer, class: c}
	if err := e.add(conn); err != nil {
		refusal := &CloseError{Code: CodeShutdown, Reason: err.Error()}
		if errors.As(err, &refusal) {
			err = fmt.Errorf("%s: %w", refusal.Reason, ErrIdentity)
		}
		conn.Refuse(refusal.Code, refusal.Reason)
		return fail(err)
	}
	return conn, nil
}

// resolve turns host:port into an address; a host name is looked up under ctx.
func resolve(ctx context.Context, addr string) (*net.UDPAddr, error) {
	if ap, err := netip.ParseAddrPort(addr); err == nil {
		return net.UDPAddrFromAddrPort(ap), nil
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("%w: want host:port", err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: want a number up to 65535", service)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(ips[0].Unmap(), uint16(port))), nil
}
