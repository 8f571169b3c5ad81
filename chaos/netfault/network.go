package netfault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Node is a daemon's addresses, each "ip:port" with an IPv4 address of the loopback network.
type Node struct {
	Name                 string
	Addr, GossipAddr     string // what the other nodes dial; the Network binds them
	Listen, GossipListen string // what the daemon binds
}

// Count is what has become of the packets of a path. A piece of a stream counts as a packet.
type Count struct {
	Forwarded, Dropped uint64 // packets
	Bytes              uint64 // forwarded
}

// Network is all paths between some nodes. Its methods are safe for concurrent use.
type Network struct {
	hosts map[string]*host
	paths map[[2]string]*path
	bound boundPorts

	life context.Context // ends with Close
	end  context.CancelFunc
	runs sync.WaitGroup

	mu      sync.Mutex                              // guards what follows, and that rules change one by one
	changed chan struct{}                           // closed and renewed with each change of a rule
	closers map[interface{ Close() error }]struct{} // sockets that block a goroutine; nil once closed
}

// host is a node's two services.
type host struct {
	name         string
	ip           netip.Addr // from which the node sends
	quic, gossip service
	listener     *net.TCPListener // of gossip
}

// service is a pair of addresses of a node.
type service struct {
	addr, listen netip.AddrPort
	out          *net.UDPConn // bound to addr: what the node sends leaves here, and nothing arrives
}

// New binds the advertised addresses and forwards. The seed determines what Shape's losses and jitters will be.
func New(seed uint64, nodes []Node) (_ *Network, err error) {
	n := &Network{hosts: map[string]*host{}, paths: map[[2]string]*path{}, changed: make(chan struct{}), closers: map[interface{ Close() error }]struct{}{}}
	n.life, n.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("netfault: %w", err), n.Close())
		}
	}()
	var hosts []*host
	for _, node := range nodes {
		h, err := newHost(node)
		if err != nil {
			return nil, err
		}
		for _, other := range hosts {
			if other.name == h.name || other.ip == h.ip {
				return nil, fmt.Errorf("nodes %q and %q listen on %v and %v: want names and listening IPs that differ, for the IP tells who sent a packet", other.name, h.name, other.ip, h.ip)
			}
		}
		hosts, n.hosts[h.name] = append(hosts, h), h
	}
	for _, h := range hosts {
		for _, s := range []*service{&h.quic, &h.gossip} {
			// Connected to itself, it takes no packet from anybody, so a port without a daemon can still be refused.
			if s.out, err = listenFrom(s.addr, s.addr); err != nil {
				return nil, err
			}
			n.keep(s.out)
		}
	}
	for _, from := range hosts {
		for _, to := range hosts {
			if from != to {
				n.paths[[2]string{from.name, to.name}] = newPath(seed, from, to)
			}
		}
	}
	if err := n.start(hosts); err != nil {
		return nil, err
	}
	return n, nil
}

func newHost(node Node) (*host, error) {
	h := &host{name: node.Name}
	for _, a := range []struct {
		text string
		to   *netip.AddrPort
	}{{node.Addr, &h.quic.addr}, {node.Listen, &h.quic.listen}, {node.GossipAddr, &h.gossip.addr}, {node.GossipListen, &h.gossip.listen}} {
		ap, err := netip.ParseAddrPort(a.text)
		if err != nil || !ap.Addr().Is4() || !ap.Addr().IsLoopback() || ap.Port() == 0 {
			return nil, fmt.Errorf("node %q: address %q: want 127.x.y.z:port", node.Name, a.text)
		}
		*a.to = ap
	}
	h.ip = h.quic.listen.Addr()
	if h.gossip.listen.Addr() != h.ip {
		return nil, fmt.Errorf("node %q listens on %v and %v: want one IP, by which it is known", node.Name, h.quic.listen, h.gossip.listen)
	}
	return h, nil
}

// start opens every socket before it reads any, so that New fails as a whole.
func (n *Network) start(hosts []*host) error {
	for _, p := range n.paths {
		p.back = n.paths[[2]string{p.to.name, p.from.name}]
	}
	var loops []func()
	for _, p := range n.paths {
		loops = append(loops, func() { p.line.run(n.life) })
		for _, of := range []func(*host) *service{quicOf, gossipOf} {
			port := &port{n: n, path: p, of: of}
			if err := port.open(); err != nil {
				return err
			}
			p.ports = append(p.ports, port)
			loops = append(loops, port.run)
		}
	}
	for _, p := range n.paths {
		for i, port := range p.ports {
			port.back = p.back.ports[i]
		}
	}
	for _, h := range hosts {
		var plain net.ListenConfig
		plain.SetMultipathTCP(false) // the kernel filters no multipath socket
		bound, err := plain.Listen(n.life, "tcp4", h.gossip.addr.String())
		if err != nil {
			return err
		}
		l := bound.(*net.TCPListener)
		n.keep(l)
		h.listener = l
		loops = append(loops, func() { n.accept(h, l) })
	}
	for _, loop := range loops {
		n.runs.Go(loop)
	}
	return nil
}

