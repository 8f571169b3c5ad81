package endpoint

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"net"
	"time"
	"unsafe"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// A port that strangers flood loses the datagrams of peers too, since all of them wait in one buffer of the kernel. So the connection ids
// that a node makes carry two tags. While the buffer fills up, the kernel passes every datagram to an id with this process' own tag: it belongs
// to a connection. It also passes what comes from an id with the cluster's tag, which begins a connection, and probes with such a nonce. Of all
// others it passes only so many. Whoever has read a node's datagrams, or had an answer from it, has seen its tags and can send them again.

const (
	idBytes     = 16   // 8 random, 4 of this process' tag, 4 of the cluster's
	initialSize = 1200 // bytes at least of what begins a connection; a probe has as many
	singleSize  = 1500 // bytes at most of a single datagram

	shieldAt = 8 // the shield goes up when 1/shieldAt of the buffer is in use

	shieldLook  = 200 * time.Millisecond // between two looks at the buffer while it is down
	shieldEvery = 50 * time.Millisecond  // and while it is up
	shieldQuiet = 2 * time.Second        // without a flood, after which the shield goes down again
	strangers   = 4000                   // datagrams of strangers a second that are let in meanwhile
)

// tagKey makes tags: who does not know it can't find one but by luck.
type tagKey [4]uint32

func newTagKey(b [16]byte) (k tagKey) {
	for i := range k {
		k[i] = binary.BigEndian.Uint32(b[4*i:]) | 1
	}
	return k
}

// clusterTagKey is that of all nodes with a key of probes. A tag says nothing of that key.
func clusterTagKey(probeKey []byte) tagKey {
	mac := hmac.New(sha256.New, probeKey)
	mac.Write([]byte("replicad connection ids 1"))
	return newTagKey([16]byte(mac.Sum(nil)))
}

// tag is what the kernel's program computes too.
func (k tagKey) tag(random []byte) uint32 {
	h := (binary.BigEndian.Uint32(random) + k[0]) * k[1]
	h ^= h >> 15
	h = (h + binary.BigEndian.Uint32(random[4:])) * k[2]
	h ^= h >> 13
	h *= k[3]
	return h ^ h>>16
}

// tagger makes connection ids and nonces, and knows its own.
type tagger struct {
	own  tagKey
	keys func() [][]byte // Config.ProbeKeys
}

func newTagger(keys func() [][]byte) tagger {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return tagger{newTagKey(b), keys}
}

// GenerateConnectionID is quic-go's.
func (t tagger) GenerateConnectionID() (quic.ConnectionID, error) {
	var b [idBytes]byte
	if _, err := rand.Read(b[:8]); err != nil {
		return quic.ConnectionID{}, err
	}
	binary.BigEndian.PutUint32(b[8:], t.own.tag(b[:]))
	binary.BigEndian.PutUint32(b[12:], clusterTagKey(t.keys()[0]).tag(b[:]))
	return quic.ConnectionIDFromBytes(b[:]), nil
}

// ConnectionIDLen is quic-go's.
func (t tagger) ConnectionIDLen() int { return idBytes }

// newNonce makes one that the shield of a peer with this key passes.
func newNonce(key []byte) (n nonce) {
	_, _ = rand.Read(n[:]) // never fails
	binary.BigEndian.PutUint32(n[8:], clusterTagKey(key).tag(n[:]))
	return n
}

// program is what the kernel runs for each datagram: it passes those with a tag, and of the others a share of let/2^32.
func (t tagger) program(let uint32) []unix.SockFilter {
	const (
		short   = iota // labels: a datagram of 1-RTT, or no QUIC packet
		own            // the words in scratch memory against this process' key
		unknown        // it belongs to no connection
		initial        // one that may begin a connection
		cluster        // the words against the cluster's keys
		stranger
	)
	const (
		longHeader = 0x80
		random     = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
	)
	var p assembler
	p.length()
	p.unless(unix.BPF_JGE, 6+idBytes, stranger) // a load beyond the end would drop it
	p.load(unix.BPF_B|unix.BPF_ABS, 0)
	p.unless(unix.BPF_JSET, longHeader, short)
	p.load(unix.BPF_B|unix.BPF_ABS, 5)
	p.unless(unix.BPF_JEQ, idBytes, unknown)
	p.keep(unix.BPF_ABS, 6, 10, 14)
	p.jump(own)
	p.label(short)
	p.keep(unix.BPF_ABS, 1, 5, 9)
	p.label(own)
	p.passTagged(t.own)

	p.label(unknown)
	p.length()
	p.unless(unix.BPF_JGE, initialSize, stranger)
	p.load(unix.BPF_W|unix.BPF_ABS, 0)
	p.unless(unix.BPF_JEQ, binary.BigEndian.Uint32(probeMagic[:]), initial)
	p.keep(unix.BPF_ABS, offNonce, offNonce+4, offNonce+8)
	p.jump(cluster)
	p.label(initial)
	p.load(unix.BPF_B|unix.BPF_ABS, 0)
	p.unless(unix.BPF_JSET, longHeader, stranger)
	p.load(unix.BPF_B|unix.BPF_ABS, 5)
	p.op(unix.BPF_MISC|unix.BPF_TAX, 0) // the source's id follows the destination's, whose length is its client's choice
	p.load(unix.BPF_B|unix.BPF_IND, 6)
	p.unless(unix.BPF_JEQ, idBytes, stranger)
	p.keep(unix.BPF_IND, 7, 11, 19)
	p.label(cluster)
	for _, key := range t.keys() {
		p.passTagged(clusterTagKey(key))
	}

	p.label(stranger)
	p.length()
	p.branch(unix.BPF_JGT, singleSize, 3, 0) // coalesced: 64 datagrams of a flood would be let in as one
	p.op(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, random)
	p.branch(unix.BPF_JGE, let, 1, 0)
	p.op(unix.BPF_RET|unix.BPF_K, math.MaxUint32)
	p.op(unix.BPF_RET|unix.BPF_K, 0)
	return p.done()
}

