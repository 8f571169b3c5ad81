package recovery

import (
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Timing is how long recovery waits for whom. It has no defaults: internal/config has those of a daemon.
type Timing struct {
	Collect     time.Duration // what fails together joins one plan; too long delays every recovery by as much
	Settle      time.Duration // for a rank to leave the optimizer window and its copies; enforced by the daemons
	Ack         time.Duration // for a daemon's acknowledgement of a fence; at least DaemonGrace, or an upgrade becomes a fault
	Claim       time.Duration // for an offered rank to be claimed before another node is tried
	Start       time.Duration // for a process to attach before its node kills it; offered elsewhere by then if that fails
	HolderGrace time.Duration // for recorded holders not proved lost, before a committed step is given up or disk is read
	ResumeGrace time.Duration // for mirrors to fetch T before the job resumes degraded
	DaemonGrace time.Duration // a daemon's absence that is no evidence
	Abandoned   time.Duration // for which a job that was never opened waits without a launcher or a process, before it ends; 0: for ever
}

// Event is something that the driver of a Leader has learned.
type Event interface{ event() }

type (
	// JobChanged carries the state machine after a change of the job or of a node. The values are immutable.
	JobChanged struct {
		Job   *replica.Job
		Nodes map[replica.NodeName]replica.Node
	}
	// Report is a daemon's account of the job. It also says that its node is connected.
	Report struct{ replica.NodeReport }
	// Evidence is a fault that somebody saw. A zero Epoch means the newest; a zero NodeIncarnation the registered one.
	Evidence struct{ replica.Fault }
	// Rejected is a rank's word that the state it was given to load is bad although its digests are right: values that are
	// not finite, say. It counts while the epoch is planned.
	Rejected struct {
		Epoch       replica.Epoch
		Rank        replica.Rank
		Incarnation replica.Incarnation
		Why         string
	}
	// Unreached says that a node failed for some seconds to bring a part to others that mirror it; with Fetch, to have a part of the plan of
	// Epoch, for a rank, from any of them.
	Unreached struct {
		From  replica.NodeName
		To    []replica.NodeName
		Part  replica.Part
		Fetch bool
		Epoch replica.Epoch
		Rank  replica.Rank
		Took  time.Duration // by the newest try that failed
	}
	// Corrupt says that a node was sent bytes of a part by another that don't match their digests.
	Corrupt struct {
		From, By   replica.NodeName
		Part       replica.Part
		Generation replica.Generation
		Root       replica.Digest
	}
	// PutOff says that a rank was put off at the rendezvous: its node is in another life than the one that claimed the rank, or, with Missing, a
	// node has not brought what it keeps of the rendezvous.
	PutOff struct {
		Rank    replica.Rank
		Missing replica.NodeName
	}
	// Stalled says that a node does not take a part which it mirrors, and that commits wait for that.
	Stalled struct {
		Epoch replica.Epoch
		Part  replica.Part
		Node  replica.NodeName
	}
	// WritesOver says that nothing of the job is written to the durable tier any more: another fleet has the run.
	WritesOver struct{}

	// Writing says that the durable write of a part moves on a node, and holds the slot there that the candidate lacks.
	Writing struct {
		Node       replica.NodeName
		Part       replica.Part
		Generation replica.Generation
		Bytes      uint64        // that it has written
		Late       time.Duration // for which the commit waits
	}
	// NodeUp says that a node's control stream is up.
	NodeUp struct {
		Holder  replica.Holder
		Session replica.Session
	}
	// NodeGone says that a node's control stream is lost, which is no evidence of death.
	NodeGone struct{ Node replica.NodeName }
	// DurableFound answers ScanDurable: the complete and valid durable generations of the job, and those that are not valid.
	DurableFound struct{ Generations []plan.DurableGen }
	// DurableUnread answers ScanDurable too: the durable tier could not be searched, so nobody knows what lies there.
	DurableUnread struct{ Why string }
	// Regions answers AskRegions.
	Regions struct{ replica.RegionReport }
	// Kept is a node's first word to this leader of what the job's clocks read. Nothing has lasted for longer than Most; 0: nobody knows.
	Kept struct {
		From   replica.NodeName
		Ledger replica.Ledger
		Most   time.Duration
	}
	// Outcome says what became of a proposal; nil: applied.
	Outcome struct {
		Cmd replica.Command
		Err error
	}
	// Tick says only that time has passed.
	Tick struct{}
)

func (JobChanged) event()    {}
func (Report) event()        {}
func (Evidence) event()      {}
func (Rejected) event()      {}
func (Unreached) event()     {}
func (Corrupt) event()       {}
func (PutOff) event()        {}
func (Stalled) event()       {}
func (Writing) event()       {}
func (WritesOver) event()    {}
func (NodeUp) event()        {}
func (NodeGone) event()      {}
func (DurableFound) event()  {}
func (DurableUnread) event() {}
func (Regions) event()       {}
func (Kept) event()          {}
func (Outcome) event()       {}
func (Tick) event()          {}

// Effect is something that the driver has to do. All are idempotent.
type Effect interface{ effect() }

type (
	// Propose proposes a command; its Outcome must be reported.
	Propose struct{ Command replica.Command }
	// Offer has Node's launcher start a process for Rank, which will claim it from incarnation Expect.
	Offer struct {
		Rank   replica.Rank
		Expect replica.Incarnation
		Node   replica.NodeName
	}
	// Capture has all survivors capture their live state, which stands whole at that generation.
	Capture struct{ Generation replica.Generation }
	// Mirror has every node that holds a part of that generation in a rank's arena send it to the part's mirrors: the job is to
	// resume there, waits for a process, and has fewer copies of some part than it wants.
	Mirror struct{ Generation replica.Generation }
	// Relay has Node fetch a part of the plan for a rank there that can't get it from its holders, and all nodes take Node for a holder.
	Relay struct {
		Epoch replica.Epoch
		Part  replica.Part
		Rank  replica.Rank
		Node  replica.NodeName
	}
	// ScanDurable asks for DurableFound.
	ScanDurable struct{}
	// AskRegions asks a node for Regions of a part that lies sealed in the arena of a rank there.
	AskRegions struct {
		Node       replica.NodeName
		Rank       replica.Rank
		Generation replica.Generation
		Part       replica.Part
		Root       replica.Digest
	}
	// RefuseGrowth answers a rank that waits in a growth: it goes on with the regions that it has.
	RefuseGrowth struct {
		Node replica.NodeName
		Rank replica.Rank
		Ask  uint64
		Why  string
	}
	// Note tells people what recovery does or waits for; Code is constant per kind of note.
	Note struct {
		Code   string
		Text   string
		Fields map[string]string
	}
)

func (Propose) effect()      {}
func (Offer) effect()        {}
func (Capture) effect()      {}
func (Mirror) effect()       {}
func (Relay) effect()        {}
func (ScanDurable) effect()  {}
func (AskRegions) effect()   {}
func (RefuseGrowth) effect() {}
func (Note) effect()         {}
