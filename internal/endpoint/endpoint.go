package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/replicad/replicad/replica"
)

// Class is what a connection is for: its ALPN name.
type Class string

// The classes.
const (
	Raft    Class = "replicad-raft/1"
	Control Class = "replicad-control/1"
	Bulk    Class = "replicad-bulk/1"

	// plainBulk is Bulk over TCP, in plain text once both ends have shown their certificates.
	plainBulk = "replicad-bulk-plain/1"
)

// Config is an Endpoint's; every field but Logf, Refused and Revoked is required.
type Config struct {
	Addr      string      // host:port to bind, UDP
	ServerTLS *tls.Config // its NextProtos must hold the classes served; a missing one is refused in the handshake
	ClientTLS func(want replica.NodeName, alpn ...string) *tls.Config
	PeerName  func(tls.ConnectionState) (replica.ClusterID, replica.NodeName, error)
	// ProbeKeys are shared by the cluster, and may change while it runs; from any goroutine. The first is the one to ask with, any authenticates
	// a question, and its answer. A daemon without the key that another asks with looks silent to it.
	ProbeKeys func() [][]byte
	ResetKey  [32]byte             // fixed for the node across restarts: else peers learn of one only after the idle timeout
	Logf      func(string, ...any) // rate-limited lines for the operator; nil: none
	// Plaintext: bulk data over TCP is not encrypted where the other end says so too. Certificates are checked all the same. Who can read the
	// network then reads the state, and who can write to it changes the state unseen: digests find faults, not forgery.
	Plaintext bool
	// Refused is told of each peer of this cluster whose certificate is refused here; from any goroutine. nil: nobody is.
	Refused func(peer replica.NodeName, why string)
	// Revoked says why a peer whose certificate verifies has no connection all the same; from any goroutine. nil: all have. A change of its
	// mind about peers that are connected takes effect with Recheck.
	Revoked func(tls.ConnectionState) error
}

// bulkProtocols are what this node speaks over TCP, the first that both ends have.
func (c Config) bulkProtocols() []string {
	if c.Plaintext {
		return []string{plainBulk, string(Bulk)}
	}
	return []string{string(Bulk)}
}

