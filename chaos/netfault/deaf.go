package netfault

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// deafen has the kernel drop what comes to a listener from some senders, or from all where these are nil: as across a cut, their
// connects are neither taken nor refused. Without it the kernel would take them before this program is asked.
func deafen(l *net.TCPListener, all bool, senders []netip.Addr) error {
	const (
		pass   = 0xffffffff
		source = 0xfff00000 + 12 // SKF_NET_OFF + the source address in the IPv4 header
	)
	verdict := uint32(pass)
	if all {
		verdict = 0
	}
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: source}}
	for _, ip := range senders { // each test steps over its own drop
		addr := ip.As4()
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(addr[:])},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: verdict})
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	}); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("filter of %v: %w", l.Addr(), failed)
	}
	return nil
}

// deafen follows the rules; the caller has n.mu.
func (n *Network) deafen() error {
	for _, h := range n.hosts {
		var cut []netip.Addr
		heard := false
		for pair, p := range n.paths {
			switch {
			case pair[1] != h.name:
			case p.severed():
				cut = append(cut, p.from.ip)
			default:
				heard = true
			}
		}
		// A host that no node reaches is off, as far as anybody can tell.
		if err := deafen(h.listener, !heard && len(cut) > 0, cut); err != nil {
			return err
		}
	}
	return nil
}
