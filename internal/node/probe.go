package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/host"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

// idleProbes is the interval while no job is there, which alone asks who is silent.
const idleProbes = time.Second

// peerState is what this node has seen of another on the data path.
type peerState struct {
	silentSince time.Time // zero: the last probe was answered, or refused
	incarnation replica.NodeIncarnation
	refused     bool // its host answers, its daemon does not: unobserved, not dead
	adopting    bool // its daemon answers that it takes its arenas back, which is silence, and no sign that they are lost
	hostUp      bool // its kernel answered for a daemon that did not
	hostAsked   time.Time
	answered    time.Time
}

// dataPath is where parts move: its datagrams see what they would meet.
type dataPath interface {
	Probe(ctx context.Context, addr string) (endpoint.ProbeReply, error)
	Source() netip.Addr
}

// witness is the host for which the prober probes.
type witness interface {
	Witness(ctx context.Context) (host.Witness, bool)
	Suspect(ctx context.Context, suspects []control.Suspect)
}

// prober sends each registered node a datagram of its own each interval, to each of its addresses and over the very port that state moves on.
// One that answers speaks for the node. Its goroutine owns peers; at says what others may read.
type prober struct {
	host     witness
	path     dataPath
	paths    *paths // told of each address
	gossip   interface{ Members() []membership.Member }
	interval time.Duration
	silent   time.Duration
	grace    time.Duration // for which a host that answers speaks for its daemon
	last     time.Time     // when the last round began
	every    time.Duration // from that to the next
	mu       sync.Mutex    // guards peers
	peers    map[replica.NodeName]peerState
}

// run probes until ctx ends. A node is suspected aloud when gossip gave it up and its data path has been silent for the
// configured time; what follows from that is the leader's to decide (two witnesses, no step since).
func (p *prober) run(ctx context.Context) {
	p.every = p.interval
	next := time.NewTimer(p.every)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case began := <-next.C:
			p.round(ctx)
			next.Reset(time.Until(began.Add(p.every)))
		}
	}
}

func (p *prober) round(ctx context.Context) {
	began := time.Now()
	if !p.last.IsZero() && began.Sub(p.last) > p.late() {
		p.forget() // this daemon stood still itself, and has heard nobody
	}
	p.last = began
	seen, ok := p.host.Witness(ctx)
	if !ok {
		return
	}
	if p.every = p.interval; seen.Idle {
		p.every = max(p.interval, idleProbes)
	}
	var probes sync.WaitGroup
	for name, n := range seen.Nodes {
		probes.Go(func() { p.probe(ctx, name, n) })
	}
	probes.Wait()
	known := map[replica.NodeName]membership.Member{}
	for _, mem := range p.gossip.Members() {
		known[mem.Name] = mem
	}
	var mu sync.Mutex // guards suspects
	var suspects []control.Suspect
	for name, n := range seen.Nodes {
		mem, ok := known[name]
		silent, is := p.silence(name, n)
		if !ok || !is || silent < p.silent/2 {
			continue
		}
		probes.Go(func() { // early, so that its answer is there once it matters
			// A daemon that hangs for good on a live host must not hold up for ever what waits for its node.
			answers := p.hostAnswers(ctx, name, append([]string{mem.Addr}, n.Addrs...)) && silent < p.grace
			gossips := mem.Alive && mem.Incarnation == n.Incarnation
			if !answers && !gossips && silent >= p.silent {
				mu.Lock()
				defer mu.Unlock()
				suspects = append(suspects, control.Suspect{Target: n.Holder(), Live: seen.Live, SilentMS: uint64(silent.Milliseconds()), Steps: seen.Steps})
			}
		})
	}
	probes.Wait()
	if time.Since(began) > p.late() {
		return // it stood still meanwhile
	}
	p.host.Suspect(ctx, suspects)
}

// late is how long a round may take: what takes longer has been held up in this daemon itself.
func (p *prober) late() time.Duration { return 2*max(p.every, p.interval) + max(p.silent, time.Second) }

// forget takes all silence for unheard.
func (p *prober) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.peers {
		s.silentSince = time.Time{}
		p.peers[name] = s
	}
}

