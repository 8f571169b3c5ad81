package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/internal/pace"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// patience is how long a test waits for an event that must come; only a failing test waits it out.
const patience = 20 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// cluster issues identities.
type cluster struct {
	t   *testing.T
	dir string
}

func newCluster(t *testing.T, nodes ...replica.NodeName) cluster {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Init(dir, nodes, time.Now()); err != nil {
		t.Fatal(err)
	}
	return cluster{t, dir}
}

func (c cluster) identity(node replica.NodeName) *pki.Identity {
	c.t.Helper()
	at := func(name string) string { return filepath.Join(c.dir, name) }
	id, err := pki.Load(at("ca.pem"), at(string(node)+".pem"), at(string(node)+"-key.pem"), at("gossip.key"))
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// logs collects what an endpoint tells its operator.
type logs struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{} // poked after each line
}

func newLogs() *logs { return &logs{more: make(chan struct{}, 1)} }

func (l *logs) logf(format string, args ...any) {
	l.mu.Lock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// await waits for a line with all the texts.
func (l *logs) await(t *testing.T, texts ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		for _, line := range l.lines {
			found := 0
			for _, s := range texts {
				if strings.Contains(line, s) {
					found++
				}
			}
			if found == len(texts) {
				l.mu.Unlock()
				return
			}
		}
		lines := strings.Join(l.lines, "\n")
		l.mu.Unlock()
		select {
		case <-l.more:
		case <-deadline:
			t.Fatalf("no line with %q among:\n%s", texts, lines)
		}
	}
}

// config is that of a node of the cluster at addr.
func (c cluster) config(node replica.NodeName, addr string, l *logs) Config {
	id := c.identity(node)
	return Config{
		Addr: addr, ServerTLS: id.ServerTLS(string(Raft), string(Control), string(Bulk)), ClientTLS: id.ClientTLS, PeerName: pki.PeerName,
		ProbeKeys: id.GossipKeys, ResetKey: [32]byte{1, byte(len(node)), node[0]}, Logf: l.logf,
	}
}

// running is an endpoint with its Run; stop ends both, stopped waits for Run.
type running struct {
	*Endpoint
	logs *logs
	stop func()
}

// start runs an endpoint; handlers are by class.
func start(t *testing.T, cfg Config, l *logs, handlers map[Class]func(context.Context, *Conn)) *running {
	t.Helper()
	e, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for c, fn := range handlers {
		e.Handle(c, fn)
	}
	done := make(chan error, 1)
	go func() { done <- e.Run(context.Background()) }()
	stop := sync.OnceFunc(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not end after Close")
		}
	})
	t.Cleanup(stop)
	return &running{e, l, stop}
}

func (c cluster) start(node replica.NodeName, addr string, handlers map[Class]func(context.Context, *Conn)) *running {
	c.t.Helper()
	l := newLogs()
	return start(c.t, c.config(node, addr, l), l, handlers)
}

// echo answers each stream of the connection with its class, the peer's name and what it read.
func echo(ctx context.Context, conn *Conn) {
	for {
		s, err := conn.Accept(ctx)
		if err != nil {
			return
		}
		b, err := io.ReadAll(s)
		if err == nil {
			fmt.Fprintf(s, "%s %s %s", conn.Class(), conn.Peer(), b)
		}
		s.Close()
	}
}

func allClasses(fn func(context.Context, *Conn)) map[Class]func(context.Context, *Conn) {
	return map[Class]func(context.Context, *Conn){Raft: fn, Control: fn, Bulk: fn}
}

// ask opens a stream, writes text and returns the whole answer.
func ask(ctx context.Context, c *Conn, text string) (string, error) {
	s, err := c.Open(ctx)
	if err != nil {
		return "", err
	}
	defer s.Close()
	if _, err := io.WriteString(s, text); err != nil {
		return "", err
	}
	if err := s.CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(s)
	return string(b), err
}

