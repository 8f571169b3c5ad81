package netfault

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// boundPorts knows which datagram ports of the host somebody has, without touching them: a packet would be the daemon's to explain.
type boundPorts struct {
	mu    sync.Mutex // guards the rest
	at    time.Time
	ports map[netip.AddrPort]bool
}

// has tells whether a socket is bound to the address. Where the host does not say, it has none.
func (b *boundPorts) has(addr netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) >= lookAgain/2 { // many ports may wait at once
		text, err := os.ReadFile("/proc/net/udp")
		if err != nil {
			return false
		}
		b.at, b.ports = time.Now(), parsePorts(string(text))
	}
	return b.ports[addr] || b.ports[netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port())]
}

// parsePorts reads /proc/net/udp: the second word of each line is a local address, the IP in the host's byte order.
func parsePorts(text string) map[netip.AddrPort]bool {
	ports := map[netip.AddrPort]bool{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		ip, port, _ := strings.Cut(words[1], ":")
		b, err := hex.DecodeString(ip)
		number, bad := strconv.ParseUint(port, 16, 16)
		if err != nil || bad != nil || len(b) != 4 {
			continue // the heading
		}
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], binary.NativeEndian.Uint32(b))
		ports[netip.AddrPortFrom(netip.AddrFrom4(a), uint16(number))] = true
	}
	return ports
}