// raise puts the program before a socket, in place of an earlier one.
func (t tagger) raise(udp *net.UDPConn, let uint32) error {
	p := t.program(let)
	return control(udp, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]})
	})
}

func lower(udp *net.UDPConn) error {
	return control(udp, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
}

func control(udp *net.UDPConn, fn func(fd int) error) error {
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// sample is what the kernel says of a socket.
type sample struct {
	queued, room uint32 // bytes of the receive buffer
	dropped      uint32 // datagrams so far, the filter's too; it wraps
}

func sampleOf(udp *net.UDPConn) (s sample, err error) {
	var info [unix.SK_MEMINFO_VARS]uint32
	size := uint32(unsafe.Sizeof(info))
	err = control(udp, func(fd int) error {
		_, _, no := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
		if no != 0 {
			return no
		}
		return nil
	})
	return sample{queued: info[unix.SK_MEMINFO_RMEM_ALLOC], room: info[unix.SK_MEMINFO_RCVBUF], dropped: info[unix.SK_MEMINFO_DROPS]}, err
}

// shield decides from samples, each shieldEvery after the last, what share of strangers is let in.
type shield struct {
	let   uint32 // of 2^32; 0: the shield is down and all are
	last  uint32 // dropped, at the last sample
	quiet time.Duration
}

// firstLet is the share before the flood is measured.
const firstLet = math.MaxUint32 / 64

func (s *shield) next(now sample) {
	dropped := now.dropped - s.last
	s.last = now.dropped
	full := uint64(now.queued)*shieldAt > uint64(now.room)
	if s.let == 0 {
		if full {
			s.let, s.quiet = firstLet, 0
		}
		return
	}
	kept := 1 - float64(s.let)/(1<<32) // of all strangers so many are dropped
	arrive := float64(dropped) / kept * float64(time.Second/shieldEvery)
	switch {
	case full:
		s.let, s.quiet = max(s.let/4, 1), 0
	case arrive > strangers:
		s.let, s.quiet = uint32(strangers/arrive*(1<<32)/2)+1, 0 // half of them, so that the measure stays one
	default:
		if s.quiet += shieldEvery; s.quiet >= shieldQuiet {
			*s = shield{last: s.last}
		}
	}
}

// guard watches the port until ctx ends, and raises and lowers its shield.
func (e *Endpoint) guard(ctx context.Context) {
	look := time.NewTimer(shieldLook)
	defer look.Stop()
	var s shield
	var said time.Time // when a flood was last logged
	if now, err := sampleOf(e.udp); err == nil {
		s.last = now.dropped
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		now, err := sampleOf(e.udp)
		was := s.let
		if err == nil {
			s.next(now)
		}
		next := shieldLook
		if s.let != 0 {
			next = shieldEvery
		}
		look.Reset(next)
		switch {
		case err == nil && s.let == was:
			continue
		case err == nil && s.let == 0:
			err = lower(e.udp)
		case err == nil:
			if err = e.ids.raise(e.udp, s.let); err == nil && was == 0 && time.Since(said) > logEvery {
				said = time.Now()
				e.cfg.Logf("UDP %s: a flood of datagrams that belong to no connection fills the receive buffer: most are dropped until it ends; only nodes of this cluster connect without delay", e.cfg.Addr)
			}
		}
		if err != nil { // closed; or a kernel that can't: the port is as it was
			if ctx.Err() == nil {
				e.cfg.Logf("UDP %s is not shielded against floods: %v", e.cfg.Addr, err)
			}
			return
		}
	}
}
