package hands

import (
	"context"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Owner is the node around. Its methods may be called from any goroutine.
type Owner interface {
	// Post hands an event to the node's goroutine, and drops it once the node has ended.
	Post(ev any)
	// Beside runs work in a goroutine that the node waits for. What it returns is posted; nil: nothing is.
	Beside(work func(ctx context.Context) any)
	// Node is a registered node, Arena the one for a part that this node mirrors, made to its size and with the keeper. Both ask the node's
	// goroutine, and wait for its answer until ctx ends. They must not be called from that.
	Node(ctx context.Context, name replica.NodeName) (replica.Node, error)
	Arena(ctx context.Context, job replica.JobID, rank replica.Rank, man replica.Manifest) (*holding.Arena, error)
}

type (
	// Answer is for a room: the end of what it had done.
	Answer struct {
		To    act.Room
		Event act.Event
	}
	// Reply is for the leader. Copies are those that were read for it, and are let go.
	Reply struct {
		Msg    any
		Copies []holding.Copy
	}
	// Released is the end of a read of a place.
	Released struct {
		Arena *holding.Arena
		Place shm.Place
	}
	// Closed is the end of giving back an arena's memory.
	Closed struct{}
	// Short means that the memory of an arena, which is in use already, is not to be had.
	Short struct {
		Arena *holding.Arena
		Err   error
	}
)

// Mover brings parts, and sends them to their mirrors: *mover.Mover.
type Mover interface {
	fetch.Mover
	Push(l mover.Line, p mover.Push, awaited func(transfer.Key) bool) (dropped []mover.Push)
	Prune(job replica.JobID, wanted func(mover.Line, transfer.Key) bool) (dropped []mover.Push)
	EndPushes(replica.JobID)
	Moving(replica.JobID, replica.Generation) []mover.Moving
	Traffic() []mover.Traffic
	Close()
}

// Config is what hands work with.
type Config struct {
	Owner    Owner
	Log      *journal.Journal
	Config   *config.Config
	Self     replica.NodeName
	Cluster  replica.ClusterID
	Store    Tier         // nil: no durable tier here
	Spool    *spool.Spool // nil: durable writes hold their slots until the store has read them
	Custody  *holding.Custodian
	Dial     func(ctx context.Context, addrs []string, node replica.NodeName, over transfer.Transport) (transfer.Lane, error)
	Ways     func(replica.Node) []string // a node's addresses in the order in which to use them
	TCPLanes int                         // to each holder; 0: Dial knows QUIC alone
	Slowest  float64                     // mover.Config.Slowest
	Parts    transfer.Store              // what this node has
	Pushed   func(mover.Pushed)          // the end of a push
	Ask      func(context.Context, fetch.Request) error
}

// Hands are those of one node. But for Read, its methods belong to the node's goroutine, and do not wait.
type Hands struct {
	Config
	Mover   Mover
	Fetches *fetch.Fetcher
	Pacer   *manners.Pacer
	yield   yielding
	rate    *writer.Rate
	Reads   chan *scrub.Read // of capacity 1: the room asks for one at a time
	back    map[*scrub.Fetch]context.CancelFunc

	// What takes seconds for large states; a test may put something slow in its place.
	Create func(shm.Spec) (*shm.Arena, error)
	Room   func(shm.Spec) error
	Reuse  func(*shm.Staging) error
}

// New are hands that have done nothing yet.
func New(c Config) *Hands {
	h := &Hands{Config: c, Pacer: new(manners.Pacer), rate: writer.NewRate(uint64(c.Config.DurableRate)), Reads: make(chan *scrub.Read, 1),
		back: map[*scrub.Fetch]context.CancelFunc{}, Create: shm.Create, Room: shm.Room, Reuse: (*shm.Staging).Reuse}
	h.Mover = mover.New(mover.Config{Self: c.Self, Dial: h.lane, Ways: h.ways, TCPLanes: c.TCPLanes, Slowest: c.Slowest,
		Parts: c.Parts, Disk: c.Store, Pushed: c.Pushed})
	h.Fetches = &fetch.Fetcher{Self: c.Self, Cluster: c.Cluster, Log: c.Log, Mover: h.Mover, Ask: c.Ask,
		Reuse: func(s *shm.Staging) error { return h.Reuse(s) }}
	return h
}
