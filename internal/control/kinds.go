package control

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Direction is the end of a link that a message goes to.
type Direction uint8

const (
	ToLeader Direction = iota + 1
	ToNode
)

// Frames of the control class (kinds 32 to 63, and 96 to 127).
const (
	KindHello       wire.Kind = 32
	KindWelcome     wire.Kind = 33
	KindReport      wire.Kind = 34
	kindPinned      wire.Kind = 35
	kindPassed      wire.Kind = 36
	kindEvidence    wire.Kind = 37
	KindClaim       wire.Kind = 38
	kindCreate      wire.Kind = 39
	kindKV          wire.Kind = 40
	kindSuspect     wire.Kind = 41
	kindShard       wire.Kind = 42
	kindEnd         wire.Kind = 43
	kindStatus      wire.Kind = 44
	kindMarked      wire.Kind = 45
	kindCorrupt     wire.Kind = 46
	kindReject      wire.Kind = 47
	KindView        wire.Kind = 48
	kindProgress    wire.Kind = 49
	kindCandidate   wire.Kind = 50
	KindOffer       wire.Kind = 51
	kindCapture     wire.Kind = 52
	KindClaimReply  wire.Kind = 53
	KindCreateReply wire.Kind = 54
	kindKVReply     wire.Kind = 55
	kindMarker      wire.Kind = 56
	KindStatusReply wire.Kind = 57
	KindBeat        wire.Kind = 58
	kindRecheck     wire.Kind = 59
	KindOperator    wire.Kind = 60
	KindKept        wire.Kind = 61
	kindRegions     wire.Kind = 62
	kindAskRegions  wire.Kind = 63
	kindMirror      wire.Kind = 96
	kindTell        wire.Kind = 97
	kindUnreached   wire.Kind = 102
	kindRelay       wire.Kind = 103
	kindAskUnheard  wire.Kind = 104
	kindUnheard     wire.Kind = 105
	kindPushing     wire.Kind = 106
	KindChange      wire.Kind = 110
	KindPiece       wire.Kind = 111
	kindAskView     wire.Kind = 112
	kindCopy        wire.Kind = 114
	kindGrowth      wire.Kind = 115
	kindLeaving     wire.Kind = 116
	kindMayLeave    wire.Kind = 117
	kindSpool       wire.Kind = 118
	kindSpooled     wire.Kind = 119
	kindSaid        wire.Kind = 120
	kindStanding    wire.Kind = 121
	kindClocks      wire.Kind = 122
	kindKeep        wire.Kind = 123
	kindTurn        wire.Kind = 125
	kindAgents      wire.Kind = 126
	kindRound       wire.Kind = 127

	KindOperatorReply wire.Kind = 113
)

// MaxHello caps a hello, in bytes: a name, addresses, labels, and some thirty bytes for each claim that the node runs.
const MaxHello = 64 << 10

// MaxLinkFrame caps a frame on a link, in bytes. What may be larger, a view or a change of one, travels in pieces.
const MaxLinkFrame = 16 << 20

// table is every message of a link: its kind, its type and where it goes. Encoding and decoding follow it, and both ends are tested to handle
// each type that goes to them. A type has one kind in a direction.
var table = []row{
	handshake[Hello](KindHello, ToLeader),
	newest[replica.NodeReport](KindReport, ToLeader),
	message[replica.Pinned](kindPinned, ToLeader),
	message[replica.Passed](kindPassed, ToLeader),
	atWill[Evidence](kindEvidence, ToLeader),
	message[ClaimRequest](KindClaim, ToLeader),
	message[CreateRequest](kindCreate, ToLeader),
	atWill[KVRequest](kindKV, ToLeader),
	message[KVKept](KindKept, ToLeader),
	message[Suspect](kindSuspect, ToLeader),
	message[ShardReport](kindShard, ToLeader),
	message[MarkedReport](kindMarked, ToLeader),
	newest[SaidReport](kindSaid, ToLeader),
	message[EndRequest](kindEnd, ToLeader),
	message[Leaving](kindLeaving, ToLeader),
	message[StatusRequest](kindStatus, ToLeader),
	message[Order](KindOperator, ToLeader), // answered by an OperatorReply
	message[CorruptCopy](kindCorrupt, ToLeader),
	atWill[Rejected](kindReject, ToLeader),
	message[replica.RegionReport](kindRegions, ToLeader),
	message[Unreached](kindUnreached, ToLeader),
	message[PushReport](kindPushing, ToLeader),
	message[UnheardAnswer](kindUnheard, ToLeader),
	message[AskView](kindAskView, ToLeader),
	message[CopyReport](kindCopy, ToLeader),
	message[SpoolReport](kindSpooled, ToLeader),
	message[AgentsReport](kindAgents, ToLeader),
	message[Standing](kindStanding, ToLeader),
	newest[replica.Ledger](kindClocks, ToLeader), // a node's first word of a job

	handshake[Welcome](KindWelcome, ToNode),
	handshake[Beat](KindBeat, ToNode),   // the leader is there
	handshake[piece](KindPiece, ToNode), // of a larger message
	message[View](KindView, ToNode),
	message[Change](KindChange, ToNode),
	message[Progress](kindProgress, ToNode),
	newest[replica.Candidate](kindCandidate, ToNode),
	newest[Offers](KindOffer, ToNode), // one that waits is added to
	newest[CaptureOrder](kindCapture, ToNode),
	newest[replica.Ledger](kindKeep, ToNode), // to be said to the next leader
	message[MirrorOrder](kindMirror, ToNode),
	message[RelayOrder](kindRelay, ToNode),
	message[CorruptCopy](kindRecheck, ToNode), // read it again
	message[RegionsOrder](kindAskRegions, ToNode),
	message[GrowthRefused](kindGrowth, ToNode),
	message[ClaimReply](KindClaimReply, ToNode),
	message[CreateReply](KindCreateReply, ToNode),
	atWill[KVReply](kindKVReply, ToNode),
	message[MarkerOrder](kindMarker, ToNode),
	message[WriteTurn](kindTurn, ToNode),
	message[StatusReply](KindStatusReply, ToNode),
	message[OperatorReply](KindOperatorReply, ToNode),
	message[Tell](kindTell, ToNode),
	message[MayLeave](kindMayLeave, ToNode),
	message[SpoolOrder](kindSpool, ToNode),
	message[AgentRound](kindRound, ToNode),
	message[UnheardQuestion](kindAskUnheard, ToNode), // of a voter
}

