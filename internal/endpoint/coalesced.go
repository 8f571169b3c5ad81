package endpoint

import (
	"encoding/binary"
	"net"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	readsAtOnce = 8        // of one call: as many datagrams as quic-go asks for
	readRoom    = 64 << 10 // what the kernel coalesces at most: an IP packet's length
	readControl = 128      // of control messages, as quic-go has for one datagram
)

// coalescing is a UDP socket whose kernel hands over datagrams of one sender together (UDP_GRO): a dozen for one walk through the network stack
// and one read. quic-go finds ReadBatch and reads with it; what it sends and sets goes to the socket as before. Only one goroutine may read.
type coalescing struct {
	*net.UDPConn
	in   *ipv4.PacketConn
	came []ipv4.Message // room for one call
	left []ipv4.Message // of came, not handed out; the first may be so in part
	off  int            // bytes of the first that are
}

var _ quic.OOBCapablePacketConn = (*coalescing)(nil)

// coalesce is the socket with UDP_GRO on, or as it is where the kernel has no such thing (before Linux 5.0).
func coalesce(udp *net.UDPConn) quic.OOBCapablePacketConn {
	if control(udp, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) }) != nil {
		return udp
	}
	c := &coalescing{UDPConn: udp, in: ipv4.NewPacketConn(udp), came: make([]ipv4.Message, readsAtOnce)} // for IPv6 too
	for i := range c.came {
		c.came[i].Buffers = [][]byte{make([]byte, readRoom)}
		c.came[i].OOB = make([]byte, readControl)
	}
	return c
}

// ReadBatch hands out one datagram a message, each with the control messages (ECN, destination) that all of its read have: the kernel coalesces
// none that differ in them.
func (c *coalescing) ReadBatch(ms []ipv4.Message, flags int) (n int, err error) {
	for n == 0 { // empty datagrams are nobody's
		if len(c.left) == 0 {
			came, err := c.in.ReadBatch(c.came, flags)
			if err != nil {
				return 0, err
			}
			c.left = c.came[:came]
		}
		for n < len(ms) && len(c.left) > 0 {
			if c.off = cut(&ms[n], &c.left[0], c.off); c.off > 0 {
				n++
			}
			if c.off == 0 || c.off >= c.left[0].N {
				c.left, c.off = c.left[1:], 0
			}
		}
	}
	return n, nil
}

// cut copies the datagram that begins at off in what was read, and returns where the next one begins: 0 where there is none at off. A datagram
// longer than its message's buffer is cut off, as the kernel does.
func cut(to, from *ipv4.Message, off int) int {
	size, control := segments(from.OOB[:from.NN])
	if size == 0 {
		size = from.N
	}
	b := from.Buffers[0][off:min(off+size, from.N)]
	to.N = copy(to.Buffers[0], b)
	if to.NN = 0; len(control) <= len(to.OOB) { // half a control message is worse than none
		to.NN = copy(to.OOB, control)
	}
	to.Addr, to.Flags = from.Addr, from.Flags
	if to.N < len(b) {
		to.Flags |= unix.MSG_TRUNC
	}
	if len(b) == 0 {
		return 0
	}
	return off + len(b)
}

// segments is the size of the datagrams that were coalesced, the last of which may be shorter; 0 where it is one. It returns the control
// messages to hand on: none where the kernel's can't be read, since quic-go gives up a socket for those.
func segments(control []byte) (size int, good []byte) {
	for rest := control; len(rest) > 0; {
		if len(rest) < unix.SizeofCmsghdr { // the parser would read on behind it
			return size, nil
		}
		header, body, after, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			return size, nil
		}
		if header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(body) >= 4 {
			size = max(0, int(int32(binary.NativeEndian.Uint32(body))))
		}
		rest = after
	}
	return size, control
}