func TestClassesAndNames(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	b := c.start("b", "127.0.0.2:0", allClasses(echo))
	for _, class := range []Class{Raft, Control, Bulk} {
		conn, err := a.Dial(ctx, b.Addr().String(), "b", class)
		if err != nil {
			t.Fatal(err)
		}
		if conn.Peer() != "b" {
			t.Errorf("peer is %q", conn.Peer())
		}
		text := "hello over " + string(class)
		got, err := ask(ctx, conn, text)
		if want := fmt.Sprintf("%s a %s", class, text); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
		sent, _ := a.Moved()
		_, received := b.Moved()
		if want := uint64(len(text)); class == Bulk && (sent != want || received != want) || class != Bulk && sent+received != 0 {
			t.Errorf("after %s: %d bulk bytes sent, %d received", class, sent, received)
		}
		conn.Close("done with it")
		<-conn.Done()
		var closed *CloseError
		if err := conn.Err(); !errors.As(err, &closed) || closed.Remote || closed.Reason != "done with it" {
			t.Errorf("the closed connection says %v", err)
		}
	}
}

// Raft dials from a port of its own, which strangers do not know; everything else from the node's.
// 150,000 QUIC Initials a second unseated a leader whose Raft packets shared the strangers' socket buffer.
func TestRaftDialsFromItsOwnPort(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	from := make(chan net.Addr, 1)
	b := c.start("b", "127.0.0.2:0", allClasses(func(_ context.Context, conn *Conn) { from <- conn.RemoteAddr(); <-conn.Done() }))
	for _, class := range []Class{Raft, Control, Bulk} {
		conn, err := a.Dial(ctx, b.Addr().String(), "b", class)
		if err != nil {
			t.Fatal(err)
		}
		got, known := (<-from).(*net.UDPAddr), a.Addr().(*net.UDPAddr)
		if !got.IP.Equal(known.IP) || (got.Port == known.Port) == (class == Raft) {
			t.Errorf("%s from %v, the node's address is %v", class, got, known)
		}
		conn.Close("")
	}
}

func TestDialWrongName(t *testing.T) {
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	b := c.start("b", "127.0.0.2:0", allClasses(echo))
	_, err := a.Dial(within(t), b.Addr().String(), "c", Raft)
	if err == nil || !strings.Contains(err.Error(), `the server is node "b", want "c"`) {
		t.Errorf("got %v", err)
	}
}

func TestUnservedClass(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	b := c.start("b", "127.0.0.2:0", map[Class]func(context.Context, *Conn){Control: echo})
	conn, err := a.Dial(ctx, b.Addr().String(), "b", Raft)
	if err == nil {
		select {
		case <-conn.Done():
			err = conn.Err()
		case <-ctx.Done():
			t.Fatal("the connection of a class without a handler stays open")
		}
	}
	var closed *CloseError
	if !errors.As(err, &closed) || closed.Code != CodeNoClass || !closed.Remote {
		t.Errorf("got %v", err)
	}
}

func TestForeignClusterIsRefused(t *testing.T) {
	ctx := within(t)
	ours, theirs := newCluster(t, "a"), newCluster(t, "b")
	a := ours.start("a", "127.0.0.1:0", allClasses(echo))
	b := theirs.start("b", "127.0.0.2:0", nil)
	idA, idB := ours.identity("a"), theirs.identity("b")

	_, err := b.Dial(ctx, a.Addr().String(), "a", Raft)
	if !errors.Is(err, pki.ErrForeign) || !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), idA.Cluster.String()) || !strings.Contains(err.Error(), idB.Cluster.String()) {
		t.Errorf("the foreign client reads %v", err)
	}
	a.logs.await(t, "127.0.0.2:", "refused this node's certificate", idA.Cluster.String())

	// One that does not mind who the server is: only the server can refuse it.
	l := newLogs()
	cfg := theirs.config("b", "127.0.0.3:0", l)
	cfg.ClientTLS = func(_ replica.NodeName, alpn ...string) *tls.Config {
		c := idB.ClientTLS("", alpn...)
		c.VerifyConnection = nil
		return c
	}
	reckless := start(t, cfg, l, nil)
	if err := dialAndAsk(ctx, reckless.Endpoint, a.Addr().String(), "a"); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), "the peer refused this node's certificate") {
		t.Errorf("the reckless client reads %v", err)
	}
	a.logs.await(t, "127.0.0.3:", "presented a certificate of cluster "+idB.Cluster.String(), "this is cluster "+idA.Cluster.String())

	l = newLogs()
	cfg.Addr, cfg.Logf = "127.0.0.4:0", l.logf
	cfg.ClientTLS = func(_ replica.NodeName, alpn ...string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: alpn, MinVersion: tls.VersionTLS13}
	}
	bare := start(t, cfg, l, nil)
	if err := dialAndAsk(ctx, bare.Endpoint, a.Addr().String(), "a"); !errors.Is(err, ErrIdentity) || !strings.Contains(err.Error(), "the peer refused this node's certificate") {
		t.Errorf("the client without a certificate reads %v", err)
	}
	a.logs.await(t, "127.0.0.4:", "didn't provide a certificate")
}

