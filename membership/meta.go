package membership

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/replicad/replicad/replica"
)

// What a node says about itself in gossip: version u8, flags u8, incarnation u64 little-endian, QUIC address. A later version
// may only append: this one reads its own fields of it, with the address's length given by a byte before it.
const (
	metaVersion  = 1
	metaHeader   = 11
	maxMeta      = 512 // memberlist's limit
	maxAddr      = 255
	flagLeaving  = 1 << 0 // the node goes down on purpose: its end is no evidence of a fault
	knownFlags   = flagLeaving
	offAddrBytes = 10
)

type meta struct {
	incarnation replica.NodeIncarnation
	leaving     bool
	addr        string
}

func appendMeta(dst []byte, m meta) []byte {
	var flags byte
	if m.leaving {
		flags |= flagLeaving
	}
	dst = append(dst, metaVersion, flags)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.incarnation))
	addr := m.addr[:min(len(m.addr), maxAddr)]
	return append(append(dst, byte(len(addr))), addr...)
}

// parseMeta reads what another node, or somebody in its name, says.
func parseMeta(b []byte) (meta, error) {
	if len(b) < metaHeader || len(b) > maxMeta {
		return meta{}, fmt.Errorf("gossip meta of %d bytes: want %d to %d", len(b), metaHeader, maxMeta)
	}
	if b[0] < metaVersion {
		return meta{}, fmt.Errorf("gossip meta of version %d: this program reads %d and later", b[0], metaVersion)
	}
	end := metaHeader + int(b[offAddrBytes])
	if end > len(b) || b[0] == metaVersion && (end < len(b) || b[1]&^knownFlags != 0) {
		return meta{}, fmt.Errorf("gossip meta of %d bytes, flags %#x, with an address of %d", len(b), b[1], b[offAddrBytes])
	}
	m := meta{
		incarnation: replica.NodeIncarnation(binary.LittleEndian.Uint64(b[2:])),
		leaving:     b[1]&flagLeaving != 0,
		addr:        string(b[metaHeader:end]),
	}
	return m, checkAddr(m.addr)
}

// checkAddr lets only a printable host:port through: it is dialed, logged and shown.
func checkAddr(addr string) error {
	if len(addr) > maxAddr {
		return fmt.Errorf("address of %d bytes: at most %d", len(addr), maxAddr)
	}
	for i := range len(addr) {
		if addr[i] <= ' ' || addr[i] > '~' {
			return fmt.Errorf("address %q: byte %#x at %d", addr, addr[i], i)
		}
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("address %q: want host:port", addr)
	}
	return nil
}
