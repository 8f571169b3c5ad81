package control

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Hello is the first message on a link: who opens it. A Welcome answers it.
type Hello struct {
	Cluster replica.ClusterID `cbor:"1,keyasint"`
	Node    replica.Node      `cbor:"2,keyasint"`
	// Running are the claims that the daemon serves now; see replica.RegisterNode.
	Running []replica.Running `cbor:"3,keyasint,omitempty"`
	// Raft is the daemon's part in Raft, now; a Standing says what changes.
	Raft Standing `cbor:"4,keyasint"`
}

// Welcome answers a hello. Leader is set where the answerer does not lead: try there. Refused tells that asking again changes nothing
// until somebody does what Reason says.
type Welcome struct {
	OK      bool             `cbor:"1,keyasint"`
	Reason  string           `cbor:"2,keyasint"`
	Leader  replica.NodeName `cbor:"3,keyasint"`
	Address string           `cbor:"4,keyasint"`
	Term    uint64           `cbor:"5,keyasint"`
	Era     replica.Era      `cbor:"6,keyasint"`
	Refused bool             `cbor:"7,keyasint,omitempty"`
	// Raft is the answerer's part in Raft, where it does not lead: without a leader nobody else says so.
	Raft Standing `cbor:"8,keyasint"`
}

// NotLeader is the Reason of who does not lead.
const NotLeader = "not the leader"

// Beat tells a node that the leader is there.
type Beat struct{}

// Rejected is a rank's word against the state it was given to load.
type Rejected struct {
	Job         replica.JobID       `cbor:"1,keyasint"`
	Epoch       replica.Epoch       `cbor:"2,keyasint"`
	Rank        replica.Rank        `cbor:"3,keyasint"`
	Incarnation replica.Incarnation `cbor:"4,keyasint"`
	Why         string              `cbor:"5,keyasint"`
}

// Evidence is a fault that a node has seen of its own ranks.
type Evidence struct {
	Job   replica.JobID `cbor:"1,keyasint"`
	Fault replica.Fault `cbor:"2,keyasint"`
}

// ClaimRequest asks for a rank; a ClaimReply of the same ID answers it.
type ClaimRequest struct {
	ID    uint64        `cbor:"1,keyasint"`
	Claim replica.Claim `cbor:"2,keyasint"`
	Token string        `cbor:"3,keyasint,omitempty"` // that the rank's process showed
}

// ClaimReply is what came of a claim.
type ClaimReply struct {
	ID          uint64              `cbor:"1,keyasint"`
	Incarnation replica.Incarnation `cbor:"2,keyasint"`
	Refused     string              `cbor:"3,keyasint"`
	Retry       bool                `cbor:"4,keyasint"` // refused for what may change: ask again after the next view
}

// CreateRequest asks for a job, for a launcher; a CreateReply of the same ID answers it.
type CreateRequest struct {
	ID      uint64          `cbor:"1,keyasint"`
	Name    string          `cbor:"2,keyasint"`
	Layout  replica.Layout  `cbor:"3,keyasint"`
	Options replica.Options `cbor:"4,keyasint"`
	Resume  bool            `cbor:"5,keyasint"` // from the newest durable generation of that name
	// NameGroups leaves the groups to the ranks; Layout has none then.
	NameGroups bool `cbor:"6,keyasint,omitempty"`
	// AnyGroups: the launcher said nothing of groups. Those of the job or generation that is there will do; a new job has Layout's, one group.
	AnyGroups bool `cbor:"7,keyasint,omitempty"`
	// Owner is the launcher's user, Token what it showed as the job's: the leader judges it by its own secret.
	Owner uint32 `cbor:"8,keyasint,omitempty"`
	Token string `cbor:"9,keyasint,omitempty"`
	// Notes are those of this run, to hold against those of the one that it goes on from.
	Notes []replica.Remark `cbor:"10,keyasint,omitempty"`
	// From is what a new job begins with; nil: its program's initial state. FromFailed is why what From.Asked names can't be loaded: no job begins
	// with it then, and one that has begun with it goes on.
	From       *replica.Origin `cbor:"11,keyasint,omitempty"`
	FromFailed string          `cbor:"12,keyasint,omitempty"`
	// UnlessEnded: nobody has said whether a job of this name that ended unfinished is to go on or to begin anew.
	UnlessEnded bool `cbor:"13,keyasint,omitempty"`
}

