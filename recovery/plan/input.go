package plan

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// DurableGen is a generation that the durable tier holds complete, with the root of every part; or one that it can't serve, for people to be told.
type DurableGen struct {
	Generation replica.Generation
	Position   replica.Position
	Parts      map[replica.Part]replica.Digest
	// Says names it for people: its step, where it lies, how old it is.
	Says string
	// Bad is what is wrong with it: it is there, and nothing is read of it. Empty: nothing is.
	Bad string
}

// Input is all that the planner knows.
type Input struct {
	Job       *replica.Job
	Nodes     map[replica.NodeName]replica.Node
	Reports   map[replica.NodeName]replica.NodeReport // the latest of each node; one of an earlier session than Nodes' counts for nothing
	Connected map[replica.NodeName]bool
	// AwaySince says since when each node that does not answer has been missed; a node not in it has just been missed.
	AwaySince map[replica.NodeName]time.Duration
	Now       time.Duration
	Grace     time.Duration // holder_grace
	Least     time.Duration // until then a new leader gives up no holder, which may be on its way to it
	// Durable holds what a scan of the durable tier found; Scanned tells that one has ended since the epoch was closed.
	// Unread says why the latest scan could not be made, where none has ended.
	Durable []DurableGen
	Scanned bool
	Unread  string
	// Misfit tells whether a node can't get now what another one makes; nil: none.
	Misfit func(from, mirror replica.NodeName) bool
	// Doubted tells of which copies several nodes were sent wrong bytes, and says so; nil: of none.
	Doubted func(replica.Holder, replica.Held) bool
	// Made is how far the ranks came since the job was opened last.
	Made Furthest

	counted counted
}

// Of is the input for a job of which it was counted already what follows from its record.
func (in Input) Of(rec *Record) *Input {
	in.Job, in.counted.rec = rec.Job, rec
	return &in
}

// counted is what follows from a planner's input, counted when it is first asked for.
type counted struct {
	rec      *Record
	ranks    []*replica.RankReport // by rank
	required []replica.NodeName
	use      map[replica.NodeName]bool
	stock    stock
	bad      []replica.NodeReport        // those that name bad copies
	holders  map[copyOf][]replica.Holder // of the generation heldOf
	heldOf   replica.Generation
}

// VerdictKind is what the planner came to.
type VerdictKind uint8

// The kinds of verdicts.
const (
	Ready VerdictKind = 1
	Wait  VerdictKind = 2
	Stuck VerdictKind = 3
)

func (k VerdictKind) String() string {
	switch k {
	case Ready:
		return "ready"
	case Wait:
		return "wait"
	case Stuck:
		return "stuck"
	}
	return "invalid"
}

// Why tells waits apart.
type Why string

// What a planner waits for.
const (
	ForRanks   Why = "ranks"   // ranks not claimed by a live incarnation, or not at rest
	ForAcks    Why = "acks"    // daemons that have not acknowledged the fence
	ForHolders Why = "holders" // recorded holders of the committed generation, for holder_grace
	ForScan    Why = "scan"    // the durable tier has not been searched yet
)

// Verdict says whether there is a plan, or what it waits for, or why there can be none.
type Verdict struct {
	Kind    VerdictKind
	Why     Why
	Reason  string
	WaitFor []replica.NodeName
	Ranks   []replica.Rank     // of a wait for ranks
	Scarce  replica.Generation // of a wait for ranks: what the job would resume at, where some part of it has too few copies
	Until   time.Duration      // of a wait for holders: when the planner goes on without them
	Scan    bool               // the planner may read disk and has not seen what lies there
	Final   bool               // of Stuck: no node that is away could change it
	Dispute *Dispute           // of Stuck: the disputed initial state

	Disputed *replica.Dispute // of Stuck: that of a later step
}
