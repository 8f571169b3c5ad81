package endpoint

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// quic-go prints its own warning about socket buffers to the standard logger; this package reports them through Logf instead.
var muteBufferWarning = sync.OnceFunc(func() { os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") })

// A port that the kernel chooses is chosen again until its number is free for TCP too, this many times.
const portTries = 16

// bind binds a UDP port and the TCP port of the same number, and notes what will be slow. TCP is nil where a port that was asked for is
// taken there. A number that the kernel chose for UDP may be that of anybody's TCP connection: it is given back for another one, as nobody
// has asked for it, and with it a node would be left to QUIC for as long as it runs.
func bind(addr string, listenTCP func(*net.UDPAddr, func(string, ...any)) net.Listener) (*net.UDPConn, net.Listener, []string, error) {
	for try := 1; ; try++ {
		var notes []string
		note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
		udp, err := listenUDP(addr, note)
		if err != nil {
			return nil, nil, nil, err
		}
		tcp := listenTCP(udp.LocalAddr().(*net.UDPAddr), note)
		if tcp != nil || try == portTries || !anyPort(addr) {
			return udp, tcp, notes, nil
		}
		if err := udp.Close(); err != nil {
			return nil, nil, nil, fmt.Errorf("give back UDP %s, whose TCP port is taken: %w", udp.LocalAddr(), err)
		}
	}
}

// anyPort says whether an address leaves the port to the kernel.
func anyPort(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && (port == "0" || port == "")
}

func closeListener(ln net.Listener) error {
	if ln == nil {
		return nil
	}
	return ln.Close()
}

// listenUDP binds the node's port with socket buffers as large as the host allows.
func listenUDP(addr string, logf func(string, ...any)) (*net.UDPConn, error) {
	muteBufferWarning()
	udp, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("endpoint address %q: %w: want host:port of this node", addr, err)
	}
	conn, err := net.ListenUDP("udp", udp)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("UDP address %s is in use: another daemon or program has it: stop that one or configure another address: %w", addr, err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("UDP address %s is not one of this host's: configure one that is: %w", addr, err)
	case err != nil:
		return nil, fmt.Errorf("listen on UDP %s: %w", addr, err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("listen on UDP %s: %w", addr, err)
	}
	err = raw.Control(func(fd uintptr) {
		growBuffer(int(fd), unix.SO_RCVBUF, unix.SO_RCVBUFFORCE, "receive", "net.core.rmem_max", logf)
		growBuffer(int(fd), unix.SO_SNDBUF, unix.SO_SNDBUFFORCE, "send", "net.core.wmem_max", logf)
	})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("listen on UDP %s: %w", addr, err)
	}
	return conn, nil
}

func growBuffer(fd, option, force int, what, sysctl string, logf func(string, ...any)) {
	// The forced form passes the host's limit but needs CAP_NET_ADMIN; the plain one is clipped to the limit.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, socketBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, socketBuffer) // judged by what is read back
	}
	got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if got /= 2; err == nil && got < socketBuffer { // the kernel reports twice what it grants
		logf("UDP %s buffer is clipped to %d of %d bytes: bursts will be lost and transfers slower: raise %s to %d", what, got, socketBuffer, sysctl, socketBuffer)
	}
}
