package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// attempt is an incoming handshake. quic-go shows a server only those that succeed; why one failed is the cause with which
// its context ends.
type attempt struct {
	stop func() bool
	done func()
}

type attemptKey struct{}

// succeeded forgets the attempt: from now on the connection's end is its owner's affair.
func (a *attempt) succeeded() {
	if a.stop() {
		a.done()
	}
}

// watchHandshake is quic-go's ConnContext.
func (e *Endpoint) watchHandshake(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	if !e.begin() {
		return nil, ErrClosed
	}
	a := &attempt{done: e.runs.Done}
	addr := info.RemoteAddr
	a.stop = context.AfterFunc(ctx, func() {
		defer e.runs.Done()
		e.refusals.handshake(addr, context.Cause(ctx))
	})
	return context.WithValue(ctx, attemptKey{}, a), nil
}

// refusals logs peers that were turned away: the operator of a mixed-up cluster finds the reason at both ends, and nobody can
// flood the log. Lines over the limit are dropped; the next one for that address says how many.
type refusals struct {
	logf    func(string, ...any)
	refused func(replica.NodeName, string)
	name    func(tls.ConnectionState) (replica.ClusterID, replica.NodeName, error)
	cluster replica.ClusterID // this node's

	mu   sync.Mutex // guards seen
	seen map[netip.Addr]*refused
}

type refused struct {
	next    time.Time // when a line may be logged again
	dropped int
}

func (r *refusals) init(cfg Config) {
	r.logf, r.refused, r.name, r.seen = cfg.Logf, cfg.Refused, cfg.PeerName, make(map[netip.Addr]*refused)
	if own, err := cfg.ServerTLS.GetCertificate(new(tls.ClientHelloInfo)); err == nil && own.Leaf != nil {
		// A certificate that the handshake would refuse anyway: the zero cluster in a log line is all that comes of it.
		r.cluster, _, _ = cfg.PeerName(tls.ConnectionState{PeerCertificates: []*x509.Certificate{own.Leaf}})
	}
}

// handshake logs why an incoming handshake failed, where it was about identity; lost packets are not worth a line.
func (r *refusals) handshake(addr net.Addr, cause error) {
	var transport *quic.TransportError
	if !errors.As(cause, &transport) || !transport.ErrorCode.IsCryptoError() {
		return
	}
	if transport.Remote {
		r.log(addr, "peer %s refused this node's certificate or protocol (%v): is it of another cluster than %v, or is a clock wrong?", addr, cause, r.cluster)
		return
	}
	r.identity(addr, cause)
}

// tcpHandshake does the same for a bulk connection over TCP.
func (r *refusals) tcpHandshake(addr net.Addr, cause error) {
	var alert tls.AlertError
	var bad *tls.CertificateVerificationError
	if errors.As(cause, &alert) || errors.As(cause, &bad) {
		r.identity(addr, cause)
	}
}

func (r *refusals) identity(addr net.Addr, cause error) {
	var bad *tls.CertificateVerificationError
	if errors.As(cause, &bad) {
		cluster, name, err := r.name(tls.ConnectionState{PeerCertificates: bad.UnverifiedCertificates})
		switch {
		case err != nil:
			r.log(addr, "peer %s presented a certificate that names no node (%v): %v", addr, err, bad.Err)
		case cluster != r.cluster:
			r.log(addr, "peer %s presented a certificate of cluster %v (node %q), this is cluster %v: give it credentials of this cluster, or another address to connect to: %v", addr, cluster, name, r.cluster, bad.Err)
		default:
			r.log(addr, "peer %s presented a certificate of node %q of this cluster that does not verify: %v", addr, name, bad.Err)
			r.refused(name, fmt.Sprintf("its certificate does not verify: %v", bad.Err))
		}
		return
	}
	r.log(addr, "peer %s failed the TLS handshake: %v", addr, cause)
}

func (r *refusals) log(addr net.Addr, format string, args ...any) {
	dropped, ok := r.allow(addr, time.Now())
	if !ok {
		return
	}
	line := fmt.Sprintf(format, args...)
	if dropped > 0 {
		line += fmt.Sprintf(" (%d like it since the last line)", dropped)
	}
	r.logf("%s", line)
}

// allow tells whether a line about addr may be logged, and how many were dropped before it.
func (r *refusals) allow(addr net.Addr, now time.Time) (dropped int, ok bool) {
	var ip netip.Addr
	switch from := addr.(type) {
	case *net.UDPAddr:
		ip = from.AddrPort().Addr()
	case *net.TCPAddr:
		ip = from.AddrPort().Addr()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seen[ip]
	if s == nil {
		if len(r.seen) >= logSources {
			for old, s := range r.seen {
				if now.After(s.next) {
					delete(r.seen, old)
				}
			}
			if len(r.seen) >= logSources {
				return 0, false
			}
		}
		s = new(refused)
		r.seen[ip] = s
	}
	if now.Before(s.next) {
		s.dropped++
		return 0, false
	}
	dropped, s.dropped, s.next = s.dropped, 0, now.Add(logEvery)
	return dropped, true
}

// attemptRate allows so many handshakes a second.
type attemptRate struct {
	second atomic.Int64
	count  atomic.Int64
}

func (a *attemptRate) allow(now time.Time) bool {
	// Two goroutines at the turn of a second may both reset the count: a limit this soft bears it.
	if s := now.Unix(); a.second.Swap(s) != s {
		a.count.Store(0)
	}
	return a.count.Add(1) <= handshakesPerSecond
}