// row is one kind of message.
type row struct {
	kind    wire.Kind
	to      Direction
	handled bool // by who has the link; the link itself reads the others
	newest  bool // a job's newest makes void what waits of its kind
	atWill  bool // processes cause as many as they like: what a lane has no place for is left out, and it is theirs
	job     int  // the field that names its job; -1: none does
	typ     reflect.Type
	decode  func(body []byte) (any, error)
}

func handshake[T any](k wire.Kind, to Direction) row {
	return row{kind: k, to: to, job: jobField(reflect.TypeFor[T]()), typ: reflect.TypeFor[T](), decode: func(body []byte) (any, error) { return DecodeAs[T](body) }}
}

func message[T any](k wire.Kind, to Direction) row {
	r := handshake[T](k, to)
	r.handled = true
	return r
}

func newest[T any](k wire.Kind, to Direction) row {
	r := message[T](k, to)
	r.newest = true
	return r
}

// atWill is a message that nobody misses but the process that caused it: that one asks again, or a node's report says as much.
func atWill[T any](k wire.Kind, to Direction) row {
	r := message[T](k, to)
	r.atWill = true
	return r
}

// jobField is the field of a message that names its job.
func jobField(t reflect.Type) int {
	if f, ok := t.FieldByName("Job"); ok && f.Type == reflect.TypeFor[replica.JobID]() && len(f.Index) == 1 {
		return f.Index[0]
	}
	return -1
}

// User is whose lane what belongs to no job yet waits in.
type User uint32

func (u User) String() string { return fmt.Sprint("user ", uint32(u)) }

// laneOf is whose lane a message waits in: that of the job that it names, or of the user for whom it asks. nil: it is nobody's. What a node keeps
// for rendezvous ends with a word of no job, and stays in its order.
func laneOf(to Direction, v any) any {
	switch m := v.(type) {
	case ClaimRequest:
		return m.Claim.Job
	case CreateRequest:
		return User(m.Owner)
	}
	r := byKind[byType[spoken{to, reflect.TypeOf(v)}]]
	switch {
	case r.kind == KindKept:
		return KindKept
	case r.kind == 0 || r.job < 0:
		return nil
	}
	return reflect.ValueOf(v).Field(r.job).Interface()
}

// spoken is a type in a direction, which is what a kind stands for.
type spoken struct {
	to  Direction
	typ reflect.Type
}

var byKind, byType = func() (map[wire.Kind]row, map[spoken]wire.Kind) {
	kinds, types := map[wire.Kind]row{}, map[spoken]wire.Kind{}
	for _, r := range table {
		kinds[r.kind], types[spoken{r.to, r.typ}] = r, r.kind
	}
	return kinds, types
}()

// HandledTypes are the types that whoever reads a link in a direction is told, as Go writes them.
func HandledTypes(to Direction) (names []string) {
	for _, r := range table {
		if r.to == to && r.handled {
			names = append(names, r.typ.String())
		}
	}
	return names
}

// Encode encodes a message for one end. What goes to a node may be of any size up to wire.MaxState, and come in several frames; what a
// node says is never so large, and is one.
func Encode(to Direction, v any) ([][]byte, error) {
	k, ok := byType[spoken{to, reflect.TypeOf(v)}]
	if !ok {
		return nil, fmt.Errorf("encode message: a %T is in no row of the table for this direction", v)
	}
	if to == ToNode {
		return inPieces(k, v)
	}
	frame, err := wire.Append(nil, k, v)
	if err != nil {
		return nil, fmt.Errorf("encode message %d: %w", k, err)
	}
	return [][]byte{frame}, nil
}

// Decode reads a message that came to one end, other than those that the link reads by itself.
func Decode(to Direction, kind wire.Kind, body []byte) (any, error) {
	r, ok := byKind[kind]
	if !ok || r.to != to || !r.handled {
		return nil, errors.New("unknown kind")
	}
	return r.decode(body)
}

// Decoder reads what comes to a node, which may come in pieces; zero is ready.
type Decoder struct{ pieces assembly }

// Decode reads a frame. A beat, and a piece that is not the last of its message, make no message: nil.
func (d *Decoder) Decode(kind wire.Kind, body []byte) (any, error) {
	switch kind {
	case KindBeat:
		return nil, nil
	case KindPiece:
		p, err := DecodeAs[piece](body)
		if err != nil {
			return nil, err
		}
		k, whole, done, err := d.pieces.add(p)
		if err != nil || !done {
			return nil, err
		}
		kind, body = k, whole
	}
	return Decode(ToNode, kind, body)
}

// DecodeAs reads a message's body into a new T.
func DecodeAs[T any](body []byte) (T, error) {
	var v T
	err := wire.Unmarshal(body, &v)
	return v, err
}