// CreateReply is what came of it.
type CreateReply struct {
	ID      uint64 `cbor:"1,keyasint"`
	Refused string `cbor:"2,keyasint"`
	Retry   bool   `cbor:"3,keyasint"` // the log has not answered, or had no room: ask again
	// Waits: the answer is yet to come, and the launcher is to wait: Refused is empty, Text what it prints, if anything.
	Waits bool   `cbor:"4,keyasint,omitempty"`
	Text  string `cbor:"5,keyasint,omitempty"`
}

// Tell is something that the launchers of a job print.
type Tell struct {
	Job  replica.JobID `cbor:"1,keyasint"`
	Text string        `cbor:"2,keyasint"`
}

// KVOp is a rendezvous request of a rank.
type KVOp uint8

const (
	KVSet KVOp = iota + 1
	KVGet
	KVBarrier
	KVAdd
	KVCheck
	KVCompareSet
	KVDelete
	KVScope // the daemon answers it itself
)

// KVRequest is such a request, in the name of a rank; a KVReply of the same ID answers it.
type KVRequest struct {
	ID      uint64        `cbor:"1,keyasint"`
	Op      KVOp          `cbor:"2,keyasint"`
	Job     replica.JobID `cbor:"3,keyasint"`
	Epoch   replica.Epoch `cbor:"4,keyasint"`
	Key     string        `cbor:"5,keyasint"`
	Value   []byte        `cbor:"6,keyasint"`
	Members int           `cbor:"7,keyasint"`
	Rank    replica.Rank  `cbor:"8,keyasint"`
	Expect  []byte        `cbor:"9,keyasint"`
	Delta   int64         `cbor:"10,keyasint"`
	Nonce   uint64        `cbor:"11,keyasint"` // of the rank's process
	Once    uint32        `cbor:"12,keyasint"` // of a write: the same number is the same write
}

// KVReply answers it.
type KVReply struct {
	ID      uint64 `cbor:"1,keyasint"`
	Value   []byte `cbor:"2,keyasint"`
	Fenced  bool   `cbor:"3,keyasint"`
	Refused string `cbor:"4,keyasint"`
	Again   bool   `cbor:"5,keyasint"` // the leader has not heard yet what all nodes keep: ask again
	Missing bool   `cbor:"6,keyasint"` // KVCheck: the key is not set
	Seq     uint64 `cbor:"7,keyasint"` // of a write: its place in the order; 0: it changed nothing
	Total   int64  `cbor:"8,keyasint"` // KVAdd: the sum; KVDelete: 1 if there was a key
}

// KVKept is what ranks of a node contributed to an epoch's rendezvous, for a leader that does not have it. The last one on a
// new link has Done and nothing else.
type KVKept struct {
	Job     replica.JobID `cbor:"1,keyasint"`
	Epoch   replica.Epoch `cbor:"2,keyasint"`
	Entries []KVEntry     `cbor:"3,keyasint"`
	Done    bool          `cbor:"4,keyasint"`
}

// KVEntry is a write that some leader took, or a barrier that let the rank through.
type KVEntry struct {
	Op      KVOp         `cbor:"1,keyasint"`
	Key     string       `cbor:"2,keyasint"`
	Value   []byte       `cbor:"3,keyasint"`
	Delta   int64        `cbor:"4,keyasint"`
	Members int          `cbor:"5,keyasint"`
	Rank    replica.Rank `cbor:"6,keyasint"`
	Nonce   uint64       `cbor:"7,keyasint"`
	Once    uint32       `cbor:"8,keyasint"`
	Seq     uint64       `cbor:"9,keyasint"`
	Total   int64        `cbor:"10,keyasint"`
}

// Suspect is one witness's word that a node is silent on gossip and on the data path. Live is how far the witness's own
// ranks are.
type Suspect struct {
	Target replica.Holder                 `cbor:"1,keyasint"`
	Live   map[replica.JobID]replica.Step `cbor:"2,keyasint"`
	// SilentMS is for how long it has been silent, Steps how the witness's own ranks get on.
	SilentMS uint64                   `cbor:"17,keyasint,omitempty"`
	Steps    map[replica.JobID]StepMS `cbor:"18,keyasint,omitempty"`
}

