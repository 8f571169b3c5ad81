package hostile

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/endpoint"
)

// quicPacket is the smallest datagram that a QUIC server takes for an Initial, in bytes.
const quicPacket = 1200

// udp opens a socket to an address, with no limit on what it may send at once.
func (a *attack) udp(addr string) (*net.UDPConn, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, err
	}
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(a.own.Host())}, to)
	if err == nil {
		a.later(func() { _ = c.Close() })
	}
	return c, err
}

// burst sends packets of one size in as few system calls as the kernel lets one do: it cuts a long one into segments.
func burst(c *net.UDPConn, packets []byte, size int) error {
	oob := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(cmsg(oob))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(oob[unix.CmsgLen(0):], uint16(size))
	_, _, err := c.WriteMsgUDP(packets, oob, nil)
	if errors.Is(err, unix.ECONNREFUSED) { // of an earlier one
		err = nil
	}
	return err
}

func udpGarbage(ctx context.Context, a *attack) error {
	c, err := a.udp(a.victim.Addr)
	if err != nil {
		return err
	}
	b := make([]byte, 8<<10)
	return a.paced(ctx, 20_000, func(int) error {
		n := 1 + mathrand.N(len(b))
		_, _ = rand.Read(b[:min(n, 64)]) // never fails
		_, _ = c.Write(b[:n])            // refused ones count as sent
		a.count("datagrams", 1)
		return nil
	})
}

// initial writes what the header of an Initial looks like, with random connection ids and payload.
func initial(b []byte, version uint32) {
	_, _ = rand.Read(b[:64])
	b[0] = 0xc0 | b[0]&0x0f
	binary.BigEndian.PutUint32(b[1:], version)
	b[5] = 8  // destination id
	b[14] = 8 // source id
	b[23] = 0 // no token
	b[24] = 0x40 | byte((len(b)-26)>>8)
	b[25] = byte(len(b) - 26)
}

// flood sends packets that make fills anew, so many a second.
func (a *attack) flood(ctx context.Context, perSecond int, fill func(b []byte)) error {
	const at = 50 // in one call: the kernel takes 64 KiB
	var g sync.WaitGroup
	for range 2 {
		c, err := a.udp(a.victim.Addr)
		if err != nil {
			return err
		}
		g.Go(func() {
			b := make([]byte, at*quicPacket)
			_ = a.paced(ctx, perSecond/at/2, func(int) error { // it ends with the time alone
				for p := range at {
					fill(b[p*quicPacket : (p+1)*quicPacket])
				}
				if burst(c, b, quicPacket) == nil {
					a.count("packets", at)
				}
				return nil
			})
		})
	}
	g.Wait()
	return nil
}

func initials(ctx context.Context, a *attack) error {
	a.Hold *= 3 // elections take seconds
	return a.flood(ctx, 150_000, func(b []byte) { initial(b, uint32(quic.Version1)) })
}

func versions(ctx context.Context, a *attack) error {
	c, err := a.udp(a.victim.Addr)
	if err != nil {
		return err
	}
	var back int
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		b := make([]byte, 2*quicPacket)
		for {
			n, err := c.Read(b)
			if errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EBADF) {
				return
			}
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				return
			}
			back += n
		}
	}()
	err = a.paced(ctx, 20_000, func(int) error {
		b := make([]byte, quicPacket)
		initial(b, 0x1a2a3a4a|mathrand.Uint32())
		_, _ = c.Write(b)
		a.count("packets", 1)
		return nil
	})
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	<-answers
	a.count("bytes answered", back)
	if sent := a.counted("packets") * quicPacket; back > sent {
		return fmt.Errorf("%d bytes were answered to %d", back, sent)
	}
	return err
}

// deaf is a socket that hears nothing.
type deaf struct{ *net.UDPConn }

func (d deaf) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		if n, from, err := d.UDPConn.ReadFrom(b); err != nil {
			return n, from, err
		}
	}
}

