package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/membership"
	"github.com/replicad/replicad/replica"
)

// peerState is what this node has seen of another on the data path.
type peerState struct {
	silentSince time.Time // zero: the last probe was answered, or refused
	incarnation replica.NodeIncarnation
	refused     bool // its host answers, its daemon does not: unobserved, not dead
	answered    time.Time
}

// prober sends each registered node a datagram of its own each interval, over the very port that state moves on. Its
// goroutine owns peers; at says what others may read.
type prober struct {
	m        *member
	gossip   interface{ Members() []membership.Member }
	interval time.Duration
	silent   time.Duration
	mu       sync.Mutex // guards peers
	peers    map[replica.NodeName]peerState
}

// run probes until ctx ends. A node is suspected aloud when gossip gave it up and its data path has been silent for the
// configured time; what follows from that is the leader's to decide (two witnesses, no step since).
func (p *prober) run(ctx context.Context) {
	ticker := time.NewTicker(p.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.round(ctx)
		}
	}
}

func (p *prober) round(ctx context.Context) {
	nodes := map[replica.NodeName]replica.Node{}
	live := map[replica.JobID]replica.Step{}
	if !p.m.do(ctx, func() {
		for name, n := range p.m.nodes {
			if name != p.m.self.Name {
				nodes[name] = n
			}
		}
		for id, lj := range p.m.jobs {
			for _, lr := range lj.ranks {
				if lr.alive {
					live[id] = max(live[id], lr.arena.Step().Step())
				}
			}
		}
	}) {
		return
	}
	var probes sync.WaitGroup
	for name, n := range nodes {
		probes.Go(func() { p.probe(ctx, name, n) })
	}
	probes.Wait()
	gone := map[replica.NodeName]bool{}
	for _, mem := range p.gossip.Members() {
		if !mem.Alive {
			gone[mem.Name] = true
		}
	}
	var suspects []suspect
	for name, n := range nodes {
		p.mu.Lock()
		s := p.peers[name]
		p.mu.Unlock()
		if gone[name] && s.incarnation == n.Incarnation && !s.silentSince.IsZero() && time.Since(s.silentSince) >= p.silent {
			suspects = append(suspects, suspect{Target: holderOf(n), Live: live})
		}
	}
	p.m.do(ctx, func() { p.m.suspected(suspects) })
}

func (p *prober) probe(ctx context.Context, name replica.NodeName, n replica.Node) {
	ctx, cancel := context.WithTimeout(ctx, p.interval)
	defer cancel()
	asked := time.Now()
	reply, err := p.m.endpoint.Probe(ctx, n.Addr)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.peers[name]
	if s.incarnation != n.Incarnation { // another life of the node: what the last one failed to answer says nothing of it
		s = peerState{incarnation: n.Incarnation}
	}
	switch {
	case err == nil && !reply.Adopting && reply.Node == name:
		s = peerState{incarnation: n.Incarnation, answered: time.Now()}
	case errors.Is(err, endpoint.ErrRefused):
		s.refused, s.silentSince = true, time.Time{}
	default:
		s.refused = false
		if s.silentSince.IsZero() {
			s.silentSince = asked
		}
	}
	p.peers[name] = s
}

// state is a node's as this one sees it: for status.
func (p *prober) state(name replica.NodeName) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.peers[name]
	switch {
	case !ok:
		return "unknown"
	case s.refused:
		return "unobserved"
	case !s.silentSince.IsZero() && time.Since(s.silentSince) >= p.silent:
		return "silent"
	}
	return "alive"
}
