package membership

import (
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// transport is memberlist's own, except that connections come from the address that datagrams come from: a host with several
// addresses must be known to its peers, and to what stands between them, by one.
type transport struct {
	*memberlist.NetTransport
	from *net.TCPAddr // nil: bound to all addresses, so the kernel chooses
}

// listen binds the ports. Where the port is left to the kernel, one is tried until it is free for UDP and TCP.
func listen(c *memberlist.Config) (*transport, error) {
	tries := 1
	if c.BindPort == 0 {
		tries = 10
	}
	var t transport
	var err error
	for range tries {
		t.NetTransport, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{c.BindAddr}, BindPort: c.BindPort, Logger: c.Logger})
		if err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if c.BindPort == 0 {
		c.BindPort = t.GetAutoBindPort()
		if c.AdvertiseAddr == "" {
			c.AdvertisePort = c.BindPort
		}
	}
	if ip := net.ParseIP(c.BindAddr); !ip.IsUnspecified() {
		t.from = &net.TCPAddr{IP: ip}
	}
	return &t, nil
}

// DialAddressTimeout is memberlist's for streams.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// DialTimeout is memberlist's for streams to a peer whose name it does not know.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout}
	if t.from != nil {
		d.LocalAddr = t.from
	}
	return d.Dial("tcp", addr)
}
