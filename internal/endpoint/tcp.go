package endpoint

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

// TCPConn is a connection for bulk data over TLS 1.3 and TCP, or over TCP alone where both ends' configurations have Plaintext, on the node's port number: a kernel moves TCP for a tenth of what a
// QUIC stack in user space costs. It is one stream, which may serve one exchange after another. What it does not have beside QUIC:
// several streams, and a reason when it ends.
//
// One goroutine may read while another writes. The peer's name comes from its verified certificate.
type TCPConn struct {
	*tls.Conn
	ep      *Endpoint
	records *recordConn
	plain   bool // records are not read any more: the bytes come as they are
	peer    replica.NodeName
	inbound bool
	once    sync.Once // forgets it in the endpoint's book
	closed  error
}

var _ net.Conn = (*TCPConn)(nil)

// Peer is the node's name in its verified certificate.
func (c *TCPConn) Peer() replica.NodeName { return c.peer }

func (c *TCPConn) Read(b []byte) (n int, err error) {
	if c.plain {
		n, err = c.records.Read(b)
	} else {
		n, err = c.Conn.Read(b)
	}
	c.ep.received.Add(uint64(n))
	return n, err
}

// Write hands the records of b to the kernel together: crypto/tls itself makes a system call for each 16 KiB.
func (c *TCPConn) Write(b []byte) (int, error) {
	if c.plain {
		n, err := c.records.Conn.Write(b)
		c.ep.sent.Add(uint64(n))
		return n, err
	}
	c.records.hold()
	n, err := c.Conn.Write(b)
	if ferr := c.records.flush(); err == nil {
		err = ferr
	}
	c.ep.sent.Add(uint64(n))
	return n, err
}

// Close ends the connection at once. It does not wait for the peer as [tls.Conn.Close] does, which may take seconds where the peer
// does not read: no exchange relies on an end that was said.
func (c *TCPConn) Close() error {
	c.once.Do(func() {
		c.closed = c.records.Close()
		c.ep.forgetTCP(c)
	})
	return c.closed
}

// linger ends a served connection so that the peer can read what was said last: a socket closed with bytes unread resets the
// connection, and the kernel at the other end drops the refusal that explains it.
func (c *TCPConn) linger() {
	_ = c.SetDeadline(time.Now().Add(lingerFor)) // a connection that fails here needs no manners
	if c.plain || c.CloseWrite() == nil {
		if tcp, ok := c.records.Conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		_, _ = io.CopyN(io.Discard, c, lingerBytes)
	}
	_ = c.Close()
}

// recordConn is what crypto/tls reads its records from and writes them to: in large pieces.
type recordConn struct {
	net.Conn
	r *bufio.Reader

	// exact keeps crypto/tls from reading beyond a record: plain text may follow. Until the handshake has told what does.
	exact bool
	rest  int // of the present record
	// unknown is how many bytes more may come before it is known who sends them; once it is, r has a larger buffer.
	unknown int

	mu   sync.Mutex // crypto/tls may answer a KeyUpdate from the goroutine that reads
	held bool       // a Write of TCPConn's collects records
	w    []byte
}

func newRecordConn(raw net.Conn) *recordConn {
	tune(raw)
	c := &recordConn{Conn: raw, exact: true, unknown: shakingBytes}
	c.r = bufio.NewReader(unknownReader{c})
	return c
}

// unknownReader reads what somebody sends of whom nothing is known.
type unknownReader struct{ c *recordConn }

func (u unknownReader) Read(b []byte) (int, error) {
	if u.c.unknown == 0 {
		return 0, fmt.Errorf("a handshake of more than %d bytes", shakingBytes)
	}
	n, err := u.c.Conn.Read(b[:min(len(b), u.c.unknown)])
	u.c.unknown -= n
	return n, err
}

// known says that the handshake has told who is at the other end. What was read ahead comes first.
func (c *recordConn) known() {
	ahead, _ := c.r.Peek(c.r.Buffered())
	c.r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(ahead)), c.Conn), recordBuffer)
}

func (c *recordConn) Read(b []byte) (int, error) {
	if !c.exact {
		return c.r.Read(b)
	}
	if c.rest == 0 {
		head, err := c.r.Peek(recordHeader)
		if err != nil && len(head) == 0 {
			return 0, err
		}
		c.rest = len(head) // what is no record is crypto/tls's to refuse
		if len(head) == recordHeader {
			c.rest += int(binary.BigEndian.Uint16(head[3:]))
		}
	}
	n, err := c.r.Read(b[:min(len(b), c.rest)])
	c.rest -= n
	return n, err
}

