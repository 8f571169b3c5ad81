package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// startTCP runs an endpoint that serves bulk connections over TCP.
func startTCP(t *testing.T, cfg Config, l *logs, serve func(context.Context, *TCPConn)) *running {
	t.Helper()
	e, err := Listen(cfg)
	for try := 1; err == nil && e.tcp == nil && try < 20; try++ { // the kernel chose a port of UDP that some connection has of TCP
		if err = e.Close(); err == nil {
			e, err = Listen(cfg)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if e.tcp == nil {
		t.Fatalf("no TCP port: %q", l.lines)
	}
	e.HandleTCP(serve)
	var run sync.WaitGroup
	run.Go(func() {
		if err := e.Run(context.Background()); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop := sync.OnceFunc(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		run.Wait()
	})
	t.Cleanup(stop)
	return &running{Endpoint: e, logs: l, stop: stop}
}

func (c cluster) startTCP(node replica.NodeName, addr string, serve func(context.Context, *TCPConn)) *running {
	l := newLogs()
	return startTCP(c.t, c.config(node, addr, l), l, serve)
}

// echoTCP sends back what comes, after its peer's name.
func echoTCP(_ context.Context, c *TCPConn) {
	if _, err := fmt.Fprintf(c, "%s:", c.Peer()); err == nil {
		_, _ = io.Copy(c, c)
	}
}

// toldTCP is what a server sends before it ends the connection, or why nothing came.
func toldTCP(c *TCPConn, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(c)
	return string(b), err
}

// TestTCP: the port number of UDP, certificates at both ends, and every byte as it was sent, in writes smaller and larger than the buffers.
func TestTCP(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a, b := c.startTCP("a", "127.0.0.1:0", echoTCP), c.startTCP("b", "127.0.0.1:0", echoTCP)
	conn, err := b.DialTCP(ctx, a.Addr().String(), "a")
	if err != nil || conn.Peer() != "a" {
		t.Fatal(conn, err)
	}
	defer conn.Close()
	want := make([]byte, 3<<20)
	for i := range want {
		want[i] = byte(i / 7)
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		for rest, n := want, 1; len(rest) > 0; n *= 5 {
			n = min(n, len(rest))
			if _, err := conn.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
	})
	got := make([]byte, 2+len(want))
	_, err = io.ReadFull(conn, got)
	sending.Wait()
	if err != nil || string(got) != "b:"+string(want) {
		t.Fatalf("%d bytes came back, otherwise than they were sent: %v", len(got), err)
	}
	if sent, received := b.Moved(); sent != uint64(len(want)) || received != uint64(len(got)) {
		t.Errorf("counted %d and %d bytes", sent, received)
	}
	if _, err := b.DialTCP(ctx, a.Addr().String(), "b"); err == nil || !strings.Contains(err.Error(), `the server is node "a"`) {
		t.Errorf("dialled another node than wanted: %v", err)
	}
}

// TestPlaintext: state goes in plain text where both ends say so, and only there; a stranger is refused all the same.
func TestPlaintext(t *testing.T) {
	for what, c := range map[string]struct{ serves, dials, plain bool }{"both": {true, true, true}, "the server alone": {true, false, false}, "the client alone": {false, true, false}} {
		t.Run(what, func(t *testing.T) {
			ctx := within(t)
			of, other := newCluster(t, "a", "b"), newCluster(t, "a", "b")
			start := func(of cluster, node replica.NodeName, plain bool) *running {
				l := newLogs()
				cfg := of.config(node, "127.0.0.1:0", l)
				cfg.Plaintext = plain
				return startTCP(t, cfg, l, echoTCP)
			}
			a, b, stranger := start(of, "a", c.serves), start(of, "b", c.dials), start(other, "b", true)
			tap := newTap(t, a.Addr().String())
			conn, err := b.DialTCP(ctx, tap.addr, "a")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			secret := strings.Repeat("a weight of the model ", 40000)
			var sending sync.WaitGroup
			sending.Go(func() {
				if _, err := io.WriteString(conn, secret); err != nil {
					t.Error(err)
				}
			})
			got := make([]byte, 2+len(secret))
			_, err = io.ReadFull(conn, got)
			sending.Wait()
			if err != nil || string(got) != "b:"+secret {
				t.Fatalf("came back otherwise than it was sent: %v", err)
			}
			if seen := strings.Contains(tap.seen(), "a weight of the model"); seen != c.plain {
				t.Errorf("on the wire it can be read: %v, want %v", seen, c.plain)
			}
			if _, err := stranger.DialTCP(ctx, a.Addr().String(), "a"); !errors.Is(err, pki.ErrForeign) {
				t.Errorf("a stranger: %v", err)
			}
		})
	}
}

// tap passes one TCP connection on, and keeps what its client sends.
type tap struct {
	addr string
	mu   sync.Mutex
	b    bytes.Buffer
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{addr: ln.Addr().String()}
	var both sync.WaitGroup
	both.Go(func() {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		both.Go(func() { _, _ = io.Copy(client, server); client.Close() })
		_, _ = io.Copy(io.MultiWriter(server, p), client)
	})
	t.Cleanup(func() { ln.Close(); both.Wait() })
	return p
}

func (p *tap) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

func (p *tap) seen() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// TestTCPRefusesStrangers: another cluster's node, a client without a certificate, another protocol, plain text and silence.
func TestTCPRefusesStrangers(t *testing.T) {
	ctx := within(t)
	c, other := newCluster(t, "a", "b"), newCluster(t, "a", "b")
	a, stranger := c.startTCP("a", "127.0.0.1:0", echoTCP), other.startTCP("b", "127.0.0.1:0", echoTCP)
	if _, err := stranger.DialTCP(ctx, a.Addr().String(), "a"); !errors.Is(err, pki.ErrForeign) {
		t.Errorf("a stranger takes node a for one of its cluster: %v", err)
	}
	shake := func(change func(*tls.Config)) error {
		config := c.identity("b").ClientTLS("a", string(Bulk))
		change(config)
		conn, err := tls.Dial("tcp", a.Addr().String(), config)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		if b, err := io.ReadAll(conn); err != nil || len(b) == 0 {
			return fmt.Errorf("ended: %w", err)
		}
		return nil
	}
	for _, c := range []struct {
		name   string
		change func(*tls.Config)
	}{
		{"another cluster's", func(c *tls.Config) { c.GetClientCertificate = other.identity("b").ClientTLS("a").GetClientCertificate }}, // first: of one address one refusal is logged
		{"no certificate", func(c *tls.Config) { c.GetClientCertificate = nil }},
		{"another protocol", func(c *tls.Config) { c.NextProtos = []string{string(Raft)} }},
		{"no protocol", func(c *tls.Config) { c.NextProtos = nil }},
		{"TLS 1.2", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }},
	} {
		if err := shake(c.change); err == nil {
			t.Errorf("%s: served", c.name)
		}
	}
	a.logs.await(t, "certificate of cluster", "node \"b\"")
	plain, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = plain.SetDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(plain); errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	silent, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	a.stop() // returns, though a handshake is under way
}

// TestTCPRevoked: a revoked peer's connections end, and none comes up, whoever dials.
func TestTCPRevoked(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	l, id := newLogs(), c.identity("a")
	cfg := c.config("a", "127.0.0.1:0", l)
	refused := make(chan replica.NodeName, 100)
	cfg.Revoked, cfg.Refused = id.CheckRevoked, func(n replica.NodeName, _ string) { refused <- n }
	a, b := startTCP(t, cfg, l, echoTCP), c.startTCP("b", "127.0.0.1:0", echoTCP)
	var conns []*TCPConn
	for _, dial := range []func() (*TCPConn, error){
		func() (*TCPConn, error) { return b.DialTCP(ctx, a.Addr().String(), "a") },
		func() (*TCPConn, error) { return a.DialTCP(ctx, b.Addr().String(), "b") },
	} {
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	id.Revoke(replica.Revocation{Role: replica.NodeRole, Name: "b", Epoch: id.Newest(replica.NodeRole, "b")})
	a.Recheck()
	for i, conn := range conns {
		if _, err := toldTCP(conn, nil); err == nil && i == 1 {
			t.Errorf("connection %d to or from a revoked node goes on", i)
		}
	}
	if <-refused != "b" {
		t.Error("the refusal names another node")
	}
	if said, _ := toldTCP(b.DialTCP(ctx, a.Addr().String(), "a")); said != "" {
		t.Errorf("a revoked node is served: %q", said)
	}
	if _, err := a.DialTCP(ctx, b.Addr().String(), "b"); err == nil {
		t.Error("a revoked node is dialled")
	}
}

// TestTCPLimits: so many connections of one node, and one more once one has ended.
func TestTCPLimits(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a, b := c.startTCP("a", "127.0.0.1:0", echoTCP), c.startTCP("b", "127.0.0.1:0", echoTCP)
	serves := func() (*TCPConn, bool) {
		conn, err := b.DialTCP(ctx, a.Addr().String(), "a")
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err = io.ReadFull(conn, make([]byte, 2))
		return conn, err == nil
	}
	first, ok := serves()
	for range maxTCPPerPeer - 1 {
		conn, served := serves()
		defer conn.Close()
		ok = ok && served
	}
	if !ok {
		t.Fatal("a connection within the limit is refused")
	}
	if conn, served := serves(); served {
		t.Error("a connection beyond the limit is served")
	} else {
		conn.Close()
	}
	a.logs.await(t, "its limit")
	first.Close()
	for {
		conn, served := serves()
		conn.Close()
		if served {
			break
		}
	}
}

// TestTCPSaysItsLastWord: who is refused while it still sends reads why. Unread bytes would have the kernel reset the connection.
func TestTCPSaysItsLastWord(t *testing.T) {
	ctx := within(t)
	c := newCluster(t, "a", "b")
	a := c.startTCP("a", "127.0.0.1:0", func(_ context.Context, conn *TCPConn) {
		if _, err := io.ReadFull(conn, make([]byte, 1)); err == nil {
			_, _ = conn.Write([]byte("refused"))
		}
	})
	b := c.startTCP("b", "127.0.0.1:0", echoTCP)
	for range 8 {
		conn, err := b.DialTCP(ctx, a.Addr().String(), "a")
		if err != nil {
			t.Fatal(err)
		}
		var sending sync.WaitGroup
		sending.Go(func() { _, _ = conn.Write(make([]byte, 8<<20)) })
		if said, err := toldTCP(conn, nil); said != "refused" {
			t.Errorf("told %q, %v", said, err)
		}
		sending.Wait()
	}
}

// TestTCPPortTaken: the node works without, and its operator is told.
func TestTCPPortTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := newCluster(t, "a", "b")
	l := newLogs()
	a := start(t, c.config("a", ln.Addr().String(), l), l, allClasses(echo))
	l.await(t, "QUIC alone", "free the port")
	b := c.startTCP("b", "127.0.0.1:0", echoTCP)
	if _, err := b.DialTCP(within(t), ln.Addr().String(), "a"); err == nil {
		t.Error("a listener that is no node of the cluster was taken for one")
	}
	conn, err := b.Dial(within(t), a.Addr().String(), "a", Bulk)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close("done")
}