// UnheardQuestion asks a voter which registered nodes it does not hear; UnheardAnswer is its answer.
type UnheardQuestion struct {
	ID uint64 `cbor:"1,keyasint"`
}

// UnheardAnswer names the nodes.
type UnheardAnswer struct {
	ID    uint64             `cbor:"1,keyasint"`
	Nodes []replica.NodeName `cbor:"2,keyasint"`
}

// StepMS is recovery.Steps in milliseconds.
type StepMS struct {
	Still uint64 `cbor:"1,keyasint"`
	Pace  uint64 `cbor:"2,keyasint"`
	// Broken is that of recovery.Steps.
	Broken bool `cbor:"3,keyasint,omitempty"`
}

// ShardReport says that a shard of the durable write under way is fsynced, or why not, or, with Written, how far it is.
type ShardReport struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Part       replica.Part       `cbor:"3,keyasint"`
	Info       replica.Stored     `cbor:"4,keyasint"`
	Failed     string             `cbor:"5,keyasint"`
	Written    uint64             `cbor:"6,keyasint,omitempty"` // bytes so far, of a shard that is still being written
	// LateMS is for how long a commit has waited for the slot that the write holds, in milliseconds; 0: none does.
	LateMS uint64 `cbor:"7,keyasint,omitempty"`
	// Fenced: another fleet has claimed the run's epoch, or a later one. Nothing of this one is written any more.
	Fenced bool `cbor:"8,keyasint,omitempty"`
	// Number is the durable write's: a generation may be written again.
	Number uint64 `cbor:"9,keyasint,omitempty"`
	// Also are further parts that lie in the same file.
	Also []replica.Part `cbor:"10,keyasint,omitempty"`
	// Crowded: the write has failed because a commit lacked the slot that it held.
	Crowded bool `cbor:"11,keyasint,omitempty"`
	// Ails is what keeps the store from taking the shard, of which Written is said: the write goes on. An older leader takes it for progress.
	Ails string `cbor:"12,keyasint,omitempty"`
}

// WriteTurn says that it is the node's turn to give the store its part of a durable write of many nodes. It is said again while the node writes.
type WriteTurn struct {
	Job    replica.JobID `cbor:"1,keyasint"`
	Number uint64        `cbor:"2,keyasint"` // the write's
}

// MarkerOrder asks the writer to write the commit marker; MarkedReport is its answer.
type MarkerOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Shards     []ShardReport      `cbor:"3,keyasint"`
	Lacks      []replica.Lacking  `cbor:"4,keyasint,omitempty"` // what the generation lacks, as far as a rank has said so
	Number     uint64             `cbor:"5,keyasint,omitempty"` // as ShardReport's
	Said       []replica.Remark   `cbor:"6,keyasint,omitempty"`
	Keep       string             `cbor:"7,keyasint,omitempty"` // why the generation is to be pinned; empty: nobody wants that
}

// SaidReport is all that ranks and launchers of a node say of the generation that a durable write is of.
type SaidReport struct {
	Job    replica.JobID    `cbor:"1,keyasint"`
	Number uint64           `cbor:"2,keyasint"` // the durable write's
	Said   []replica.Remark `cbor:"3,keyasint"`
}

// MarkedReport says what came of a MarkerOrder; Failed is empty where the marker lies there.
type MarkedReport struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Failed     string             `cbor:"3,keyasint"`
	Fenced     bool               `cbor:"4,keyasint,omitempty"` // as ShardReport's
	Number     uint64             `cbor:"5,keyasint,omitempty"`
}

// SpoolOrder asks a node what its spool holds of a job's durable writes that died with their daemons; Name is the job's. With Parts it has the
// node write those of one generation, out of whichever notes have them.
type SpoolOrder struct {
	ID         uint64             `cbor:"1,keyasint"` // of the question
	Name       string             `cbor:"2,keyasint"`
	Job        replica.JobID      `cbor:"3,keyasint,omitempty"`
	Generation replica.Generation `cbor:"4,keyasint,omitempty"`
	As         uint64             `cbor:"6,keyasint,omitempty"` // the number that its objects get
	Fleet      string             `cbor:"7,keyasint,omitempty"` // that claims Epoch of the run
	Epoch      replica.Epoch      `cbor:"8,keyasint,omitempty"`
	Parts      []replica.PartRoot `cbor:"9,keyasint,omitempty"` // without holders
}

