package transfer

import (
	"fmt"
	"sync"

	"github.com/replicad/replicad/replica"
)

// Gate bounds what peers may have served at once: so many transfers in all and for one peer, fetches and pushes together, and so many
// bytes of requests that have been read for one peer and whose transfers run. Who finds it shut is refused with ErrRefused, which the other side
// retries with jitter, before anything of its request was kept. nil bounds nothing.
//
// Small pushes are bounded by themselves, by the same numbers: every commit waits for some of them, and large parts take seconds.
type Gate struct {
	total, perPeer int
	bytesPerPeer   uint64
	small          *Gate

	mu     sync.Mutex // guards the rest
	all    int
	of     map[replica.NodeName]load
	pushes map[offered]*incoming // under way
}

type load struct {
	transfers int
	bytes     uint64
}

// NewGate makes one; bytesPerPeer counts requests, not the parts themselves, which go to the arenas.
func NewGate(total, perPeer int, bytesPerPeer uint64) *Gate {
	g := newGate(total, perPeer, bytesPerPeer)
	g.small = newGate(total, perPeer, bytesPerPeer)
	return g
}

func newGate(total, perPeer int, bytesPerPeer uint64) *Gate {
	return &Gate{total: total, perPeer: perPeer, bytesPerPeer: bytesPerPeer, of: make(map[replica.NodeName]load), pushes: make(map[offered]*incoming)}
}

// forSmall is the gate of small pushes.
func (g *Gate) forSmall() *Gate {
	if g == nil {
		return nil
	}
	return g.small
}

// enter makes room for a transfer whose request has so many bytes, until leave is called.
func (g *Gate) enter(peer replica.NodeName, bytes uint64) (leave func(), err error) {
	if g == nil {
		return func() {}, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	has := g.of[peer]
	switch {
	case g.all >= g.total:
		return nil, fmt.Errorf("%w: %d transfers run here, at most %d", ErrRefused, g.all, g.total)
	case has.transfers >= g.perPeer:
		return nil, fmt.Errorf("%w: %d transfers run for %s, at most %d", ErrRefused, has.transfers, peer, g.perPeer)
	case has.transfers > 0 && has.bytes+bytes > g.bytesPerPeer: // one alone has room, however large it may be
		return nil, fmt.Errorf("%w: requests of %d bytes are under way for %s, at most %d", ErrRefused, has.bytes, peer, g.bytesPerPeer)
	}
	g.all++
	g.of[peer] = load{has.transfers + 1, has.bytes + bytes}
	return func() { g.leave(peer, bytes) }, nil
}

func (g *Gate) leave(peer replica.NodeName, bytes uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	has := g.of[peer]
	has.transfers, has.bytes = has.transfers-1, has.bytes-bytes
	if g.of[peer] = has; has.transfers == 0 {
		delete(g.of, peer)
	}
}
