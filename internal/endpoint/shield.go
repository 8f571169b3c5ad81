package endpoint

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"math"
	"net"
	"time"
	"unsafe"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"
)

// A port that strangers flood loses the datagrams of peers too, since all of them wait in one buffer of the kernel. So the connection ids
// that this node hands out carry a tag, and while the buffer fills up the kernel lets in every datagram with a right one, and of all others
// only so many. A stranger has never seen an id; a peer that has is one who holds a certificate, or stands on the way between two nodes.

const (
	idBytes  = 12 // 8 random, 4 of the tag
	shieldAt = 8  // the shield goes up when 1/shieldAt of the buffer is in use

	shieldEvery = 50 * time.Millisecond
	shieldQuiet = 2 * time.Second // without a flood, after which the shield goes down again
	strangers   = 4000            // datagrams of strangers a second that are let in meanwhile
)

// tagger hands out connection ids and knows its own.
type tagger struct{ k [4]uint32 }

func newTagger() (t tagger) {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	for i := range t.k {
		t.k[i] = binary.BigEndian.Uint32(b[4*i:]) | 1
	}
	return t
}

// tag is what the kernel's program computes too: who does not know the key can't find one but by luck.
func (t tagger) tag(a, b uint32) uint32 {
	h := (a + t.k[0]) * t.k[1]
	h ^= h >> 15
	h = (h + b) * t.k[2]
	h ^= h >> 13
	h *= t.k[3]
	return h ^ h>>16
}

// GenerateConnectionID is quic-go's.
func (t tagger) GenerateConnectionID() (quic.ConnectionID, error) {
	var b [idBytes]byte
	if _, err := rand.Read(b[:8]); err != nil {
		return quic.ConnectionID{}, err
	}
	binary.BigEndian.PutUint32(b[8:], t.tag(binary.BigEndian.Uint32(b[:]), binary.BigEndian.Uint32(b[4:])))
	return quic.ConnectionIDFromBytes(b[:]), nil
}

// ConnectionIDLen is quic-go's.
func (t tagger) ConnectionIDLen() int { return idBytes }

// program is what the kernel runs for each datagram: those with a tag are let in, and of the others a share of let/2^32. It sees the UDP
// header's 8 bytes first. The destination's id follows the first byte of a short header, and version and length in a long one.
func (t tagger) program(let uint32) []unix.SockFilter {
	const (
		udpHeader = 8
		random    = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM
		all       = 0xffffffff
		first     = 0 // words of scratch memory
		second    = 1
		third     = 2
	)
	var p []unix.SockFilter
	op := func(code int, k uint32) { p = append(p, unix.SockFilter{Code: uint16(code), K: k}) }
	jump := func(code int, k uint32, yes, no uint8) {
		p = append(p, unix.SockFilter{Code: uint16(code), Jt: yes, Jf: no, K: k})
	}
	keep := func(offset uint32, to uint32) {
		op(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, udpHeader+offset)
		op(unix.BPF_ST, to)
	}
	fold := func(shift uint32) { // A ^= A >> shift
		op(unix.BPF_MISC|unix.BPF_TAX, 0)
		op(unix.BPF_ALU|unix.BPF_RSH|unix.BPF_K, shift)
		op(unix.BPF_ALU|unix.BPF_XOR|unix.BPF_X, 0)
	}
	var toStranger, toCheck []int // jumps whose ends are not known yet
	op(unix.BPF_LD|unix.BPF_W|unix.BPF_LEN, 0)
	toStranger = append(toStranger, len(p)) // it is too short for an id: a load beyond the end would drop it
	jump(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, udpHeader+6+idBytes, 0, 0)
	op(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, udpHeader)
	jump(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, 0x80, 7, 0) // a long header
	keep(1, first)
	keep(5, second)
	keep(9, third)
	toCheck = append(toCheck, len(p))
	op(unix.BPF_JMP|unix.BPF_JA, 0)
	op(unix.BPF_LD|unix.BPF_B|unix.BPF_ABS, udpHeader+5)
	toStranger = append(toStranger, len(p))
	jump(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, idBytes, 0, 0)
	keep(6, first)
	keep(10, second)
	keep(14, third)

	check := len(p)
	op(unix.BPF_LD|unix.BPF_MEM, first)
	op(unix.BPF_ALU|unix.BPF_ADD|unix.BPF_K, t.k[0])
	op(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, t.k[1])
	fold(15)
	op(unix.BPF_LDX|unix.BPF_MEM, second)
	op(unix.BPF_ALU|unix.BPF_ADD|unix.BPF_X, 0)
	op(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, t.k[2])
	fold(13)
	op(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, t.k[3])
	fold(16)
	op(unix.BPF_LDX|unix.BPF_MEM, third)
	jump(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_X, 0, 0, 1)
	op(unix.BPF_RET|unix.BPF_K, all)

	stranger := len(p)
	op(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, random)
	jump(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, let, 1, 0)
	op(unix.BPF_RET|unix.BPF_K, all)
	op(unix.BPF_RET|unix.BPF_K, 0)
	for _, i := range toStranger {
		p[i].Jf = uint8(stranger - i - 1)
	}
	for _, i := range toCheck {
		p[i].K = uint32(check - i - 1)
	}
	return p
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
	tick := time.NewTicker(shieldEvery)
	defer tick.Stop()
	var s shield
	var said time.Time // when a flood was last logged
	if now, err := sampleOf(e.udp); err == nil {
		s.last = now.dropped
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := sampleOf(e.udp)
		was := s.let
		if err == nil {
			s.next(now)
		}
		switch {
		case err == nil && s.let == was:
			continue
		case err == nil && s.let == 0:
			err = lower(e.udp)
		case err == nil:
			if err = e.ids.raise(e.udp, s.let); err == nil && was == 0 && time.Since(said) > logEvery {
				said = time.Now()
				e.cfg.Logf("UDP %s: a flood of datagrams that belong to no connection fills the receive buffer: most are dropped until it ends; new connections take longer", e.cfg.Addr)
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
