package endpoint

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// controlOf is a control message as the kernel writes it.
func controlOf(level, kind int32, body []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(body)))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(len(body))))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	copy(b[unix.CmsgLen(0):], body)
	return b
}

func sizeOf(n uint32) []byte {
	return controlOf(unix.IPPROTO_UDP, unix.UDP_GRO, binary.NativeEndian.AppendUint32(nil, n))
}

// room is a message as quic-go makes it.
func room() ipv4.Message {
	return ipv4.Message{Buffers: [][]byte{make([]byte, 1452)}, OOB: make([]byte, 128)}
}

// cutAll hands out all that one read brought.
func cutAll(from *ipv4.Message) (sizes []int, all []byte, last ipv4.Message) {
	for off := 0; ; {
		to := room()
		if off = cut(&to, from, off); off == 0 {
			return sizes, all, last
		}
		sizes, all, last = append(sizes, to.N), append(all, to.Buffers[0][:to.N]...), to
		if off >= from.N {
			return sizes, all, last
		}
	}
}

func TestCut(t *testing.T) {
	ecn := controlOf(unix.IPPROTO_IP, unix.IP_TOS, []byte{1})
	payload := bytes.Repeat([]byte("0123456789"), 300)
	for name, c := range map[string]struct {
		n       int
		control []byte
		sizes   []int
		hands   bool // the control messages on
	}{
		"one datagram":           {1200, ecn, []int{1200}, true},
		"a shorter last":         {2500, append(bytes.Clone(ecn), sizeOf(1200)...), []int{1200, 1200, 100}, true},
		"a whole last":           {2400, append(sizeOf(1200), ecn...), []int{1200, 1200}, true},
		"larger than what came":  {300, sizeOf(1200), []int{300}, true},
		"a size of nothing":      {300, sizeOf(0), []int{300}, true},
		"a negative size":        {300, sizeOf(1 << 31), []int{300}, true},
		"no datagram":            {0, ecn, nil, false},
		"too long for a message": {3000, sizeOf(2000), []int{1452, 1000}, true},
		"cut control messages":   {1200, ecn[:5], []int{1200}, false},
	} {
		t.Run(name, func(t *testing.T) {
			from := ipv4.Message{Buffers: [][]byte{payload}, OOB: c.control, N: c.n, NN: len(c.control), Addr: &net.UDPAddr{Port: 7}}
			sizes, _, last := cutAll(&from)
			if len(sizes) != len(c.sizes) {
				t.Fatalf("%v, want %v", sizes, c.sizes)
			}
			for i := range sizes {
				if sizes[i] != c.sizes[i] {
					t.Fatalf("%v, want %v", sizes, c.sizes)
				}
			}
			if len(sizes) > 0 && (last.NN > 0) != c.hands {
				t.Errorf("%d bytes of control messages were handed on", last.NN)
			}
			if len(sizes) > 0 && last.Addr != from.Addr {
				t.Errorf("from %v", last.Addr)
			}
		})
	}
	from := ipv4.Message{Buffers: [][]byte{payload}, N: 2000}
	to := room()
	if cut(&to, &from, 0); to.N != 1452 || to.Flags&unix.MSG_TRUNC == 0 {
		t.Errorf("%d bytes, flags %#x: a datagram that is cut off says so", to.N, to.Flags)
	}
}

// FuzzCut: whatever the kernel writes beside the bytes, each of these is handed out once, in order.
func FuzzCut(f *testing.F) {
	f.Add(uint16(2500), sizeOf(1200))
	f.Add(uint16(1), []byte{})
	f.Add(uint16(9000), append(sizeOf(1452), controlOf(unix.IPPROTO_IP, unix.IP_TOS, []byte{1})...))
	f.Fuzz(func(t *testing.T, n uint16, control []byte) {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(i * 7)
		}
		size, _ := segments(control)
		from := ipv4.Message{Buffers: [][]byte{payload}, OOB: control, N: int(n), NN: len(control)}
		sizes, all, _ := cutAll(&from)
		if size == 0 {
			size = int(n)
		}
		if size <= 1452 && !bytes.Equal(all, payload) {
			t.Fatalf("%d of %d bytes in %d datagrams of %d", len(all), n, len(sizes), size)
		}
	})
}

const (
	segmentSize = 1200
	ect0        = 2
)

// coalescedPair is a socket that reads what is coalesced, as net's and as quic-go's, and one whose writes the kernel takes for datagrams of
// segmentSize, marked with ect0.
func coalescedPair(t *testing.T) (in, out *net.UDPConn, c *coalescing) {
	t.Helper()
	in, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close() })
	c, ok := coalesce(in).(*coalescing)
	if !ok {
		t.Skip("this kernel has no UDP_GRO")
	}
	out, err = net.DialUDP("udp4", nil, in.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	for _, o := range []struct {
		conn               *net.UDPConn
		level, name, value int
	}{{in, unix.IPPROTO_IP, unix.IP_RECVTOS, 1}, {out, unix.IPPROTO_IP, unix.IP_TOS, ect0}, {out, unix.IPPROTO_UDP, unix.UDP_SEGMENT, segmentSize}} {
		if err := control(o.conn, func(fd int) error { return unix.SetsockoptInt(fd, o.level, o.name, o.value) }); err != nil {
			t.Skipf("this kernel lets no option %d of level %d be set: %v", o.name, o.level, err)
		}
	}
	if err := in.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return in, out, c
}

// readSome reads as quic-go does.
func readSome(t *testing.T, c *coalescing) (got []byte, sizes []int) {
	t.Helper()
	ms := make([]ipv4.Message, 8)
	for i := range ms {
		ms[i] = room()
	}
	n, err := c.ReadBatch(ms, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms[:n] {
		got, sizes = append(got, m.Buffers[0][:m.N]...), append(sizes, m.N)
		if !bytes.Contains(m.OOB[:m.NN], controlOf(unix.IPPROTO_IP, unix.IP_TOS, []byte{ect0})[:unix.CmsgLen(1)]) {
			t.Errorf("a datagram of %d bytes has no ECN: %x", m.N, m.OOB[:m.NN])
		}
	}
	return got, sizes
}

// TestReadsCoalesced: what a sender gave to the kernel at once, the kernel hands over at once, and quic-go sees single datagrams with their ECN.
func TestReadsCoalesced(t *testing.T) {
	_, out, c := coalescedPair(t)
	sent := make([]byte, 20*segmentSize+300)
	for i := range sent {
		sent[i] = byte(i / segmentSize)
	}
	if _, err := out.Write(sent); err != nil {
		t.Fatal(err)
	}
	var got []byte
	var sizes []int
	most := 0
	for len(got) < len(sent) {
		b, s := readSome(t, c)
		got, sizes = append(got, b...), append(sizes, s...)
		for _, m := range c.came {
			most = max(most, m.N)
		}
	}
	if !bytes.Equal(got, sent) || len(sizes) != 21 || sizes[20] != 300 {
		t.Errorf("datagrams of %v bytes", sizes)
	}
	if most <= segmentSize {
		t.Errorf("no two of %d datagrams were read together", len(sizes))
	}
}

// TestCoalesceFallsBack: a socket whose kernel refuses the option is used as it is.
func TestCoalesceFallsBack(t *testing.T) {
	closed, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if c := coalesce(closed); c != quic.OOBCapablePacketConn(closed) {
		t.Errorf("%T, want the socket", c)
	}
}