// dialAndAsk returns the first error of connecting and asking: in TLS 1.3 a server's refusal may come after the client's handshake.
func dialAndAsk(ctx context.Context, e *Endpoint, addr string, want replica.NodeName) error {
	conn, err := e.Dial(ctx, addr, "", Raft)
	if err != nil {
		return err
	}
	defer conn.Close("test")
	_, err = ask(ctx, conn, "x")
	return err
}

// An operator's certificate is signed by the same CA, and opens no connection.
func TestOperatorIsRefused(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a")
	a := c.start("a", "127.0.0.1:0", allClasses(echo))
	cert, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "operator.pem"), filepath.Join(c.dir, "operator-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.config("a", "127.0.0.2:0", newLogs())
	cfg.ClientTLS = func(_ replica.NodeName, alpn ...string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}, NextProtos: alpn, MinVersion: tls.VersionTLS13}
	}
	operator := start(t, cfg, newLogs(), nil)
	if err := dialAndAsk(ctx, operator.Endpoint, a.Addr().String(), "a"); err == nil || !strings.Contains(err.Error(), "the peer refused this node's certificate") {
		t.Errorf("an operator reads %v", err)
	}
	a.logs.await(t, "127.0.0.2:", "not a node's")
}

// A certificate that expired is refused by name: the daemon shows which nodes it keeps out, and the refused one can tell why.
func TestExpiredCertificateIsRefusedByName(t *testing.T) {
	ctx := within(t)
	nodes := newCluster(t, "a", "b")
	l, refused := newLogs(), make(chan string, 1)
	cfg := nodes.config("a", "127.0.0.1:0", l)
	cfg.ServerTLS.Time = func() time.Time { return nodes.identity("b").NotAfter().Add(time.Hour) }
	cfg.Refused = func(peer replica.NodeName, why string) { refused <- string(peer) + ": " + why }
	a := start(t, cfg, l, allClasses(echo))
	b := nodes.start("b", "127.0.0.2:0", nil)
	if err := dialAndAsk(ctx, b.Endpoint, a.Addr().String(), "a"); !errors.Is(err, ErrIdentity) {
		t.Errorf("the client reads %v", err)
	}
	select {
	case got := <-refused:
		if !strings.HasPrefix(got, "b: its certificate does not verify") || !strings.Contains(got, "expired") {
			t.Errorf("told %q", got)
		}
	case <-ctx.Done():
		t.Error("nobody is told")
	}
}

func TestRefusalLogIsLimited(t *testing.T) {
	var lines int
	r := refusals{logf: func(string, ...any) { lines++ }, seen: make(map[netip.Addr]*refused)}
	addr := &net.UDPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
	now := time.Unix(1000, 0)
	if _, ok := r.allow(addr, now); !ok {
		t.Error("the first line is dropped")
	}
	for range 5 {
		addr.Port++ // another port is the same host
		if _, ok := r.allow(addr, now.Add(logEvery-1)); ok {
			t.Error("a line too early")
		}
	}
	if n, ok := r.allow(addr, now.Add(logEvery)); !ok || n != 5 {
		t.Errorf("the next line: %v, %d dropped before it, want 5", ok, n)
	}
	for i := range 2 * logSources {
		r.allow(&net.UDPAddr{IP: net.IPv4(10, 1, byte(i>>8), byte(i)), Port: 1}, now)
	}
	if len(r.seen) > logSources {
		t.Errorf("%d addresses remembered", len(r.seen))
	}
}

