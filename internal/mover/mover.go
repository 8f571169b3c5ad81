// Package mover brings bytes: it fetches parts from other nodes, from this node or from the durable tier, and pushes parts to their mirrors.
//
// It knows no job, plan or candidate. Its caller says which part, from whom and into which place; results come back as values. What a
// fetch or a push may touch is checked where the bytes are served (transfer.Store), not here.
//
// A Mover's goroutines are its pushers (up to two for each [Line]) and the far ends of lanes to this node itself. Close waits for both.
package mover

import (
	"context"
	"net"
	"sync"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Config is what a mover needs of its node. The functions may be called from any goroutine.
type Config struct {
	Self replica.NodeName
	// Dial opens a lane to another node, at one of its addresses; empty: by all of them, as its streams are opened.
	Dial func(ctx context.Context, node replica.NodeName, at string, over transfer.Transport) (transfer.Lane, error)
	// Ways are the addresses of another node in the order in which to use them; missing, or none: Dial knows the one.
	Ways func(ctx context.Context, node replica.NodeName) []string
	// TCPLanes is how many lanes over TCP a fetch opens to each holder, beside the one over QUIC, and a push of a large part at most to its
	// mirror; where the node has more addresses than that, one to each. 0: everything goes over QUIC.
	TCPLanes int
	// Slowest is how many bytes a second a push has to get on by; one that takes longer for all of its bytes, and some seconds more, is given up, and
	// another mirror is found. A stream that stalls ends much sooner. 0: 4 MiB. Above it a push is never given up for its slowness alone: several
	// that share a link of 1 Gbit/s would all be, and nothing would be committed any more.
	Slowest float64
	// Parts is what this node serves, for fetches from itself: two ranks of a group on one node.
	Parts transfer.Store
	Disk  Disk // nil: no durable tier here
	// Pushed is told the end of each push that was tried. It is not called any more once Close has returned.
	Pushed func(Pushed)
}

// Disk is the durable tier as a mover needs it.
type Disk interface {
	// Open opens a part of a durable generation of a job. Bytes that are not those that were written are store.ErrCorrupt, here and in ReadChunk.
	Open(ctx context.Context, name string, id replica.JobID, g replica.Generation, part replica.Part) (OnDisk, error)
}

// OnDisk is a part of a durable generation. Several goroutines may call ReadChunk, which reads chunk i into dst, grown if it is too short. After an
// error dst must not be used again.
type OnDisk = interface {
	Manifest() replica.Manifest
	Regions() []replica.Region
	ReadChunk(i int, dst []byte) ([]byte, error)
	Close()
}

// Mover moves parts. Fetch may be called from any goroutine; Push, Moving, Prune, EndPushes and Close from one alone.
type Mover struct {
	cfg  Config
	life context.Context // until Close
	end  context.CancelFunc
	work sync.WaitGroup // pushers, and far ends of lanes to this node

	pushers map[track]*pusher                  // owned by the caller of Push
	turns   map[replica.NodeName]chan struct{} // likewise
	traffic traffic
}

// New makes a mover, which Close ends.
func New(c Config) *Mover {
	if c.Ways == nil {
		c.Ways = func(context.Context, replica.NodeName) []string { return nil }
	}
	if c.Slowest == 0 {
		c.Slowest = 4 << 20
	}
	m := &Mover{cfg: c, pushers: map[track]*pusher{}, turns: map[replica.NodeName]chan struct{}{}}
	m.life, m.end = context.WithCancel(context.Background())
	return m
}

// Close ends all pushes and waits for what the mover started. Fetches end with their own contexts, and before this is called.
func (m *Mover) Close() {
	m.end()
	m.work.Wait()
}

// localLane serves this node's own parts to its own fetches.
type localLane struct{ m *Mover }

func (l localLane) Peer() replica.NodeName { return l.m.cfg.Self }
func (l localLane) Close()                 {}
func (l localLane) Open(context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	l.m.work.Go(func() {
		defer far.Close()
		transfer.Serve(l.m.life, l.m.cfg.Self, far, l.m.cfg.Parts, nil) //nolint:errcheck // the near end sees it
	})
	return near, nil
}
