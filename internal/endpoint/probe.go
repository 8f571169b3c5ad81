package endpoint

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/replica"
)

// A probe is one datagram, an answer another of the same size, so nobody can use us to amplify. The size is QUIC's smallest
// packet: a path that carries probes but no connections is seen as silent.
//
//	0   magic; its first byte's top bits are 00, which no QUIC packet's are
//	4   version u8, kind u8, reserved u16 = 0
//	8   nonce [16]: the answer repeats the question's; bytes 8 to 11 are the shield's tag of the first 8
//	24  session u64, incarnation u64, boot [16], adopting u8, name length u8, name [63]; all 0 in a question
//	... 0
//	-32 HMAC-SHA256 over all before it
const (
	probeBytes   = 1200
	probeVersion = 1
	probeAsk     = 1
	probeAnswer  = 2

	offNonce = 8
	offReply = 24
	offName  = offReply + 34
	offMAC   = probeBytes - sha256.Size

	probeResend    = 50 * time.Millisecond // doubles up to the next
	probeResendMax = time.Second
)

var probeMagic = [4]byte{0x16, 'R', 'P', 'P'}

type nonce [16]byte

// ProbeReply is what a living daemon says about itself.
type ProbeReply struct {
	Node        replica.NodeName
	Incarnation replica.NodeIncarnation
	Session     replica.Session
	Adopting    bool // still taking its arenas back: counts as silence for decisions about its ranks
	Boot        replica.BootID
}

// SetProbeReply sets the answer; before the first call probes are not answered.
func (e *Endpoint) SetProbeReply(r ProbeReply) { e.probed.Store(&r) }

// appendProbe writes one datagram; r is nil in a question.
func appendProbe(dst, key []byte, n nonce, r *ProbeReply) []byte {
	b := make([]byte, probeBytes)
	copy(b, probeMagic[:])
	b[4], b[5] = probeVersion, probeAsk
	copy(b[offNonce:], n[:])
	if r != nil {
		b[5] = probeAnswer
		f := b[offReply:]
		binary.LittleEndian.PutUint64(f, uint64(r.Session))
		binary.LittleEndian.PutUint64(f[8:], uint64(r.Incarnation))
		copy(f[16:32], r.Boot[:])
		if r.Adopting {
			f[32] = 1
		}
		name := r.Node[:min(len(r.Node), replica.MaxNameBytes)]
		f[33] = byte(len(name))
		copy(b[offName:], name)
	}
	return append(append(dst, b[:offMAC]...), probeMAC(key, b[:offMAC])...)
}

func probeMAC(key, b []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(b)
	return mac.Sum(nil)
}

// parseProbe checks a datagram whole: r is nil for a question, key is the one of keys that it was made with.
func parseProbe(b []byte, keys [][]byte) (n nonce, r *ProbeReply, key []byte, err error) {
	if len(b) == probeBytes {
		for _, k := range keys {
			if hmac.Equal(b[offMAC:], probeMAC(k, b[:offMAC])) {
				n, r, err = parseAuthentic(b, k)
				return n, r, k, err
			}
		}
	}
	return n, nil, nil, errors.New("not a probe, or not an authentic one")
}

func parseAuthentic(b, key []byte) (n nonce, r *ProbeReply, err error) {
	if [4]byte(b[:4]) != probeMagic || b[4] != probeVersion {
		return n, nil, errors.New("not a probe of this version")
	}
	copy(n[:], b[offNonce:])
	switch b[5] {
	case probeAsk:
	case probeAnswer:
		f, length := b[offReply:], int(b[offReply+33])
		if length > replica.MaxNameBytes || f[32] > 1 {
			return n, nil, fmt.Errorf("probe answer with name of %d bytes, adopting %d", length, f[32])
		}
		r = &ProbeReply{
			Session:     replica.Session(binary.LittleEndian.Uint64(f)),
			Incarnation: replica.NodeIncarnation(binary.LittleEndian.Uint64(f[8:])),
			Boot:        replica.BootID(f[16:32]),
			Adopting:    f[32] == 1,
			Node:        replica.NodeName(b[offName : offName+length]),
		}
		if err := replica.CheckName(string(r.Node)); err != nil {
			return n, nil, fmt.Errorf("probe answer: %w", err)
		}
	default:
		return n, nil, fmt.Errorf("probe of kind %d", b[5])
	}
	// What is not a field must be zero: there is one spelling, and later versions find the space unused.
	if string(appendProbe(nil, key, n, r)) != string(b) {
		return n, nil, errors.New("probe with bytes set outside its fields")
	}
	return n, r, nil
}

