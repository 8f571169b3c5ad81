package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// answer is what a probe of one address met, the better the greater.
type answer uint8

const (
	unanswered answer = iota
	refused           // its host answers, its daemon does not
	adopting          // its daemon takes its arenas back
	alive
)

func (a answer) String() string { return [...]string{"silent", "unobserved", "adopting", "alive"}[a] }

// path is one address of another node, as this one meets it.
type path struct {
	addr           string
	probed         bool
	last           answer
	since          time.Time     // of the first probe that was not answered; zero: the newest was
	took           time.Duration // of the newest probe that was answered
	sent, received uint64        // payload bytes of parts that went this way, by connections that this node opened
	rate           float64       // bytes a second of the newest exchange of a mebibyte or more; 0: there was none
}

// paths is what this node knows of the addresses of the others: which answer, how soon, and how fast parts move there. Any goroutine
// may ask; the prober measures.
type paths struct {
	patience time.Duration // for which an address may be silent before what is under way there is broken off

	mu    sync.Mutex // guards the rest
	of    map[replica.NodeName][]path
	moves map[*meter]struct{} // exchanges under way
}

func newPaths(patience time.Duration) *paths {
	return &paths{patience: patience, of: map[replica.NodeName][]path{}, moves: map[*meter]struct{}{}}
}

// probed takes in what the probes of a node's addresses met. Addresses that it has no more are forgotten. Exchanges at one that has been
// silent for long, while another answers, are broken off: TCP and QUIC would take seconds more to give up. One that has moved something since the
// last look goes on: a firewall may stop UDP alone.
func (p *paths) probed(name replica.NodeName, addrs []string, answers []answer, took []time.Duration, at time.Time) {
	p.takeIn(name, addrs, answers, took, at)
	for _, m := range p.lost(name, at) {
		m.cut()
	}
}

// lost are the exchanges to break off.
func (p *paths) lost(name replica.NodeName, at time.Time) (list []*meter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for m := range p.moves {
		moved := m.sent.Load() + m.received.Load() + m.served.Load()
		still := moved == m.seen
		m.seen = moved
		if still && m.peer == name && p.deadLocked(name, m.addr) && at.Sub(p.findLocked(name, m.addr).since) >= p.patience {
			list = append(list, m)
		}
	}
	return list
}

func (p *paths) takeIn(name replica.NodeName, addrs []string, answers []answer, took []time.Duration, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := make([]path, len(addrs))
	for i, addr := range addrs {
		if was := p.findLocked(name, addr); was != nil {
			now[i] = *was
		}
		now[i].addr, now[i].probed, now[i].last = addr, true, answers[i]
		if answers[i] > refused {
			now[i].took = took[i]
		}
		if answers[i] > unanswered {
			now[i].since = time.Time{}
		} else if now[i].since.IsZero() {
			now[i].since = at
		}
	}
	p.of[name] = now
}

func (p *paths) findLocked(name replica.NodeName, addr string) *path {
	if i := slices.IndexFunc(p.of[name], func(w path) bool { return w.addr == addr }); i >= 0 {
		return &p.of[name][i]
	}
	return nil
}

// order has the addresses whose newest probe was answered first, so many of them; the order is otherwise kept.
func (p *paths) order(name replica.NodeName, addrs []string) (list []string, answering int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var silent []string
	for _, addr := range addrs {
		if w := p.findLocked(name, addr); w != nil && w.probed && w.last == unanswered {
			silent = append(silent, addr)
		} else {
			list = append(list, addr)
		}
	}
	return append(list, silent...), len(list)
}

// ways are the addresses by which to reach a node that is known to be at addr, in the order in which to try them. At an address that is none
// of its own it is reached by no other: who asks whether it is there must not hear it from elsewhere.
func (p *paths) ways(name replica.NodeName, addr string) []string {
	p.mu.Lock()
	addrs := []string{addr}
	if p.findLocked(name, addr) != nil {
		for _, w := range p.of[name] {
			if w.addr != addr {
				addrs = append(addrs, w.addr)
			}
		}
	}
	p.mu.Unlock()
	list, _ := p.order(name, addrs)
	return list
}