// Validate reports all faults.
func (c Config) Validate() error {
	var errs []error
	if c.ServerTLS == nil || c.ServerTLS.GetCertificate == nil || c.ClientTLS == nil || c.PeerName == nil {
		errs = append(errs, errors.New("ServerTLS with GetCertificate, ClientTLS and PeerName are required: without them peers have no identity"))
	}
	if c.ProbeKeys == nil || len(c.ProbeKeys()) == 0 {
		errs = append(errs, errors.New("ProbeKeys are required: every daemon would look silent"))
	} else {
		for i, key := range c.ProbeKeys() {
			if len(key) < 16 {
				errs = append(errs, fmt.Errorf("ProbeKeys: key %d has %d bytes, want at least 16: anyone could answer probes for a dead daemon", i, len(key)))
			}
		}
	}
	if c.ResetKey == ([32]byte{}) {
		errs = append(errs, errors.New("ResetKey is zero: anyone could reset connections"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("endpoint: %w", err)
	}
	return nil
}

// Endpoint is a node's UDP port, a second one from which it dials for Raft, and the TCP port of the same number as the first, for bulk data.
type Endpoint struct {
	cfg      Config
	udp      *net.UDPConn
	tr       *quic.Transport
	own      *quic.Transport // a port without a listener, which strangers don't know: what is sent to the other one can't crowd out Raft's answers
	ids      tagger
	ln       *quic.Listener
	handlers map[Class]func(context.Context, *Conn) // fixed when Run starts
	refusals refusals
	windows  windows
	tcp      net.Listener // nil: the port was taken
	serveTCP func(context.Context, *TCPConn)
	notes    []string // never changes
	probed   atomic.Pointer[ProbeReply]

	sent, received atomic.Uint64 // payload bytes of bulk streams

	life context.Context // ends with Close
	end  context.CancelCauseFunc
	runs sync.WaitGroup // Run, the watchers of connections, the callbacks of failed handshakes

	release func() error

	mu      sync.Mutex // guards the rest
	closed  bool
	inbound map[replica.NodeName]int
	conns   map[*Conn]struct{}

	tcpInbound map[replica.NodeName]int
	tcpConns   map[*TCPConn]struct{}
}

// Listen binds the port. Connections are accepted once Run runs.
func Listen(cfg Config) (*Endpoint, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	if cfg.Revoked == nil {
		cfg.Revoked = func(tls.ConnectionState) error { return nil }
	}
	if cfg.Refused == nil {
		cfg.Refused = func(replica.NodeName, string) {}
	}
	udp, tcp, notes, err := bind(cfg.Addr, listenTCP)
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		cfg.Logf("%s", note)
	}
	own, err := listenUDP(netip.AddrPortFrom(udp.LocalAddr().(*net.UDPAddr).AddrPort().Addr(), 0).String(), func(string, ...any) {}) // said already
	if err != nil {
		return nil, errors.Join(err, udp.Close(), closeListener(tcp))
	}
	e := &Endpoint{
		cfg: cfg, udp: udp, tcp: tcp, notes: notes, ids: newTagger(cfg.ProbeKeys),
		handlers: make(map[Class]func(context.Context, *Conn)),
		windows:  windows{byConn: make(map[*quic.Conn]uint64)},
		inbound:  make(map[replica.NodeName]int),
		conns:    make(map[*Conn]struct{}),

		tcpInbound: make(map[replica.NodeName]int),
		tcpConns:   make(map[*TCPConn]struct{}),
	}
	e.own = &quic.Transport{Conn: coalesce(own), ConnectionIDGenerator: e.ids}
	e.refusals.init(cfg)
	e.life, e.end = context.WithCancelCause(context.Background())
	// Gives up the socket without a word to anyone, once.
	e.release = sync.OnceValue(func() error {
		_ = closeListener(e.tcp) // Run may have closed it
		err := errors.Join(e.ln.Close(), e.tr.Close(), udp.Close(), e.own.Close(), e.own.Conn.Close())
		e.runs.Wait()
		return err
	})
	var attempts attemptRate
	e.tr = &quic.Transport{
		Conn:                  coalesce(udp),
		ConnectionIDGenerator: e.ids,
		StatelessResetKey:     (*quic.StatelessResetKey)(&cfg.ResetKey),
		ConnContext:           e.watchHandshake,
		VerifySourceAddress:   func(net.Addr) bool { return !attempts.allow(time.Now()) },
	}
	if e.ln, err = e.tr.Listen(cfg.ServerTLS, e.settings()); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on UDP %s: %w", cfg.Addr, err), udp.Close(), own.Close(), closeListener(tcp))
	}
	return e, nil
}

// Notes say what makes this node's network slower than it could be, with the remedies, for people.
func (e *Endpoint) Notes() []string { return e.notes }

// Handle registers what serves connections of a class; before Run. fn owns the connection: it is closed when fn returns, and
// fn's context ends with Run's.
func (e *Endpoint) Handle(c Class, fn func(ctx context.Context, conn *Conn)) { e.handlers[c] = fn }

// goingDown is what a peer reads of an endpoint that closes.
const goingDown = "the daemon is going down"

// Run accepts connections and answers probes until ctx ends or Close is called (then it returns nil) or the socket fails. It
// closes all connections and returns when every handler has.
func (e *Endpoint) Run(ctx context.Context) error {
	if !e.begin() {
		return ErrClosed
	}
	defer e.runs.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()

	var g sync.WaitGroup
	defer g.Wait()
	defer e.closeAll(CodeShutdown, goingDown)
	defer cancel()
	g.Go(func() { e.answerProbes(ctx) })
	g.Go(func() { e.guard(ctx) })
	g.Go(func() { e.acceptTCP(ctx) })
	for {
		q, err := e.ln.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, quic.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("accept on UDP %s: %w", e.cfg.Addr, explain(err))
		}
		conn, err := e.admit(q)
		if err != nil {
			e.refusals.log(q.RemoteAddr(), "refused a connection: %v", err)
			continue
		}
		g.Go(func() {
			defer func() {
				if ctx.Err() != nil { // the handler may be quicker than closeAll, and what the peer reads must not depend on that
					conn.Refuse(CodeShutdown, goingDown)
				}
				conn.Close("its handler ended")
			}()
			e.handlers[conn.class](ctx, conn)
		})
	}
}

