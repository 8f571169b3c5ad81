package netfault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	socketBuffer = 4 << 20
	maxDatagram  = 9000 // a jumbo frame's; daemons send 1452 bytes at most
	maxFlows     = 512  // of a port; a daemon has some probes under way
	flowIdle     = 2 * time.Second
	lookAgain    = 20 * time.Millisecond // for a daemon that listens again
)

// listenFrom binds a datagram socket that receives only what comes from one address; port 0 is every port of it. Several
// such sockets share a port, and the kernel tells the senders apart. What comes from a sender without a socket is refused.
func listenFrom(addr, from netip.AddrPort) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return onSocket(raw, func(fd int) error { return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1) })
	}}
	pc, err := config.ListenPacket(context.Background(), "udp4", addr.String())
	if err != nil {
		return nil, err
	}
	conn := pc.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	if err == nil {
		err = onSocket(raw, func(fd int) error {
			return syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()})
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %v for %v: %w", addr, from, err), conn.Close())
	}
	// Clipped to what the host allows, as the daemons' are.
	return conn, errors.Join(conn.SetReadBuffer(socketBuffer), conn.SetWriteBuffer(socketBuffer))
}

func onSocket(raw syscall.RawConn, do func(fd int) error) (err error) {
	if refused := raw.Control(func(fd uintptr) { err = do(int(fd)) }); refused != nil {
		return refused
	}
	return err
}

// port receives what one node sends to another's advertised address, for one service.
type port struct {
	n    *Network
	path *path
	of   func(*host) *service
	back *port

	mu   sync.Mutex // guards conn
	conn *net.UDPConn
}

func (p *port) open() error {
	conn, err := listenFrom(p.of(p.path.to).addr, netip.AddrPortFrom(p.path.from.ip, 0))
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.conn = conn
	p.mu.Unlock()
	if !p.n.keep(conn) {
		return net.ErrClosed
	}
	return nil
}

// refuse gives the socket up, so that the kernel refuses what the node sends, as it does where no daemon has the port. Across
// a cut neither the question nor the refusal would pass.
func (p *port) refuse() {
	if p.path.severed() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.n.drop(p.conn)
		p.conn = nil
	}
}

// run receives until the network is closed.
func (p *port) run() {
	for p.n.life.Err() == nil {
		p.mu.Lock()
		conn := p.conn
		p.mu.Unlock()
		if conn != nil {
			p.receive(conn)
		}
		if p.awaitDaemon() {
			_ = p.open() // another program has the port just now: it is tried again
		}
	}
}

// awaitDaemon waits while the other node's port is to be refused. False: the port is open.
func (p *port) awaitDaemon() bool {
	p.mu.Lock()
	open := p.conn != nil
	p.mu.Unlock()
	if open {
		return false
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-p.n.life.Done():
			return false
		case <-tick.C:
		}
		if p.path.severed() || p.n.bound.has(p.of(p.path.to).listen) {
			return true
		}
	}
}

// receive forwards until the socket is closed. It owns the flows of the sender's other ports.
func (p *port) receive(conn *net.UDPConn) {
	from, to := p.of(p.path.from), p.of(p.path.to)
	forward := func(data []byte) error {
		_, err := from.out.WriteToUDPAddrPort(data, to.listen)
		return err
	}
	flows := map[netip.AddrPort]*flow{}
	buf := make([]byte, maxDatagram+1)
	for {
		size, src, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			p.back.refuse() // what the other node sent here came to a port that nobody has
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil || src.Addr() != p.path.from.ip: // between bind and connect it takes what is not its own
			continue
		case size > maxDatagram: // the rest of it is lost
			p.path.dropped.Add(1)
			continue
		case src == from.listen:
			p.path.pass(buf[:size], forward)
			continue
		}
		f := flows[src]
		if f == nil || f.ended.Load() {
			if f = p.flow(flows, src); f == nil {
				p.path.dropped.Add(1)
				continue
			}
		}
		p.path.pass(buf[:size], f.forward)
	}
}

// flow is what a node sends from a port of its own, such as a probe, and the answers to it.
type flow struct {
	conn  *net.UDPConn // from the sender's IP to the other daemon
	ended atomic.Bool
}

// flow opens one; nil: there are too many, or no port is left.
func (p *port) flow(flows map[netip.AddrPort]*flow, src netip.AddrPort) *flow {
	if len(flows) >= maxFlows {
		for at, f := range flows {
			if f.ended.Load() {
				delete(flows, at)
			}
		}
	}
	if len(flows) >= maxFlows {
		return nil
	}
	from, to := p.of(p.path.from), p.of(p.path.to)
	conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: from.addr.Addr().AsSlice()}, net.UDPAddrFromAddrPort(to.listen))
	if err != nil || !p.n.keep(conn) {
		return nil
	}
	f := &flow{conn: conn}
	flows[src] = f
	p.n.runs.Go(func() {
		p.answers(f, src)
		f.ended.Store(true)
		p.n.drop(conn)
	})
	return f
}

func (f *flow) forward(data []byte) error {
	_, err := f.conn.Write(data)
	return err
}

// answers brings back what the other node says to a flow, until it has been idle.
func (p *port) answers(f *flow, src netip.AddrPort) {
	out := p.of(p.path.to).out
	answer := func(data []byte) error {
		_, err := out.WriteToUDPAddrPort(data, src)
		return err
	}
	buf := make([]byte, maxDatagram+1)
	for {
		if f.conn.SetReadDeadline(time.Now().Add(flowIdle)) != nil {
			return
		}
		size, err := f.conn.Read(buf)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			p.refuse()
			return
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			continue
		case size > maxDatagram:
			p.path.back.dropped.Add(1)
			continue
		}
		p.path.back.pass(buf[:size], answer)
	}
}