// silence is for how long that life of a node has been silent.
func (p *prober) silence(name replica.NodeName, n replica.Node) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.peers[name]
	return time.Since(s.silentSince), s.incarnation == n.Incarnation && !s.silentSince.IsZero()
}

// hostAnswers tells whether the host of a silent daemon is up: its kernel takes, or refuses, a connection to the gossip port, or to a
// further address, also where the daemon is stopped, swapped out or starved. Such a node is unobserved, as one whose daemon is down.
func (p *prober) hostAnswers(ctx context.Context, name replica.NodeName, addrs []string) bool {
	p.mu.Lock()
	last := p.peers[name]
	p.mu.Unlock()
	if addrs[0] == "" || time.Since(last.hostAsked) < p.silent { // each connection takes a place in the queue of a daemon that does not accept
		return last.hostUp
	}
	ctx, cancel := context.WithTimeout(ctx, p.interval)
	defer cancel()
	from := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.path.Source(), 0))}
	var up atomic.Bool
	var asking sync.WaitGroup
	for _, addr := range addrs {
		asking.Go(func() {
			conn, err := from.DialContext(ctx, "tcp", addr)
			if err == nil {
				conn.Close()
			}
			if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
				up.Store(true)
			}
		})
	}
	asking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.peers[name]
	s.hostUp, s.hostAsked = up.Load(), time.Now()
	p.peers[name] = s
	return s.hostUp
}

// ask probes one address of a node. Another daemon of that name answers for a memory of its own, and not for that of the registered life.
func (p *prober) ask(ctx context.Context, addr string, n replica.Node) answer {
	reply, err := p.path.Probe(ctx, addr)
	switch itself := err == nil && reply.Node == n.Name && reply.Incarnation == n.Incarnation; {
	case itself && !reply.Adopting:
		return alive
	case itself:
		return adopting
	case errors.Is(err, endpoint.ErrRefused):
		return refused
	}
	return unanswered
}

func (p *prober) probe(ctx context.Context, name replica.NodeName, n replica.Node) {
	ctx, cancel := context.WithTimeout(ctx, p.interval)
	defer cancel()
	asked := time.Now()
	ways := n.Ways()
	answers, took := make([]answer, len(ways)), make([]time.Duration, len(ways))
	var asking sync.WaitGroup
	for i, addr := range ways {
		asking.Go(func() {
			answers[i] = p.ask(ctx, addr, n)
			took[i] = time.Since(asked)
		})
	}
	asking.Wait()
	best := slices.Max(answers)
	late := time.Since(asked) > p.late() // this daemon stood still itself
	if best > unanswered || !late {
		p.paths.probed(name, ways, answers, took, asked)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.peers[name]
	if s.incarnation != n.Incarnation { // another life of the node: what the last one failed to answer says nothing of it
		s = peerState{incarnation: n.Incarnation}
	}
	switch {
	case best == alive:
		s = peerState{incarnation: n.Incarnation, answered: time.Now()}
	case best == refused:
		s.refused, s.adopting, s.silentSince = true, false, time.Time{}
	case late:
	default:
		s.refused, s.adopting = false, best == adopting
		if s.silentSince.IsZero() {
			s.silentSince = asked
		}
	}
	p.peers[name] = s
}

// answers tells whether a node's newest probe was neither refused nor left without an answer. A node is not probed by itself.
func (p *prober) answers(name replica.NodeName) bool {
	p.mu.Lock()
	adopting := p.peers[name].adopting
	p.mu.Unlock()
	s := p.state(name)
	return adopting || s == "alive" || s == "unknown"
}

// hears tells whether a node's newest probe was answered by its daemon.
func (p *prober) hears(name replica.NodeName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.peers[name]
	return !s.answered.IsZero() && s.silentSince.IsZero() && !s.refused
}

// quiet tells whether nothing of a node or its host has been heard for silent_after.
func (p *prober) quiet(name replica.NodeName) bool { return p.state(name) == "silent" }

// state is a node's as this one sees it: for status.
func (p *prober) state(name replica.NodeName) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.peers[name]
	switch {
	case !ok:
		return "unknown"
	case s.refused || s.hostUp && time.Since(s.hostAsked) < 2*p.silent:
		return "unobserved"
	case !s.silentSince.IsZero() && time.Since(s.silentSince) >= p.silent:
		return "silent"
	}
	return "alive"
}
