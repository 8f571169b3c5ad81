package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/replicad/replicad/replica"
)

// TestAHandshakeOverQUICIsShort: of a client that says who it is with a long chain of certificates no more is kept than 16 KiB, as SECURITY.md has it:
// beyond them it is hung up on before any certificate is looked at. What fits in them is looked at, and refused for what it is.
func TestAHandshakeOverQUICIsShort(t *testing.T) {
	const kept = 16 << 10
	c := newCluster(t, "a", "b")
	a := c.start("a", "127.0.0.1:0", allClasses(echo))
	for _, s := range []struct {
		what  string
		bytes int
		want  func(quic.TransportErrorCode) bool
	}{
		{"a chain of 8 KiB more", kept / 2, quic.TransportErrorCode.IsCryptoError},
		{"a chain of 16 KiB more", kept, func(c quic.TransportErrorCode) bool { return c == quic.CryptoBufferExceeded }},
		{"a chain of 200 KiB more", 200 << 10, func(c quic.TransportErrorCode) bool { return c == quic.CryptoBufferExceeded }},
	} {
		l := newLogs()
		cfg := c.config("b", "127.0.0.2:0", l)
		own := cfg.ClientTLS
		cfg.ClientTLS = func(want replica.NodeName, alpn ...string) *tls.Config {
			config := own(want, alpn...)
			chain := config.GetClientCertificate
			config.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
				cert, err := chain(r)
				if err != nil {
					return nil, err
				}
				long := *cert
				long.Certificate = append(bytesOf(cert.Certificate), make([]byte, s.bytes))
				return &long, nil
			}
			return config
		}
		b := start(t, cfg, l, nil)
		err := dialAndAsk(within(t), b.Endpoint, a.Addr().String(), "a")
		var refused *quic.TransportError
		if !errors.As(err, &refused) || !refused.Remote || !s.want(refused.ErrorCode) {
			t.Errorf("%s: the client reads %v", s.what, err)
		}
		b.stop()
	}
}

// TestStrangersProveTheirAddress: of the handshakes that begin in a second so many are taken at their word, whoever begins them, and the port asks for
// that.
func TestStrangersProveTheirAddress(t *testing.T) {
	c := newCluster(t, "a")
	a := c.start("a", "127.0.0.1:0", nil)
	for i := 0; !a.tr.VerifySourceAddress(a.Addr()); i++ {
		if i > 1000*handshakesPerSecond {
			t.Fatal("the port never asks for a proof of the address")
		}
	}
	var r attemptRate
	for second := range int64(3) {
		at, taken := time.Unix(1000+second, 0), 0
		for i := range 100 * handshakesPerSecond {
			if r.allow(at.Add(time.Duration(i) * time.Microsecond)) {
				taken++
			}
		}
		if taken != handshakesPerSecond {
			t.Errorf("second %d: %d handshakes without a proof of the address, want %d", second, taken, handshakesPerSecond)
		}
	}
}

// TestStrangersProbesAreDropped: while a daemon looks at one probe, no more of them wait than SECURITY.md says, and each as one datagram at most;
// none of a stranger's is answered.
func TestStrangersProbesAreDropped(t *testing.T) {
	const waiting = 32
	ctx := within(t)
	c := newCluster(t, "a")
	l := newLogs()
	e, err := Listen(c.config("a", "127.0.0.1:0", l)) // it does not run: the test looks at the probes in its place
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.SetProbeReply(ProbeReply{Node: "a"})
	out, err := net.DialUDP("udp", nil, e.Addr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	_ = out.SetDeadline(time.Now().Add(patience))
	send := func(b []byte) {
		t.Helper()
		if _, err := out.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	strange := bytes.Repeat([]byte{7}, 32)
	probe := appendProbe(nil, strange, newNonce(strange), nil)
	looked, looks := make(chan int, 1), make([]byte, 64<<10)
	look := func(ctx context.Context) (int, error) { n, _, err := e.tr.ReadNonQUICPacket(ctx, looks); return n, err }
	go func() { n, _ := look(ctx); looked <- n }()
	for n := 0; n == 0; { // those that come before the first look are dropped
		send(probe)
		select {
		case n = <-looked:
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			t.Fatal("no probe is looked at")
		}
	}
	longest := append(probe, make([]byte, 60<<10-len(probe))...)
	for range 20 * waiting {
		send(probe)
		send(longest)
		answered(t, out) // all before it were read from the socket: none waits in the kernel
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	came := 0
	for none := 0; none < 64; none++ { // a context that has ended and a probe that waits are both ready, and either is taken, by chance
		n, err := look(over)
		if n > singleSize {
			t.Fatalf("a datagram of %d bytes is kept", n)
		}
		if err == nil {
			came, none = came+1, 0
		}
	}
	if came == 0 || came > waiting {
		t.Errorf("%d probes waited, want 1 to %d", came, waiting)
	}
}

// answered sends what QUIC answers at once, a version that does not exist, and waits for the answer; anything else that comes is an answer to a probe.
func answered(t *testing.T, out *net.UDPConn) {
	t.Helper()
	ask := make([]byte, initialSize)
	copy(ask, []byte{0xc0, 0xba, 0xba, 0xba, 0xba, 8})
	if _, err := out.Write(ask); err != nil {
		t.Fatal(err)
	}
	room := make([]byte, 2048)
	n, err := out.Read(room)
	if err != nil {
		t.Fatal(err)
	}
	if room[0]&0x80 == 0 || !bytes.Equal(room[1:5], make([]byte, 4)) {
		t.Fatalf("a stranger's probe is answered with %d bytes", n)
	}
}