// dead tells whether an address does not answer, while another of its node does.
func (p *paths) dead(name replica.NodeName, addr string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadLocked(name, addr)
}

func (p *paths) deadLocked(name replica.NodeName, addr string) bool {
	w := p.findLocked(name, addr)
	return w != nil && w.probed && w.last == unanswered && slices.ContainsFunc(p.of[name], func(w path) bool { return w.last > refused })
}

// rated is from how many bytes an exchange says anything about a rate.
const rated = 1 << 20

// meter counts what one exchange moves over a way to a node.
type meter struct {
	paths          *paths
	peer           replica.NodeName
	addr           string
	began          time.Time
	cut            func()        // breaks it off; from any goroutine, also when it is over
	sent, received atomic.Uint64 // one goroutine may read while another writes
	served         atomic.Uint64 // both ways, of what the node asked for: in no account of ways
	seen           uint64        // of all these, at the last look; guarded by the paths' lock
}

// servedConn is a connection, or a stream of one, that another node opened.
type servedConn struct {
	net.Conn
	m *meter
}

func (s servedConn) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.m.served.Add(uint64(n))
	return n, err
}

func (s servedConn) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.m.served.Add(uint64(n))
	return n, err
}

// begin begins an exchange with a node at addr.
func (p *paths) begin(peer replica.NodeName, addr string, cut func()) *meter {
	m := &meter{paths: p, peer: peer, addr: addr, began: time.Now(), cut: cut}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moves[m] = struct{}{}
	return m
}

// accepted begins what a node asks for over a connection from one of its addresses: where that dies, a push that is half here would keep
// its place from the one that comes by another.
func (p *paths) accepted(peer replica.NodeName, from net.Addr, cut func()) *meter {
	p.mu.Lock()
	addr := ""
	for _, w := range p.of[peer] {
		if hostOf(w.addr) == hostOf(from.String()) { // it dials from any port
			addr = w.addr
		}
	}
	p.mu.Unlock()
	return p.begin(peer, addr, cut)
}

func hostOf(addr string) string {
	h, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(h); err == nil {
		return ip.Unmap().String()
	}
	return h
}

// end says that the exchange is over; what is said again is not counted.
func (m *meter) end() {
	p := m.paths
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, lives := p.moves[m]; !lives {
		return
	}
	delete(p.moves, m)
	w := p.findLocked(m.peer, m.addr)
	if m.addr == "" {
		return
	}
	if w == nil { // not probed yet
		p.of[m.peer] = append(p.of[m.peer], path{addr: m.addr})
		w = &p.of[m.peer][len(p.of[m.peer])-1]
	}
	sent, received := m.sent.Load(), m.received.Load()
	w.sent, w.received = w.sent+sent, w.received+received
	if took := time.Since(m.began); sent+received >= rated && took > 0 {
		w.rate = float64(sent+received) / took.Seconds()
	}
}

// status is the account of all addresses, by node.
func (p *paths) status() []control.PathStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []control.PathStatus{}
	for name, list := range p.of {
		for _, w := range list {
			s := control.PathStatus{Peer: name, Addr: w.addr, State: "unknown", ProbeUS: w.took.Microseconds(), Sent: w.sent, Received: w.received, Rate: w.rate}
			if w.probed {
				s.State = w.last.String()
			}
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b control.PathStatus) int { return cmp.Compare(a.Peer, b.Peer) }) // a node's in their order
	return out
}

// tryEach dials by one way after another, until one takes it. Each has an equal share of the time that is left.
func tryEach[C any](ctx context.Context, ways []string, dial func(ctx context.Context, addr string) (C, error)) (conn C, err error) {
	var errs []error
	for i, addr := range ways {
		within, cancel := ctx, context.CancelFunc(func() {})
		if end, ok := ctx.Deadline(); ok {
			within, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(len(ways)-i))
		}
		conn, err = dial(within, addr)
		cancel()
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return conn, err
	}
	return conn, fmt.Errorf("by none of %d addresses: %w", len(ways), errors.Join(errs...))
}