func halfOpen(ctx context.Context, a *attack) error {
	id, err := a.identity(mallory)
	if err != nil {
		return err
	}
	to, err := net.ResolveUDPAddr("udp", a.victim.Addr)
	if err != nil {
		return err
	}
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(a.own.Host())})
	if err != nil {
		return err
	}
	tr := &quic.Transport{Conn: struct{ net.PacketConn }{deaf{c}}}
	a.later(func() { _ = tr.Close(); _ = c.Close() })
	return each(ctx, 2000, 512, func(int) error {
		ctx, cancel := context.WithTimeout(ctx, a.Hold/4)
		defer cancel()
		_, err := tr.Dial(ctx, to, id.ClientTLS(a.victim.Node, string(endpoint.Control)), &quic.Config{HandshakeIdleTimeout: a.Hold / 4})
		if err == nil {
			return errors.New("a client that hears nothing is connected")
		}
		a.count("first flights", 1)
		return nil
	})
}

// handshakes wants each of many handshakes refused.
func (a *attack) handshakes(ctx context.Context, e *endpoint.Endpoint, class endpoint.Class) error {
	return a.until(ctx, func(int) error {
		c, err := a.dial(ctx, e, class)
		if err == nil {
			select { // a client has its connection before the server has judged its certificate
			case <-c.Done():
				err = c.Err()
			case <-time.After(10 * time.Second):
				return errors.New("it is connected")
			}
		}
		if !errors.Is(err, endpoint.ErrIdentity) {
			a.count("no answer", 1) // under load the victim may be slow to refuse; it must not let it in
			if !errors.Is(err, endpoint.ErrSilent) {
				return fmt.Errorf("refused with %w, which says nothing of a certificate", err)
			}
			return nil
		}
		a.count("refused", 1)
		return nil
	})
}

// presenting is an endpoint that presents another certificate, and takes any server, or the server would not be asked.
func (a *attack) presenting(cert *tls.Certificate) (*endpoint.Endpoint, error) {
	id, err := a.identity(mallory)
	if err != nil {
		return nil, err
	}
	return a.as(id, func(c *tls.Config) {
		c.VerifyConnection, c.InsecureSkipVerify = nil, true
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	})
}

func (a *attack) refusedWith(ctx context.Context, cert *tls.Certificate) error {
	e, err := a.presenting(cert)
	if err != nil {
		return err
	}
	a.Hold /= 4
	for _, class := range []endpoint.Class{endpoint.Raft, endpoint.Control, endpoint.Bulk} {
		if err := a.handshakes(ctx, e, class); err != nil {
			return fmt.Errorf("%s: %w", class, err)
		}
	}
	if err := a.until(ctx, func(int) error { return a.laneRefused(ctx, e) }); err != nil {
		return err
	}
	if a.counted("refused") == 0 {
		return errors.New("no handshake was answered")
	}
	return nil
}

func noCertificate(ctx context.Context, a *attack) error {
	return a.refusedWith(ctx, &tls.Certificate{})
}

func probeKey(ctx context.Context, a *attack) error {
	id, err := a.identity(mallory)
	if err != nil {
		return err
	}
	probe, err := a.recordProbe(ctx, id, func() [][]byte { return [][]byte{make([]byte, 32)} })
	if err != nil {
		return err
	}
	sent, back, err := a.replay(ctx, probe)
	if err == nil && back > 0 {
		err = fmt.Errorf("%d bytes were answered to %d probes with a wrong key", back, sent)
	}
	return err
}

func probeReplay(ctx context.Context, a *attack) error {
	id, err := a.identity(mallory)
	if err != nil {
		return err
	}
	probe, err := a.recordProbe(ctx, id, id.GossipKeys)
	if err != nil {
		return err
	}
	sent, back, err := a.replay(ctx, probe)
	if err == nil && back > sent*len(probe) {
		err = fmt.Errorf("%d bytes were answered to %d", back, sent*len(probe))
	}
	return err
}
