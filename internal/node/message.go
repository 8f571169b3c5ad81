package node

import (
	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Frames of the control class (kinds 32 to 63). A link is one stream that a node opens to the leader.
const (
	kindLinkHello   wire.Kind = 32 // node -> leader, first
	kindWelcome     wire.Kind = 33 // leader -> node, first
	kindReport      wire.Kind = 34 // replica.NodeReport
	kindPinned      wire.Kind = 35 // replica.Pinned
	kindPassed      wire.Kind = 36 // replica.Passed
	kindEvidence    wire.Kind = 37
	kindClaim       wire.Kind = 38
	kindCreate      wire.Kind = 39
	kindKV          wire.Kind = 40
	kindSuspect     wire.Kind = 41
	kindShard       wire.Kind = 42
	kindEnd         wire.Kind = 43
	kindStatus      wire.Kind = 44
	kindMarked      wire.Kind = 45
	kindCorrupt     wire.Kind = 46 // corruptCopy
	kindReject      wire.Kind = 47
	kindOperator    wire.Kind = 60 // operatorRequest; answered by kindStatusReply
	kindKept        wire.Kind = 61 // kvKept
	kindRecheck     wire.Kind = 59 // corruptCopy: read it again
	kindRegions     wire.Kind = 62 // replica.RegionReport
	kindView        wire.Kind = 48 // leader -> node from here on
	kindProgress    wire.Kind = 49
	kindCandidate   wire.Kind = 50 // replica.Candidate
	kindOffer       wire.Kind = 51
	kindCapture     wire.Kind = 52
	kindClaimReply  wire.Kind = 53
	kindCreateReply wire.Kind = 54
	kindKVReply     wire.Kind = 55
	kindMarker      wire.Kind = 56
	kindStatusReply wire.Kind = 57
	kindBeat        wire.Kind = 58 // the leader is there
	kindAskRegions  wire.Kind = 63
	kindTell        wire.Kind = 97
	kindMirror      wire.Kind = 96
	kindUnreached   wire.Kind = 102 // node -> leader
	kindRelay       wire.Kind = 103 // leader -> node
	kindAskUnheard  wire.Kind = 104 // leader -> voter
	kindUnheard     wire.Kind = 105 // voter -> leader
	kindChange      wire.Kind = 110 // leader -> node
	kindPiece       wire.Kind = 111 // leader -> node: of a view or a change
	kindAskView     wire.Kind = 112 // node -> leader
)

// maxHello caps a hello, in bytes: a name, an address and labels.
const maxHello = 64 << 10

// maxLinkFrame caps a frame on a link, in bytes. What may be larger, a view or a change of one, travels in pieces.
const maxLinkFrame = 16 << 20

type linkHello struct {
	Cluster replica.ClusterID `cbor:"1,keyasint"`
	Node    replica.Node      `cbor:"2,keyasint"`
}

// welcome answers a hello. Leader is set where the answerer does not lead: try there. Refused tells that asking again changes nothing
// until somebody does what Reason says.
type welcome struct {
	OK      bool             `cbor:"1,keyasint"`
	Reason  string           `cbor:"2,keyasint"`
	Leader  replica.NodeName `cbor:"3,keyasint"`
	Address string           `cbor:"4,keyasint"`
	Term    uint64           `cbor:"5,keyasint"`
	Era     replica.Era      `cbor:"6,keyasint"`
	Refused bool             `cbor:"7,keyasint,omitempty"`
}

// notLeader is the Reason of who does not lead.
const notLeader = "not the leader"

type beat struct{}

// operatorVerb is what an operator asks of the leader.
type operatorVerb uint8

// The verbs of an Order.
const (
	Lost   operatorVerb = iota // the node's memory is gone
	Drain                      // the node's ranks move elsewhere
	Clear                      // the node may be used again
	EndJob                     // a job ends
	Voters                     // who votes
	AddVoter
	RemoveVoter
	RevokeNode     // a node's certificates are good no more
	RevokeOperator // an operator's
)

// operatorRequest is an operator's word; the answer is an operatorReply.
type operatorRequest struct {
	ID   uint64           `cbor:"1,keyasint" json:"-"` // between the daemon and its leader
	Node replica.NodeName `cbor:"2,keyasint" json:",omitempty"`
	Why  string           `cbor:"3,keyasint" json:",omitempty"`
	Verb operatorVerb     `cbor:"4,keyasint"`
	Job  string           `cbor:"5,keyasint" json:",omitempty"`
	Addr string           `cbor:"6,keyasint" json:",omitempty"`
	// Degrade accepts what a drain, or a revocation, costs.
	Degrade bool `cbor:"23,keyasint,omitempty" json:",omitempty"`
	// UID is whose process asked on the admin socket, by the daemon's word; Proof is an operator's signature, nil: nobody signed.
	UID   uint32 `cbor:"24,keyasint,omitempty" json:"-"`
	Proof *proof `cbor:"25,keyasint,omitempty" json:",omitempty"`
	// Operator is whose certificates are revoked, where they are not a node's; Until the last epoch that is.
	Operator string            `cbor:"26,keyasint,omitempty" json:",omitempty"`
	Until    replica.CertEpoch `cbor:"27,keyasint,omitempty" json:",omitempty"`
}

// rejected is a rank's word against the state it was given to load.
type rejected struct {
	Job         replica.JobID       `cbor:"1,keyasint"`
	Epoch       replica.Epoch       `cbor:"2,keyasint"`
	Rank        replica.Rank        `cbor:"3,keyasint"`
	Incarnation replica.Incarnation `cbor:"4,keyasint"`
	Why         string              `cbor:"5,keyasint"`
}

type evidence struct {
	Job   replica.JobID `cbor:"1,keyasint"`
	Fault replica.Fault `cbor:"2,keyasint"`
}

type claimRequest struct {
	ID    uint64        `cbor:"1,keyasint"`
	Claim replica.Claim `cbor:"2,keyasint"`
	Token string        `cbor:"3,keyasint,omitempty"` // that the rank's process showed
}

type claimReply struct {
	ID          uint64              `cbor:"1,keyasint"`
	Incarnation replica.Incarnation `cbor:"2,keyasint"`
	Refused     string              `cbor:"3,keyasint"`
	Retry       bool                `cbor:"4,keyasint"` // refused for what may change: ask again after the next view
}

type createRequest struct {
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
}

type createReply struct {
	ID      uint64 `cbor:"1,keyasint"`
	Refused string `cbor:"2,keyasint"`
	Retry   bool   `cbor:"3,keyasint"` // refused for want of room alone: ask again
}

// tell is something that the launchers of a job print.
type tell struct {
	Job  replica.JobID `cbor:"1,keyasint"`
	Text string        `cbor:"2,keyasint"`
}

// kvOp is a rendezvous request of a rank.
type kvOp uint8

const (
	kvSet kvOp = iota + 1
	kvGet
	kvBarrier
	kvAdd
	kvCheck
	kvCompareSet
	kvDelete
	kvScope // the daemon answers it itself
)

type kvRequest struct {
	ID      uint64        `cbor:"1,keyasint"`
	Op      kvOp          `cbor:"2,keyasint"`
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

type kvReply struct {
	ID      uint64 `cbor:"1,keyasint"`
	Value   []byte `cbor:"2,keyasint"`
	Fenced  bool   `cbor:"3,keyasint"`
	Refused string `cbor:"4,keyasint"`
	Again   bool   `cbor:"5,keyasint"` // the leader has not heard yet what all nodes keep: ask again
	Missing bool   `cbor:"6,keyasint"` // kvCheck: the key is not set
	Seq     uint64 `cbor:"7,keyasint"` // of a write: its place in the order; 0: it changed nothing
	Total   int64  `cbor:"8,keyasint"` // kvAdd: the sum; kvDelete: 1 if there was a key
}

// kvKept is what ranks of a node contributed to an epoch's rendezvous, for a leader that does not have it. The last one on a
// new link has Done and nothing else.
type kvKept struct {
	Job     replica.JobID `cbor:"1,keyasint"`
	Epoch   replica.Epoch `cbor:"2,keyasint"`
	Entries []kvEntry     `cbor:"3,keyasint"`
	Done    bool          `cbor:"4,keyasint"`
}

// kvEntry is a write that some leader took, or a barrier that let the rank through.
type kvEntry struct {
	Op      kvOp         `cbor:"1,keyasint"`
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

// suspect is one witness's word that a node is silent on gossip and on the data path. Live is how far the witness's own
// ranks are.
type suspect struct {
	Target replica.Holder                 `cbor:"1,keyasint"`
	Live   map[replica.JobID]replica.Step `cbor:"2,keyasint"`
	// SilentMS is for how long it has been silent, Steps how the witness's own ranks get on.
	SilentMS uint64                   `cbor:"17,keyasint,omitempty"`
	Steps    map[replica.JobID]stepMS `cbor:"18,keyasint,omitempty"`
}

// unheardQuestion asks a voter which registered nodes it does not hear; unheardAnswer is its answer.
type unheardQuestion struct {
	ID uint64 `cbor:"1,keyasint"`
}

type unheardAnswer struct {
	ID    uint64             `cbor:"1,keyasint"`
	Nodes []replica.NodeName `cbor:"2,keyasint"`
}

// stepMS is recovery.Steps in milliseconds.
type stepMS struct {
	Still uint64 `cbor:"1,keyasint"`
	Pace  uint64 `cbor:"2,keyasint"`
	// Broken is that of recovery.Steps.
	Broken bool `cbor:"3,keyasint,omitempty"`
}

// shardReport says that a shard of the durable write under way is fsynced, or why not.
type shardReport struct {
	Job        replica.JobID        `cbor:"1,keyasint"`
	Generation replica.Generation   `cbor:"2,keyasint"`
	Part       replica.Part         `cbor:"3,keyasint"`
	Info       checkpoint.ShardInfo `cbor:"4,keyasint"`
	Failed     string               `cbor:"5,keyasint"`
}

// markerOrder asks the writer to write the commit marker; markedReport is its answer.
type markerOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Shards     []shardReport      `cbor:"3,keyasint"`
}

type markedReport struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Failed     string             `cbor:"3,keyasint"`
}

// endRequest asks to end a job: the process of a rank has ended in a way that a new one would only repeat.
type endRequest struct {
	Name   string       `cbor:"1,keyasint"`
	Reason string       `cbor:"2,keyasint"`
	Rank   replica.Rank `cbor:"3,keyasint"`
}

type statusRequest struct {
	ID uint64 `cbor:"1,keyasint"`
}

type statusReply struct {
	ID   uint64 `cbor:"1,keyasint"`
	JSON []byte `cbor:"2,keyasint"`
}

// askView asks for the whole state: what the node was told last does not follow what it knows.
type askView struct{}

// view is the replicated state as the leader has applied it: what a node is told first. After it comes a change, right behind it, and more of
// them as they happen, and progress.
type view struct {
	Index uint64                            `cbor:"1,keyasint"`
	Term  uint64                            `cbor:"2,keyasint"`
	Era   replica.Era                       `cbor:"3,keyasint"`
	Nodes map[replica.NodeName]replica.Node `cbor:"4,keyasint"`
	Jobs  []*replica.Job                    `cbor:"5,keyasint"`
	// Revoked is all that is revoked.
	Revoked []replica.Revocation `cbor:"6,keyasint,omitempty"`
}

// progress is what a commit changed: the short form of a view, once a step.
type progress struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Index      uint64             `cbor:"2,keyasint"`
	Position   replica.Position   `cbor:"3,keyasint"`
	Generation replica.Generation `cbor:"4,keyasint"`
}

