package membership

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/replicad/replicad/replica"
)

// What a node says about itself in gossip: version u8, flags u8, incarnation u64 little-endian, QUIC address, from version 2 on the names of
// its keys. Address and names have their length in a byte before them. A later version may only append: this one reads its own fields of it.
const (
	metaVersion  = 2
	metaNoKeys   = 1 // ends with the address
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
	keys        string
}

func appendMeta(dst []byte, m meta) []byte {
	var flags byte
	if m.leaving {
		flags |= flagLeaving
	}
	dst = append(dst, metaVersion, flags)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(m.incarnation))
	addr := m.addr[:min(len(m.addr), maxAddr)]
	dst = append(append(dst, byte(len(addr))), addr...)
	keys := m.keys[:min(len(m.keys), maxKeyNames)]
	return append(append(dst, byte(len(keys))), keys...)
}

// parseMeta reads what another node, or somebody in its name, says.
func parseMeta(b []byte) (meta, error) {
	if len(b) < metaHeader || len(b) > maxMeta {
		return meta{}, fmt.Errorf("gossip meta of %d bytes: want %d to %d", len(b), metaHeader, maxMeta)
	}
	if b[0] < metaNoKeys {
		return meta{}, fmt.Errorf("gossip meta of version %d: this program reads %d and later", b[0], metaNoKeys)
	}
	end := metaHeader + int(b[offAddrBytes])
	keys, whole := "", end <= len(b)
	if whole && b[0] >= metaVersion {
		if whole = end < len(b) && end+1+int(b[end]) <= len(b); whole {
			keys = string(b[end+1 : end+1+int(b[end])])
		}
	}
	if whole && b[0] <= metaVersion {
		rest := len(b) - end
		if b[0] == metaVersion {
			rest -= 1 + len(keys)
		}
		whole = rest == 0 && b[1]&^knownFlags == 0
	}
	if !whole {
		return meta{}, fmt.Errorf("gossip meta of version %d, %d bytes, flags %#x, with an address of %d", b[0], len(b), b[1], b[offAddrBytes])
	}
	if err := checkKeyNames(keys); err != nil {
		return meta{}, err
	}
	m := meta{
		incarnation: replica.NodeIncarnation(binary.LittleEndian.Uint64(b[2:])),
		leaving:     b[1]&flagLeaving != 0,
		addr:        string(b[metaHeader:end]),
		keys:        keys,
	}
	return m, checkAddr(m.addr)
}

// maxKeyNames bounds the names of a node's keys, with what stands between them, in bytes.
const maxKeyNames = 64

// checkKeyNames lets only printable names through: they are shown.
func checkKeyNames(s string) error {
	if len(s) > maxKeyNames {
		return fmt.Errorf("names of keys of %d bytes: at most %d", len(s), maxKeyNames)
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return fmt.Errorf("names of keys %q: byte %#x at %d", s, s[i], i)
		}
	}
	return nil
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