// recordHeader is type, version and length of a record (RFC 8446, section 5.1).
const recordHeader = 5

func (c *recordConn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

func (c *recordConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		return c.Conn.Write(b)
	}
	if len(c.w) > 0 && len(c.w)+len(b) > recordBuffer {
		if err := c.flushLocked(); err != nil {
			return 0, err
		}
	}
	c.w = append(c.w, b...)
	return len(b), nil
}

func (c *recordConn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	return c.flushLocked()
}

func (c *recordConn) flushLocked() error {
	if len(c.w) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.w)
	c.w = c.w[:0]
	return err
}

// listenTCP binds the port number that UDP got. A node without it works, by QUIC alone.
func listenTCP(udp *net.UDPAddr, logf func(string, ...any)) net.Listener {
	config := net.ListenConfig{KeepAliveConfig: tcpKeepAlive}
	ln, err := config.Listen(context.Background(), "tcp", udp.String())
	if err != nil {
		logf("TCP %s can't be bound: state moves to and from this node by QUIC alone, several times slower: free the port, or configure another address: %v", udp, err)
		return nil
	}
	return ln
}

// HandleTCP registers what serves bulk connections over TCP; before Run. fn owns the connection: it is closed when fn returns, and
// fn's context ends with Run's.
func (e *Endpoint) HandleTCP(fn func(ctx context.Context, conn *TCPConn)) { e.serveTCP = fn }

// acceptTCP accepts bulk connections until ctx ends. A stranger holds a slot for as long as a handshake may take, and nothing else.
func (e *Endpoint) acceptTCP(ctx context.Context) {
	if e.tcp == nil || e.serveTCP == nil {
		return
	}
	defer context.AfterFunc(ctx, func() { e.tcp.Close() })()
	config := e.cfg.ServerTLS.Clone()
	config.NextProtos = e.cfg.bulkProtocols()
	config.DynamicRecordSizingDisabled = true
	var conns sync.WaitGroup
	defer conns.Wait()
	var shaking atomic.Int32
	for {
		raw, err := e.tcp.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			e.cfg.Logf("accept on TCP %s: %v", e.tcp.Addr(), err) // descriptors have run out, mostly
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		if shaking.Load() >= maxShaking {
			_ = raw.Close()
			continue
		}
		shaking.Add(1)
		conns.Go(func() {
			conn, err := e.admitTCP(ctx, raw, config)
			shaking.Add(-1)
			if err != nil {
				return
			}
			defer conn.linger()
			e.serveTCP(ctx, conn)
		})
	}
}

// admitTCP shakes hands with a client, names it, and notes it in the book; or closes the connection.
func (e *Endpoint) admitTCP(ctx context.Context, raw net.Conn, config *tls.Config) (*TCPConn, error) {
	within, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	records := newRecordConn(raw)
	secured := tls.Server(records, config)
	err := secured.HandshakeContext(within)
	if err != nil {
		e.refusals.tcpHandshake(raw.RemoteAddr(), err)
		_ = raw.Close()
		return nil, err
	}
	records.known()
	state := secured.ConnectionState()
	conn := &TCPConn{Conn: secured, ep: e, records: records, inbound: true}
	if !slices.Contains(config.NextProtos, state.NegotiatedProtocol) {
		err = fmt.Errorf("protocol %q, want %q", state.NegotiatedProtocol, Bulk)
	}
	if err == nil {
		_, conn.peer, err = e.cfg.PeerName(state)
	}
	if err == nil {
		err = e.enterTCP(conn)
	}
	if err == nil && state.NegotiatedProtocol == plainBulk {
		err = conn.unveil(within, true)
	}
	records.exact = false
	if err != nil {
		_ = conn.Close()
		_ = raw.Close()
		e.refusals.log(raw.RemoteAddr(), "refused a TCP connection of %q at %s: %v", conn.peer, raw.RemoteAddr(), err)
		return nil, err
	}
	return conn, nil
}