// SpoolReport is the answer to a SpoolOrder, whole.
type SpoolReport struct {
	ID uint64 `cbor:"1,keyasint"`
	// Left are what format.ParseSpooled reads, without pieces.
	Left   [][]byte         `cbor:"2,keyasint,omitempty"`
	Passed []string         `cbor:"3,keyasint,omitempty"` // what can't be used, and why
	Wrote  []replica.Stored `cbor:"4,keyasint,omitempty"`
	Failed string           `cbor:"5,keyasint,omitempty"`
}

// AgentsReport is all of torchrun's agents that stand in a job's rounds through launchers of a node.
type AgentsReport struct {
	Job    replica.JobID `cbor:"1,keyasint"`
	Agents []wire.Agent  `cbor:"2,keyasint"`
}

// AgentRound tells one of them what it is to do.
type AgentRound struct {
	Job   replica.JobID `cbor:"1,keyasint"`
	Round wire.Round    `cbor:"2,keyasint"`
}

// Leaving says that the node's daemon was asked to end; MayLeave answers, at once and for as long as it is to wait. One that goes waits for no
// answer: nobody is to count on it.
type Leaving struct {
	Goes bool `cbor:"1,keyasint,omitempty"`
}

// MayLeave says why a daemon is to wait before it ends; empty: it may. With Keep what is committed is not written, and nobody else is known to have
// it: the daemon leaves what it holds of it in its spool.
type MayLeave struct {
	Why  string `cbor:"1,keyasint"`
	Keep bool   `cbor:"2,keyasint,omitempty"`
}

// EndRequest asks to end a job: the process of a rank has ended in a way that a new one would only repeat.
type EndRequest struct {
	Name   string       `cbor:"1,keyasint"`
	Reason string       `cbor:"2,keyasint"`
	Rank   replica.Rank `cbor:"3,keyasint"`
}

// StatusRequest asks for the leader's part of the status.
type StatusRequest struct {
	ID uint64 `cbor:"1,keyasint"`
}

// StatusReply answers a StatusRequest.
type StatusReply struct {
	ID     uint64       `cbor:"1,keyasint"`
	Status LeaderStatus `cbor:"2,keyasint"`
}

// AskView asks for the whole state: what the node was told last does not follow what it knows.
type AskView struct{}

// View is the replicated state as the leader has applied it: what a node is told first. After it comes a change, right behind it, and more of
// them as they happen, and progress.
type View struct {
	Index uint64                            `cbor:"1,keyasint"`
	Term  uint64                            `cbor:"2,keyasint"`
	Era   replica.Era                       `cbor:"3,keyasint"`
	Nodes map[replica.NodeName]replica.Node `cbor:"4,keyasint"`
	Jobs  []*replica.Job                    `cbor:"5,keyasint"`
	// Revoked is all that is revoked.
	Revoked []replica.Revocation `cbor:"6,keyasint,omitempty"`
}

// Progress is what a commit changed: the short form of a view, once a step.
type Progress struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Index      uint64             `cbor:"2,keyasint"`
	Position   replica.Position   `cbor:"3,keyasint"`
	Generation replica.Generation `cbor:"4,keyasint"`
}

// MirrorOrder has a node send what it holds of a generation to its mirrors while the job is closed.
type MirrorOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Epoch      replica.Epoch      `cbor:"2,keyasint"` // the closed one
	Generation replica.Generation `cbor:"3,keyasint"`
}

// Unreached says that a node has failed for some seconds to bring a part to the nodes To, which mirror it; with Fetch, to have a part of the
// plan of Epoch from any of them, for a rank.
type Unreached struct {
	Job   replica.JobID      `cbor:"1,keyasint"`
	To    []replica.NodeName `cbor:"2,keyasint"`
	Part  replica.Part       `cbor:"3,keyasint"`
	Why   string             `cbor:"4,keyasint"`
	Fetch bool               `cbor:"5,keyasint"`
	Epoch replica.Epoch      `cbor:"6,keyasint"`
	Rank  replica.Rank       `cbor:"7,keyasint"`
	// TookMS is how long the newest try took that failed, in milliseconds: one that the other end lets hang fails no more often.
	TookMS uint64 `cbor:"8,keyasint"`
}

