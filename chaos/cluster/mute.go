package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/replicad/replicad/internal/pace"
	"golang.org/x/sys/unix"
)

// Mute makes an address fall silent as a dead host does: datagrams vanish and connection attempts get no answer. Without it
// the loopback interface refuses both at once, which is the sign of a daemon that restarts, not of a lost node.
type Mute struct{ fds []int }

// HoldMute takes the ports over from a process that was just killed, the moment they are free. It waits for as long as
// patience takes on a quiet machine.
func HoldMute(udp, tcp []netip.AddrPort, patience time.Duration) (*Mute, error) {
	m := &Mute{}
	deadline := time.Now().Add(pace.Of(patience))
	for _, a := range udp {
		if err := m.bind(unix.SOCK_DGRAM, a, deadline); err != nil {
			m.Release()
			return nil, err
		}
	}
	for _, a := range tcp {
		if err := m.bind(unix.SOCK_STREAM, a, deadline); err != nil {
			m.Release()
			return nil, err
		}
		if err := m.deafen(m.fds[len(m.fds)-1], a); err != nil {
			m.Release()
			return nil, err
		}
	}
	return m, nil
}

func (m *Mute) bind(kind int, a netip.AddrPort, deadline time.Time) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("silence %v: %w", a, err)
	}
	m.fds = append(m.fds, fd)
	if kind == unix.SOCK_STREAM {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // connections of the dead process may linger
	}
	for err == nil {
		err = unix.Bind(fd, sockaddr(a))
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(deadline) {
			break
		}
		err = nil
		time.Sleep(50 * time.Microsecond) // every answer that the port gives before it is ours tells of a restart
	}
	if err != nil {
		return fmt.Errorf("silence %v: %w", a, err)
	}
	return nil
}

// deafen fills the accept queue of a listening socket, so that the kernel drops further attempts without a word.
func (m *Mute) deafen(fd int, a netip.AddrPort) error {
	if err := unix.Listen(fd, 0); err != nil {
		return fmt.Errorf("silence %v: listen: %w", a, err)
	}
	for range 2 {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("silence %v: %w", a, err)
		}
		m.fds = append(m.fds, c)
		if err := unix.Connect(c, sockaddr(a)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("silence %v: fill its queue: %w", a, err)
		}
	}
	return nil
}

// Release gives the ports back.
func (m *Mute) Release() {
	if m == nil {
		return
	}
	for _, fd := range m.fds {
		_ = unix.Close(fd)
	}
	m.fds = nil
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
