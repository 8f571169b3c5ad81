package transfer

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
)

// Key names what is asked for, by whom and under which epoch. A receiver of a request refuses an older epoch or
// incarnation for good, and a newer one with ErrNotYet until it has read the state machine.
type Key struct {
	Cluster     replica.ClusterID   `cbor:"1,keyasint"`
	Era         replica.Era         `cbor:"2,keyasint"`
	Job         replica.JobID       `cbor:"3,keyasint"`
	Epoch       replica.Epoch       `cbor:"4,keyasint"`
	Part        replica.Part        `cbor:"5,keyasint"`
	Generation  replica.Generation  `cbor:"6,keyasint"`
	Root        replica.Digest      `cbor:"7,keyasint"`
	Rank        replica.Rank        `cbor:"8,keyasint"`
	Incarnation replica.Incarnation `cbor:"9,keyasint"` // for whom
}

// Reader reads one sealed part. A push over several streams reads chunks from several goroutines; no call comes after Close.
type Reader interface {
	// Manifest is the part's; its root was checked when it was sealed or verified.
	Manifest() replica.Manifest
	// ReadChunk returns the bytes of chunk i, in dst where that is large enough: dst has the chunk's length. It writes nothing behind it.
	// An error means that the bytes can't be had any more; the stream ends with it.
	ReadChunk(i int, dst []byte) ([]byte, error)
	// Close releases the part. It is called once.
	Close()
}

// Receiving is a Reader of a part that is still on its way to this node. ReadChunk is asked for those that it has.
type Receiving interface {
	Reader
	// Has is true where chunk i is there. What has come stays.
	Has(i int) bool
}

// Paced is a Reader of a part whose bytes may be held back. Pace is called once for each stream that they are sent over; what it returns is
// called before each piece of them. Both calls come from a goroutine that does nothing else and ends with the stream, and may wait. Nil:
// nothing is held back.
type Paced interface {
	Reader
	Pace() func(bytes int)
}

// Sink takes verified chunks.
type Sink interface {
	// Have is true where chunk i is there: it was put, or was found and rehashed by now. Called for each chunk before the first Put.
	Have(i int) bool
	// Put stores a chunk whose digest was checked. It does not keep b, and refuses a number or length that the part does not have.
	// Several goroutines may call it. A fetch puts each chunk once. A push over several streams may put a chunk again, also at the
	// same time. It may end while other streams of it bring chunks: Put then fails, or drops the chunk, and changes nothing.
	Put(i int, b []byte) error
}

// Store is what a daemon serves from and mirrors into. Both methods authorise: peer is the certificate's name, and the key
// says for whom. Their errors reach the peer as one of this package's, by errors.Is. Several goroutines call them. Package storetest has
// this contract as a suite.
//
// A key of an older era, a closed epoch or a former incarnation is refused with ErrFenced, and one of a newer with ErrNotYet, as is an
// unknown job. A part of another cluster is refused for good.
type Store interface {
	// Open opens a sealed part for reading. One that is on its way may be opened as a Receiving. Any other is an ErrUnknownPart: the
	// key's part, generation and root must all be what the store has. A peer that the key is not for gets an error. An error comes
	// without a Reader.
	Open(peer replica.NodeName, k Key) (Reader, error)
	// Accept takes a mirror push of a manifest that is what the key names. The function is called exactly once: with nil when every
	// chunk was put (seal), or with what went wrong (abort); what it returns is answered to the producer.
	//
	// After nil is returned the store has the part. After an error it has not, unless it did before: the place is free, and the next
	// push may find there what has arrived. A part that lacks chunks is not sealed, but aborted with an error. A part that is here is
	// accepted all the same, with a Sink that has it. An error of Accept comes without Sink and function, and leaves nothing behind.
	Accept(peer replica.NodeName, k Key, m replica.Manifest) (Sink, func(error) error, error)
}

// Stream is one bidirectional stream of a lane.
type Stream = net.Conn

// Keeper is a Stream whose connection can serve one exchange after another: one over TCP. Keep takes the place of Close where the
// exchange ended as it should, with nothing of it left unread.
type Keeper interface{ Keep() }

// Transport is what a lane runs over.
type Transport uint8

// The transports.
const (
	QUIC Transport = iota // gets through wherever the cluster does
	TCP                   // TLS 1.3: a third of QUIC's processor time
)

func (t Transport) String() string { return [...]string{"QUIC", "TCP"}[t] }

// Lane is one connection that moves chunks, over QUIC or TCP. Streams of one lane share its fate.
type Lane interface {
	Open(ctx context.Context) (net.Conn, error)
	Peer() replica.NodeName
	Close()
}

// Source is one way to a holder. A node may be listed more than once, each a lane of its own: it is set aside when none of them works.
type Source struct {
	Node replica.NodeName
	// At is the address that the lane goes to, where the node has several; else empty. A lane that fails there is tried again while another
	// one to the node works: an interface may come back.
	At string
	// Over is what the lane runs over. One over QUIC serves while those over TCP to the same node connect, and when they fail or are slower;
	// else it stands back.
	Over Transport
	// Receives: the node fetches the part as well, and serves on what it has of it. That it has nothing is no failure, and its lanes end with
	// those to the sources that have all.
	Receives bool
	Dial     func(ctx context.Context) (Lane, error)
}

// Report says where a part came from.
type Report struct {
	Bytes   uint64                      // that arrived and were put
	Reused  uint64                      // that the sink had
	By      map[replica.NodeName]uint64 // Bytes by source
	Failed  map[replica.NodeName]string // why a source was set aside: all its lanes, or one that sent wrong bytes
	Lanes   []LaneReport                // those that connected or failed, in no order
	Corrupt []replica.NodeName          // those of Failed that sent bytes with a wrong digest: evidence for a BadDigest fault
}

// LaneReport says what one lane brought.
type LaneReport struct {
	Node  replica.NodeName
	Over  Transport
	Bytes uint64        // verified, also those that another lane was quicker with
	Took  time.Duration // while it asked for chunks
	Err   error         // nil: it was not at fault
}

// What a peer may answer. NotYet and Refused are worth another try; the others are final for that source.
var (
	ErrNotYet      = errors.New("not yet: the peer has not read that far")
	ErrFenced      = errors.New("fenced: a newer epoch or incarnation exists")
	ErrUnknownPart = errors.New("unknown part: the peer does not hold it")
	ErrCorrupt     = errors.New("corrupt: bytes do not match their digest")
	ErrRefused     = errors.New("refused: the peer is busy")
	ErrPeer        = errors.New("the peer failed")
	ErrProtocol    = errors.New("the peer broke the transfer protocol")
	ErrStalled     = errors.New("stalled: no byte arrived in time")
)

// Retryable tells whether asking the same peer again may help.
func Retryable(err error) bool { return errors.Is(err, ErrNotYet) || errors.Is(err, ErrRefused) }

func hash(b []byte) replica.Digest { return xxh3.Hash128(b).Bytes() }
