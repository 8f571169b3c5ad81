package membership

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	maxDatagram   = 2 << 10 // more than any that memberlist sends with the settings of this package
	datagramsKept = 2 << 20 // by the kernel, in bytes
)

// transport is memberlist's way to the network: datagrams of a size that they can have, streams that have shown the cluster's key, and
// connections from the address that datagrams come from: a host with several addresses must be known to its peers, and to what stands
// between them, by one.
type transport struct {
	doors
	tcp     *net.TCPListener
	udp     *net.UDPConn
	packets chan *memberlist.Packet
	from    *net.TCPAddr // nil: bound to all addresses, so the kernel chooses
	stop    func()
}

// listen binds the ports. Where the port is left to the kernel, one is tried until it is free for UDP and TCP. member tells whether an
// address is one of a member.
func listen(c *memberlist.Config, member func(netip.Addr) bool) (*transport, error) {
	tries := 1
	if c.BindPort == 0 {
		tries = 10
	}
	t := &transport{packets: make(chan *memberlist.Packet)}
	var err error
	for range tries {
		if err = t.bind(c); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if c.BindPort == 0 {
		c.BindPort = t.port()
		if c.AdvertiseAddr == "" {
			c.AdvertisePort = c.BindPort
		}
	}
	if ip := net.ParseIP(c.BindAddr); !ip.IsUnspecified() {
		t.from = &net.TCPAddr{IP: ip}
	}
	t.doors.open(c.Label, c.Keyring, c.Logger, member)
	t.stop = sync.OnceFunc(t.shutdown)
	t.runs.Go(func() { t.accept(t.tcp) })
	t.runs.Go(func() { t.hear(c.Logger) })
	return t, nil
}

func (t *transport) bind(c *memberlist.Config) (err error) {
	ip := net.ParseIP(c.BindAddr)
	if t.tcp, err = net.ListenTCP("tcp", &net.TCPAddr{IP: ip, Port: c.BindPort}); err != nil {
		return err
	}
	if t.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: t.port()}); err != nil {
		return errors.Join(err, t.tcp.Close())
	}
	_ = t.udp.SetReadBuffer(datagramsKept) // less is slower, and no error
	return nil
}

func (t *transport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

// hear gives memberlist the datagrams.
func (t *transport) hear(l *log.Logger) {
	buf := make([]byte, maxDatagram+1)
	for {
		n, from, err := t.udp.ReadFrom(buf)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			l.Printf("[ERR] memberlist: a datagram can't be read: %v", err)
			continue
		case n == 0 || n > maxDatagram:
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: append([]byte(nil), buf[:n]...), From: from, Timestamp: time.Now()}:
		case <-t.ended:
			return
		}
	}
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if ip == "" {
		if t.from == nil {
			return nil, 0, errors.New("this node is bound to all addresses: say under which one others reach it")
		}
		return t.from.IP, t.port(), nil
	}
	addr := net.ParseIP(ip)
	if addr == nil {
		return nil, 0, fmt.Errorf("%q is no address", ip)
	}
	if short := addr.To4(); short != nil {
		addr = short
	}
	return addr, port, nil
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteTo(b, to)
	return time.Now(), err
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	if t.from != nil {
		d.LocalAddr = t.from
	}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &answer{Conn: c, opener: &t.opener}, nil
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	t.stop()
	return nil
}

func (t *transport) shutdown() {
	_, _ = t.tcp.Close(), t.udp.Close()
	t.doors.end()
}