func quicOf(h *host) *service   { return &h.quic }
func gossipOf(h *host) *service { return &h.gossip }

// Cut loses everything between two nodes, in both directions.
func (n *Network) Cut(a, b string) error {
	return n.change(func(r rule) rule { r.cut = true; return r }, [2]string{a, b}, [2]string{b, a})
}

// CutOneWay loses everything that one node sends another.
func (n *Network) CutOneWay(from, to string) error {
	return n.change(func(r rule) rule { r.cut = true; return r }, [2]string{from, to})
}

// Isolate cuts a node from all others.
func (n *Network) Isolate(name string) error {
	if n.hosts[name] == nil {
		return fmt.Errorf("netfault: no node %q", name)
	}
	return n.change(func(r rule) rule { r.cut = true; return r }, n.pairs(func(p [2]string) bool { return slices.Contains(p[:], name) })...)
}

// Shape loses a share of what one node sends another, 0 to 1, and delays the rest by delay to delay+jitter. It lifts no cut.
func (n *Network) Shape(from, to string, loss float64, delay, jitter time.Duration) error {
	if !(loss >= 0 && loss <= 1) || delay < 0 || jitter < 0 {
		return fmt.Errorf("netfault: shape of %s -> %s: loss %v, delay %v, jitter %v: want a loss from 0 to 1 and no negative time", from, to, loss, delay, jitter)
	}
	return n.change(func(r rule) rule { return rule{r.cut, loss, delay, jitter} }, [2]string{from, to})
}

// HealPair ends every fault between two nodes.
func (n *Network) HealPair(a, b string) error {
	return n.change(func(rule) rule { return rule{} }, [2]string{a, b}, [2]string{b, a})
}

// Heal ends every fault.
func (n *Network) Heal() {
	_ = n.change(func(rule) rule { return rule{} }, n.pairs(func([2]string) bool { return true })...) // these pairs exist
}

// Counts are those of every ordered pair {from, to} since New.
func (n *Network) Counts() map[[2]string]Count {
	counts := map[[2]string]Count{}
	for pair, p := range n.paths {
		counts[pair] = Count{Forwarded: p.forwarded.Load(), Dropped: p.dropped.Load(), Bytes: p.bytes.Load()}
	}
	return counts
}

// Close frees all addresses and returns when every goroutine has ended.
func (n *Network) Close() error {
	n.end()
	n.mu.Lock()
	closers := n.closers
	n.closers = nil
	n.mu.Unlock()
	var errs []error
	for c := range closers {
		if err := c.Close(); !errors.Is(err, net.ErrClosed) { // a stream may have ended just now
			errs = append(errs, err)
		}
	}
	n.runs.Wait()
	return errors.Join(errs...)
}

func (n *Network) pairs(want func([2]string) bool) (list [][2]string) {
	for p := range n.paths {
		if want(p) {
			list = append(list, p)
		}
	}
	return list
}

// change replaces the rules of some pairs, of all or of none.
func (n *Network) change(to func(rule) rule, pairs ...[2]string) error {
	for _, pair := range pairs {
		if n.paths[pair] == nil {
			return fmt.Errorf("netfault: no path %s -> %s: want two different nodes of %v", pair[0], pair[1], n.names())
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, pair := range pairs {
		p := n.paths[pair]
		p.rule.Store(new(to(*p.rule.Load())))
	}
	close(n.changed)
	n.changed = make(chan struct{})
	if n.closers == nil {
		return nil // the listeners are closed
	}
	return n.deafen()
}

func (n *Network) names() (names []string) {
	for name := range n.hosts {
		names = append(names, name)
	}
	slices.SortFunc(names, cmp.Compare)
	return names
}

// changes is closed at the next change of a rule.
func (n *Network) changes() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// keep has Close close it; false: the network is closed, and so is c now.
func (n *Network) keep(c interface{ Close() error }) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closers == nil {
		_ = c.Close() // nobody has used it
		return false
	}
	n.closers[c] = struct{}{}
	return true
}

// drop closes what keep has.
func (n *Network) drop(c interface{ Close() error }) {
	n.mu.Lock()
	delete(n.closers, c)
	n.mu.Unlock()
	_ = c.Close() // nothing was written that is not sent
}