func TestAddressInUse(t *testing.T) {
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	_, err := Listen(c.config("b", a.Addr().String(), newLogs()))
	if err == nil || !strings.Contains(err.Error(), a.Addr().String()) || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "another address") {
		t.Errorf("got %v", err)
	}
	_, err = Listen(c.config("b", "192.0.2.1:7000", newLogs()))
	if err == nil || !strings.Contains(err.Error(), "not one of this host's") {
		t.Errorf("got %v", err)
	}
	if _, err = Listen(Config{Addr: "127.0.0.1:0"}); err == nil || !strings.Contains(err.Error(), "ProbeKeys") || !strings.Contains(err.Error(), "ServerTLS") {
		t.Errorf("an empty configuration: %v", err)
	}
}

func TestProbe(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	b := c.start("b", "127.0.0.2:0", nil)
	want := ProbeReply{Node: "b", Incarnation: 1<<63 + 7, Session: 3, Adopting: true, Boot: replica.BootID{9, 8}}
	b.SetProbeReply(want)
	if got, err := a.Probe(ctx, b.Addr().String()); got != want || err != nil {
		t.Errorf("answered: %+v, %v; want %+v", got, err, want)
	}

	addr := b.Addr().String()
	b.stop()
	if _, err := a.Probe(ctx, addr); !errors.Is(err, ErrRefused) || errors.Is(err, ErrSilent) {
		t.Errorf("nobody has the port: %v", err)
	}

	mute, err := net.ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	short, cancel := context.WithTimeout(ctx, 3*probeResend)
	defer cancel()
	if _, err := a.Probe(short, addr); !errors.Is(err, ErrSilent) || errors.Is(err, ErrRefused) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("somebody has the port and says nothing: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := a.Probe(gone, addr); !errors.Is(err, ErrSilent) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestProbeNeedsKey: a daemon with another key neither answers nor is believed.
func TestProbeNeedsKey(t *testing.T) {
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	l := newLogs()
	cfg := c.config("b", "127.0.0.2:0", l)
	cfg.ProbeKeys = func() [][]byte { return [][]byte{bytes.Repeat([]byte{7}, 32)} }
	b := start(t, cfg, l, nil)
	b.SetProbeReply(ProbeReply{Node: "b"})
	ctx, cancel := context.WithTimeout(within(t), 3*probeResend)
	defer cancel()
	if _, err := a.Probe(ctx, b.Addr().String()); !errors.Is(err, ErrSilent) {
		t.Errorf("got %v", err)
	}
}

// TestRestartIsSeenAtOnce: a daemon that dies without a word and comes back resets its peers' connections. A machine that lets nobody run for three seconds
// has the connection end by silence before that: it is tried again.
func TestRestartIsSeenAtOnce(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	b := c.start("b", "127.0.0.2:0", allClasses(echo))
	addr := b.Addr().String()
	for try := 1; ; try++ {
		conn, err := a.Dial(ctx, addr, "b", Control)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(ctx, conn, "x"); err != nil {
			t.Fatal(err)
		}
		// As SIGKILL would, no CONNECTION_CLOSE: nothing can be written any more, so that handlers which end with the listener can't send one.
		if err := errors.Join(b.udp.SetWriteDeadline(time.Unix(1, 0)), b.release()); err != nil {
			t.Fatal(err)
		}
		b = c.start("b", addr, allClasses(echo))
		_, used := ask(ctx, conn, "y")
		<-conn.Done()
		if errors.Is(used, ErrReset) && errors.Is(conn.Err(), ErrReset) {
			break
		}
		if try == 5 || !errors.Is(conn.Err(), ErrSilent) || pace.Slowed() < 4 {
			t.Fatalf("the next use of the old connection gives %v, and it ended with %v", used, conn.Err())
		}
	}
	if err := dialAndAsk(ctx, a.Endpoint, b.Addr().String(), "b"); err != nil {
		t.Errorf("a new connection: %v", err)
	}
}

// TestCloseTellsPeersAndUnblocks: a peer of a daemon that goes down reads so, also where the handler ends before the connection is closed.
func TestCloseTellsPeersAndUnblocks(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	var accepted sync.WaitGroup
	var turn atomic.Int32
	b := c.start("b", "127.0.0.2:0", allClasses(func(ctx context.Context, conn *Conn) {
		s, err := conn.Accept(ctx)
		accepted.Done()
		if err != nil {
			return
		}
		defer s.Close()
		if turn.Add(1)%2 == 0 { // ends before its connection does
			<-ctx.Done()
			return
		}
		_, _ = io.Copy(io.Discard, s)
	}))
	streams := make([]*Stream, maxConnsPerPeer)
	accepted.Add(len(streams))
	for i := range streams {
		conn, err := a.Dial(ctx, b.Addr().String(), "b", Bulk)
		if err != nil {
			t.Fatal(err)
		}
		if streams[i], err = conn.Open(ctx); err != nil {
			t.Fatal(err)
		}
		defer streams[i].Close()
		if _, err := streams[i].Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	accepted.Wait()
	b.stop()
	for i, s := range streams {
		var closed *CloseError
		if _, err := s.Read(make([]byte, 1)); !errors.As(err, &closed) || closed.Code != CodeShutdown || !errors.Is(err, net.ErrClosed) {
			t.Errorf("peer %d of a daemon going down reads %v", i, err)
		}
	}
}

func TestStreamCloseUnblocksBothDirections(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	held := make(chan *Stream, 1)
	b := c.start("b", "127.0.0.2:0", allClasses(func(ctx context.Context, conn *Conn) {
		s, err := conn.Accept(ctx)
		if err != nil {
			return
		}
		held <- s // nobody reads it: the writer fills the window and blocks
		<-conn.Done()
	}))
	conn, err := a.Dial(ctx, b.Addr().String(), "b", Bulk)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close("test")
	s, err := conn.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	readErr, writeErr := make(chan error, 1), make(chan error, 1)
	go func() { _, err := s.Read(make([]byte, 1)); readErr <- err }()
	go func() { _, err := s.Write(make([]byte, 4*maxConnWindow)); writeErr <- err }()
	peer := <-held
	s.Close()
	for name, ch := range map[string]chan error{"Read": readErr, "Write": writeErr} {
		select {
		case err := <-ch:
			if err == nil {
				t.Errorf("%s gives no error after Close", name)
			}
		case <-ctx.Done():
			t.Fatalf("%s hangs after Close", name)
		}
	}
	if _, err := io.Copy(io.Discard, peer); err == nil || !IsAbort(err) {
		t.Errorf("the peer of a write that was cut off reads %v, want an abort", err)
	}
	peer.Close()
}

func TestConnLimitPerPeer(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", nil)
	b := c.start("b", "127.0.0.2:0", allClasses(echo))
	for range maxConnsPerPeer {
		conn, err := a.Dial(ctx, b.Addr().String(), "b", Control)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ask(ctx, conn, "x"); err != nil {
			t.Fatal(err)
		}
	}
	err := dialAndAsk(ctx, a.Endpoint, b.Addr().String(), "b")
	var closed *CloseError
	if !errors.As(err, &closed) || closed.Code != CodeTooMany {
		t.Errorf("one more than the limit: %v", err)
	}
}

func TestRunAfterClose(t *testing.T) {
	c := newCluster(t, "a")
	e, err := Listen(c.config("a", "127.0.0.1:0", newLogs()))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Close(), e.Close()); err != nil {
		t.Error(err)
	}
	if err := e.Run(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	if _, err := e.Dial(within(t), "127.0.0.1:9", "a", Raft); !errors.Is(err, ErrClosed) {
		t.Errorf("Dial: %v", err)
	}
}

func FuzzParseProbe(f *testing.F) {
	key := []byte("0123456789abcdef")
	f.Add(appendProbe(nil, key, nonce{1}, nil))
	f.Add(appendProbe(nil, key, nonce{2}, &ProbeReply{Node: "n-1", Incarnation: 5, Session: 6, Adopting: true, Boot: replica.BootID{7}}))
	f.Add([]byte{})
	f.Add(make([]byte, probeBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, signed := range []bool{false, true} {
			if signed && len(b) == probeBytes { // behind the MAC too: a key holder may be hostile
				copy(b[offMAC:], probeMAC(key, b[:offMAC]))
			}
			n, r, _, err := parseProbe(b, [][]byte{make([]byte, 16), key})
			if err != nil {
				continue
			}
			if again := appendProbe(nil, key, n, r); !bytes.Equal(again, b) {
				t.Errorf("%x is written %x", b, again)
			}
		}
	})
}