// RelayOrder has Node fetch a part of the plan of Epoch, which another node can't get from its holders; all nodes take Node for a holder.
type RelayOrder struct {
	Job   replica.JobID  `cbor:"1,keyasint"`
	Epoch replica.Epoch  `cbor:"2,keyasint"`
	Part  replica.Part   `cbor:"3,keyasint"`
	Rank  replica.Rank   `cbor:"4,keyasint"`
	Node  replica.Holder `cbor:"5,keyasint"`
}

// CaptureOrder has the ranks of a node keep a generation that the job may go on from.
type CaptureOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
}

// CorruptCopy names a copy that arrived corrupt, to the leader; and, passed on, the copy that Node is to read again.
type CorruptCopy struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Part       replica.Part       `cbor:"2,keyasint"`
	Generation replica.Generation `cbor:"3,keyasint"`
	Root       replica.Digest     `cbor:"4,keyasint"`
	Node       replica.NodeName   `cbor:"5,keyasint"`
}

// CopyReport says that its node has lost its copy of a committed part (Lost), or has it again. The node repeats it until the record says so.
type CopyReport struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Part       replica.Part       `cbor:"2,keyasint"`
	Generation replica.Generation `cbor:"3,keyasint"`
	Root       replica.Digest     `cbor:"4,keyasint"`
	Lost       bool               `cbor:"5,keyasint,omitempty"`
}

// RegionsOrder asks for a replica.RegionReport: the regions of a part that lies sealed in a rank's arena.
type RegionsOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Part       replica.Part       `cbor:"3,keyasint"`
	Rank       replica.Rank       `cbor:"4,keyasint"`
	Root       replica.Digest     `cbor:"5,keyasint"`
}

// GrowthRefused answers a rank that waits in a growth: it goes on with the regions that it has.
type GrowthRefused struct {
	Job  replica.JobID `cbor:"1,keyasint"`
	Rank replica.Rank  `cbor:"2,keyasint"`
	Ask  uint64        `cbor:"3,keyasint"`
	Why  string        `cbor:"4,keyasint"`
}

// OtherLayout says how a job that runs has another layout than the one asked for; empty: it has that one.
func (c CreateRequest) OtherLayout(job *replica.Job) string {
	const remedy = "end it (replicad job end %s) or use another name"
	if job.Naming != nil && !c.takesGroups() {
		return fmt.Sprintf("job %q runs with groups that its %d ranks name, not in %v: leave --groups out, "+remedy, job.Name, job.Layout.World, c.Layout.Groups, job.Name)
	}
	if differs := c.Unlike(job.Layout); differs != "" {
		return fmt.Sprintf("job %q runs with %s: "+remedy, job.Name, differs, job.Name)
	}
	return ""
}

// OtherOrigin says how a job that runs began otherwise than is asked for; empty: it did not. With Resume a job that has begun is what is asked for,
// unless it began with something else.
func (c CreateRequest) OtherOrigin(job *replica.Job) string {
	switch {
	case c.From == nil || job.From == nil && c.Resume || job.From != nil && c.From.Same(job.From):
		return ""
	case job.From == nil:
		return fmt.Sprintf("job %q runs, and began with its program's own state, not with %s: leave --from out to join it, end it (replicad job end %s) or use another name", job.Name, c.From.Asked, job.Name)
	}
	return fmt.Sprintf("job %q runs, and began with %v (%s), not with %s: leave --from out to join it, end it (replicad job end %s) or use another name", job.Name, job.From, job.From.Asked, c.From.Asked, job.Name)
}

// takesGroups tells whether the launcher is content with whatever groups there are.
func (c CreateRequest) takesGroups() bool { return c.NameGroups || c.AnyGroups }

// Unlike says how a layout that is there differs from the one asked for; empty: it will do.
func (c CreateRequest) Unlike(l replica.Layout) string {
	switch {
	case c.takesGroups() && l.World != c.Layout.World:
		return fmt.Sprintf("%d ranks, not %d", l.World, c.Layout.World)
	case !c.takesGroups() && (l.World != c.Layout.World || !slices.Equal(l.Groups, c.Layout.Groups)):
		return fmt.Sprintf("%d ranks in groups %v, not %d in %v", l.World, l.Groups, c.Layout.World, c.Layout.Groups)
	}
	return ""
}