// enterTCP notes a connection in the book, which Close and Recheck go through, unless a limit or a revocation forbids it.
func (e *Endpoint) enterTCP(c *TCPConn) error {
	e.mu.Lock()
	switch {
	case e.closed:
		e.mu.Unlock()
		return ErrClosed
	case c.inbound && len(e.tcpConns) >= maxTCPConns:
		e.mu.Unlock()
		return fmt.Errorf("this node has %d TCP connections, its limit", maxTCPConns)
	case c.inbound && e.tcpInbound[c.peer] >= maxTCPPerPeer:
		e.mu.Unlock()
		return fmt.Errorf("node %q has %d TCP connections here, its limit", c.peer, maxTCPPerPeer)
	}
	if c.inbound {
		e.tcpInbound[c.peer]++
	}
	e.tcpConns[c] = struct{}{}
	e.mu.Unlock()
	if err := e.cfg.Revoked(c.ConnectionState()); err != nil { // asked once the book has it, as add does
		e.cfg.Refused(c.peer, err.Error())
		_ = c.Close()
		return err
	}
	return nil
}

func (e *Endpoint) forgetTCP(c *TCPConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, there := e.tcpConns[c]; !there {
		return
	}
	delete(e.tcpConns, c)
	if c.inbound {
		if e.tcpInbound[c.peer]--; e.tcpInbound[c.peer] == 0 {
			delete(e.tcpInbound, c.peer)
		}
	}
}

// closeTCP closes those connections over TCP that which names.
func (e *Endpoint) closeTCP(which func(*TCPConn) bool) {
	e.mu.Lock()
	conns := make([]*TCPConn, 0, len(e.tcpConns))
	for c := range e.tcpConns {
		conns = append(conns, c)
	}
	e.mu.Unlock()
	for _, c := range conns {
		if which(c) {
			_ = c.Close()
		}
	}
}

// DialTCP connects to the node named want at addr for bulk data; anyone else there is an error. The connection is the caller's to
// close. A server that refuses this node's certificate says so with the first read.
func (e *Endpoint) DialTCP(ctx context.Context, addr string, want replica.NodeName) (*TCPConn, error) {
	fail := func(err error) (*TCPConn, error) {
		return nil, fmt.Errorf("connect to node %q at %s (TCP): %w", want, addr, err)
	}
	at, err := resolve(ctx, addr)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	dialer := net.Dialer{KeepAliveConfig: tcpKeepAlive}
	raw, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(at.IP.String(), strconv.Itoa(at.Port)))
	if err != nil {
		return fail(err)
	}
	config := e.cfg.ClientTLS(want, e.cfg.bulkProtocols()...)
	config.DynamicRecordSizingDisabled = true
	records := newRecordConn(raw)
	conn := &TCPConn{Conn: tls.Client(records, config), ep: e, records: records}
	if err = conn.HandshakeContext(ctx); err == nil {
		records.known()
		_, conn.peer, err = e.cfg.PeerName(conn.ConnectionState())
	}
	if err == nil && want != "" && conn.peer != want {
		err = fmt.Errorf("the server is node %q", conn.peer)
	}
	if err == nil {
		err = e.enterTCP(conn)
	}
	if err == nil && conn.ConnectionState().NegotiatedProtocol == plainBulk {
		err = conn.unveil(ctx, false)
	}
	records.exact = false
	if err != nil {
		_ = conn.Close()
		_ = raw.Close()
		return fail(err)
	}
	return conn, nil
}

// unveil ends encryption: the server says one byte in a record, and the client nothing before that. So a client whose certificate is refused
// reads why.
func (c *TCPConn) unveil(ctx context.Context, server bool) (err error) {
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	var veil [1]byte
	if server {
		_, err = c.Conn.Write(veil[:])
	} else {
		_, err = io.ReadFull(c.Conn, veil[:])
	}
	if err != nil {
		return fmt.Errorf("end of encryption: %w", err)
	}
	c.plain = true
	return nil
}

// tcpKeepAlive finds a peer that is gone without a word: 1 s of silence, then three probes.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}

// tune lets the kernel give up on what was sent and is not acknowledged, as QUIC's idle timeout does.
func tune(raw net.Conn) {
	tcp, ok := raw.(*net.TCPConn)
	if !ok {
		return
	}
	if rc, err := tcp.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { // a kernel without it has its own, longer, patience
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		})
	}
}