// answerProbes serves questions until ctx ends. What does not parse is dropped without a word.
func (e *Endpoint) answerProbes(ctx context.Context) {
	buf := make([]byte, probeBytes+1) // one more, so that a longer datagram is not taken for its beginning
	out := make([]byte, 0, probeBytes)
	for {
		n, from, err := e.tr.ReadNonQUICPacket(ctx, buf)
		if err != nil {
			return
		}
		reply := e.probed.Load()
		if reply == nil {
			continue
		}
		question, isAnswer, key, err := parseProbe(buf[:n], e.cfg.ProbeKeys())
		if err != nil || isAnswer != nil {
			continue
		}
		out = appendProbe(out[:0], key, question, reply) // with the asker's key, which may be older or newer than this node's own
		_, _ = e.tr.WriteTo(out, from)                   // lost like any datagram: the asker asks again
	}
}

// Probe asks the daemon at addr whether it lives, until it answers, refuses (ErrRefused) or ctx ends (ErrSilent). It uses a
// socket of its own: only a connected one is told that nobody has the port.
func (e *Endpoint) Probe(ctx context.Context, addr string) (ProbeReply, error) {
	reply, err := e.probe(ctx, addr)
	if err != nil {
		return ProbeReply{}, fmt.Errorf("probe %s: %w", addr, err)
	}
	return *reply, nil
}

func (e *Endpoint) probe(ctx context.Context, addr string) (*ProbeReply, error) {
	remote, err := resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(e.Source(), 0)), remote)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSilent, err)
	}
	defer conn.Close()
	// A cancelled ctx ends the read; the deadline set below then is in the past too.
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()

	keys := e.cfg.ProbeKeys()
	n := newNonce(keys[0])
	ask := appendProbe(nil, keys[0], n, nil)
	buf := make([]byte, probeBytes+1)
	for wait := probeResend; ; wait = min(2*wait, probeResendMax) {
		_, err = conn.Write(ask)
		var reply *ProbeReply
		if err == nil {
			reply, err = awaitAnswer(ctx, conn, buf, n, keys[:1], wait)
		}
		switch {
		case reply != nil:
			return reply, nil
		case errors.Is(err, unix.ECONNREFUSED):
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%w: %w", ErrSilent, context.Cause(ctx))
		}
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			continue
		}
		select { // the path failed at once (no route): it may come back before ctx ends
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w: %w", ErrSilent, err, context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}

// awaitAnswer reads until the answer to question n has come or wait has passed.
func awaitAnswer(ctx context.Context, conn *net.UDPConn, buf []byte, n nonce, keys [][]byte, wait time.Duration) (*ProbeReply, error) {
	if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // it may have ended just before the deadline above undid its own
		return nil, err
	}
	for {
		size, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if answered, reply, _, err := parseProbe(buf[:size], keys); err == nil && reply != nil && answered == n {
			return reply, nil
		}
	}
}

// Source is the IP that the endpoint is bound to, invalid where it is bound to all: a host with several addresses must ask its peers
// from the one that they know.
func (e *Endpoint) Source() netip.Addr {
	local, ok := e.udp.LocalAddr().(*net.UDPAddr)
	if !ok || local.IP.IsUnspecified() {
		return netip.Addr{}
	}
	return local.AddrPort().Addr().Unmap()
}