// admit names an accepted connection, or closes it with the reason.
func (e *Endpoint) admit(q *quic.Conn) (*Conn, error) {
	if a, ok := q.Context().Value(attemptKey{}).(*attempt); ok {
		a.succeeded()
	}
	state := q.ConnectionState().TLS
	conn := &Conn{ep: e, q: q, class: Class(state.NegotiatedProtocol), inbound: true}
	var err error
	if _, conn.peer, err = e.cfg.PeerName(state); err != nil {
		conn.Refuse(CodeRefused, err.Error())
		return nil, fmt.Errorf("peer %s: %w", q.RemoteAddr(), err)
	}
	if e.handlers[conn.class] == nil {
		err = &CloseError{Code: CodeNoClass, Reason: fmt.Sprintf("this node does not serve %s", conn.class)}
	} else {
		err = e.add(conn)
	}
	if err != nil {
		refusal := &CloseError{Code: CodeShutdown, Reason: err.Error()}
		errors.As(err, &refusal)
		if conn.Refuse(refusal.Code, refusal.Reason); refusal.Code == CodeRefused {
			e.cfg.Refused(conn.peer, refusal.Reason)
		}
		return nil, fmt.Errorf("node %q at %s: %w", conn.peer, q.RemoteAddr(), err)
	}
	return conn, nil
}

// add keeps the connection in the book until it ends, and refuses it beyond the limits, or if its peer is revoked. That is asked once the book
// has it: a revocation that comes meanwhile finds it there.
func (e *Endpoint) add(c *Conn) error {
	if err := e.enter(c); err != nil {
		return err
	}
	if err := e.cfg.Revoked(c.q.ConnectionState().TLS); err != nil {
		return &CloseError{Code: CodeRefused, Reason: err.Error()}
	}
	return nil
}

func (e *Endpoint) enter(c *Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return ErrClosed
	}
	if c.inbound {
		if len(e.conns) >= maxConns {
			return &CloseError{Code: CodeTooMany, Reason: fmt.Sprintf("this node has %d connections, its limit", maxConns)}
		}
		if e.inbound[c.peer] >= maxConnsPerPeer {
			return &CloseError{Code: CodeTooMany, Reason: fmt.Sprintf("node %q has %d connections here, its limit", c.peer, maxConnsPerPeer)}
		}
		e.inbound[c.peer]++
	}
	e.conns[c] = struct{}{}
	e.runs.Add(1)
	context.AfterFunc(c.q.Context(), func() {
		defer e.runs.Done()
		e.windows.giveBack(c.q)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.conns, c)
		if c.inbound {
			if e.inbound[c.peer]--; e.inbound[c.peer] == 0 {
				delete(e.inbound, c.peer)
			}
		}
	})
	return nil
}

// begin counts one more thing that Close waits for, unless the endpoint is closed.
func (e *Endpoint) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.runs.Add(1)
	return true
}

func (e *Endpoint) closeAll(code Code, reason string) {
	e.closeTCP(func(*TCPConn) bool { return true })
	e.closeSome(func(*Conn) (Code, string, bool) { return code, reason, true })
}

// Recheck closes the connections, in both directions, of peers that are revoked by now; they are told why.
func (e *Endpoint) Recheck() {
	e.closeTCP(func(c *TCPConn) bool {
		err := e.cfg.Revoked(c.ConnectionState())
		if err != nil {
			e.cfg.Refused(c.peer, err.Error())
		}
		return err != nil
	})
	e.closeSome(func(c *Conn) (Code, string, bool) {
		err := e.cfg.Revoked(c.q.ConnectionState().TLS)
		if err == nil {
			return 0, "", false
		}
		e.cfg.Refused(c.peer, err.Error())
		return CodeRefused, err.Error(), true
	})
}

func (e *Endpoint) closeSome(which func(*Conn) (Code, string, bool)) {
	e.mu.Lock()
	conns := make([]*Conn, 0, len(e.conns))
	for c := range e.conns {
		conns = append(conns, c)
	}
	e.mu.Unlock()
	var g sync.WaitGroup // closing waits for the connection's own goroutine
	for _, c := range conns {
		if code, reason, closes := which(c); closes {
			g.Go(func() { c.Refuse(code, reason) })
		}
	}
	g.Wait()
}

// Moved counts the payload bytes of bulk streams and of TCP connections: what replicas cost the network.
func (e *Endpoint) Moved() (sent, received uint64) { return e.sent.Load(), e.received.Load() }

// Addr is the bound UDP address.
func (e *Endpoint) Addr() net.Addr { return e.udp.LocalAddr() }

// Close tells all peers, releases the port and returns when Run and everything else has ended.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.end(ErrClosed)
	e.closeAll(CodeShutdown, goingDown)
	return e.release()
}