type offer struct {
	Job    replica.JobID       `cbor:"1,keyasint"`
	Rank   replica.Rank        `cbor:"2,keyasint"`
	Expect replica.Incarnation `cbor:"3,keyasint"`
}

// mirrorOrder has a node send what it holds of a generation to its mirrors while the job is closed.
type mirrorOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Epoch      replica.Epoch      `cbor:"2,keyasint"` // the closed one
	Generation replica.Generation `cbor:"3,keyasint"`
}

// unreached says that a node has failed for some seconds to bring a part to the nodes To, which mirror it; with Fetch, to have a part of the
// plan of Epoch from any of them, for a rank.
type unreached struct {
	Job   replica.JobID      `cbor:"1,keyasint"`
	To    []replica.NodeName `cbor:"2,keyasint"`
	Part  replica.Part       `cbor:"3,keyasint"`
	Why   string             `cbor:"4,keyasint"`
	Fetch bool               `cbor:"5,keyasint"`
	Epoch replica.Epoch      `cbor:"6,keyasint"`
	Rank  replica.Rank       `cbor:"7,keyasint"`
}

// relayOrder has Node fetch a part of the plan of Epoch, which another node can't get from its holders; all nodes take Node for a holder.
type relayOrder struct {
	Job   replica.JobID  `cbor:"1,keyasint"`
	Epoch replica.Epoch  `cbor:"2,keyasint"`
	Part  replica.Part   `cbor:"3,keyasint"`
	Rank  replica.Rank   `cbor:"4,keyasint"`
	Node  replica.Holder `cbor:"5,keyasint"`
}

type captureOrder struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
}
