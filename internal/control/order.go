package control

import (
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Verb is what an Order asks for.
type Verb uint8

// The verbs of an Order.
const (
	Lost   Verb = iota // the node's memory is gone
	Drain              // the node's ranks move elsewhere
	Clear              // the node may be used again
	EndJob             // a job ends
	Voters             // who votes
	AddVoter
	RemoveVoter
	RevokeNode     // a node's certificates are good no more
	RevokeOperator // an operator's
	StopJob        // a job stops, and stays in memory for a while
	SaveJob        // what a job has committed is written now, and kept where Why says why
)

// Order is what an operator asks of the leader, as the command line makes it and an admin socket takes it; the answer is an OperatorReply.
type Order struct {
	ID   uint64           `cbor:"1,keyasint" json:"-"` // between the daemon and its leader
	Node replica.NodeName `cbor:"2,keyasint" json:",omitempty"`
	Why  string           `cbor:"3,keyasint" json:",omitempty"`
	Verb Verb             `cbor:"4,keyasint"`
	Job  string           `cbor:"5,keyasint" json:",omitempty"`
	Addr string           `cbor:"6,keyasint" json:",omitempty"`
	// Degrade accepts what a drain, or a revocation, costs.
	Degrade bool `cbor:"23,keyasint,omitempty" json:",omitempty"`
	// UID is whose process asked on the admin socket, by the daemon's word; Proof is an operator's signature, nil: nobody signed.
	UID   uint32 `cbor:"24,keyasint,omitempty" json:"-"`
	Proof *Proof `cbor:"25,keyasint,omitempty" json:",omitempty"`
	// Operator is whose certificates are revoked, where they are not a node's; Until the last epoch that is.
	Operator string            `cbor:"26,keyasint,omitempty" json:",omitempty"`
	Until    replica.CertEpoch `cbor:"27,keyasint,omitempty" json:",omitempty"`
	// Now ends a job without the write of what it has committed.
	Now bool `cbor:"28,keyasint,omitempty" json:",omitempty"`
	// Within is how long a drain is waited for, at most MaxWithin; 0: DrainTimeout.
	Within time.Duration `cbor:"29,keyasint,omitempty" json:",omitempty"`
}

// How long the ranks of a drained node have to run elsewhere before the operator is told that they do not: by default, and at most.
const (
	DrainTimeout = 20 * time.Second
	MaxWithin    = 24 * time.Hour
)

// Patience is how long the order itself may take, beside what the leader does for any order.
func (m Order) Patience() time.Duration {
	if m.Within <= 0 {
		return DrainTimeout
	}
	return min(m.Within, MaxWithin)
}

// orderMagic says what is signed, in which version.
const orderMagic = "replicad operator order 1"

// VerbChallenge asks for the challenge that the next order is signed over.
const VerbChallenge Verb = 64

// String is the verb as the command line has it.
func (v Verb) String() string {
	switch v {
	case Lost:
		return "node lost"
	case Drain:
		return "node drain"
	case Clear:
		return "node clear"
	case EndJob:
		return "job end"
	case StopJob:
		return "job stop"
	case SaveJob:
		return "ckpt save"
	case Voters:
		return "voter list"
	case AddVoter:
		return "voter add"
	case RemoveVoter:
		return "voter remove"
	case RevokeNode:
		return "revoke node"
	case RevokeOperator:
		return "revoke operator"
	case VerbChallenge: // no command
	}
	return fmt.Sprintf("request %d", uint8(v))
}

// Proof is an operator's signature under an order. The challenge is the leader's, random and good for one order: an order that was heard
// on its way is of no use a second time, nor to another leader, and no clock is asked.
type Proof struct {
	Challenge   []byte `cbor:"1,keyasint"`
	Certificate []byte `cbor:"2,keyasint"`
	Signature   []byte `cbor:"3,keyasint"`
}

// signedOrder is what is signed: all of an order, in the one encoding that it has.
type signedOrder struct {
	Magic     string            `cbor:"1,keyasint"` // and version
	Cluster   replica.ClusterID `cbor:"2,keyasint"`
	Challenge []byte            `cbor:"3,keyasint"`
	Order     Order             `cbor:"4,keyasint"` // without what a daemon adds, and the proof
}

// Signed is the bytes that an operator signs.
func (m Order) Signed(cluster replica.ClusterID, challenge []byte) ([]byte, error) {
	m.ID, m.UID, m.Proof = 0, 0, nil
	return wire.Append(nil, KindOperator, signedOrder{orderMagic, cluster, challenge, m})
}

// SignedBy is an order with an operator's signature over it and the leader's challenge; sign is pki.Operator's.
func (m Order) SignedBy(cluster replica.ClusterID, challenge []byte, sign func(message []byte) (certificate, signature []byte, err error)) (Order, error) {
	message, err := m.Signed(cluster, challenge)
	if err != nil {
		return m, err
	}
	p := &Proof{Challenge: challenge}
	if p.Certificate, p.Signature, err = sign(message); err != nil {
		return m, fmt.Errorf("sign as an operator: %w", err)
	}
	m.Proof = p
	return m, nil
}

// Revocation is what a signed order revokes, with the order itself as it was signed.
func (m Order) Revocation(cluster replica.ClusterID) (replica.Revocation, error) {
	role, name, _ := m.Revokes()
	if m.Proof == nil {
		return replica.Revocation{}, errors.New("nobody signed it")
	}
	message, err := m.Signed(cluster, m.Proof.Challenge)
	return replica.Revocation{Role: role, Name: name, Epoch: m.Until, Order: message, Certificate: m.Proof.Certificate, Signature: m.Proof.Signature}, err
}

// ReadSigned reads what an operator signed.
func ReadSigned(b []byte) (o signedOrder, err error) {
	err = wire.Decode(b, KindOperator, &o)
	return o, err
}

// Of tells whether it is an order, of this version, to a cluster.
func (o signedOrder) Of(cluster replica.ClusterID) bool {
	return o.Magic == orderMagic && o.Cluster == cluster
}

// Besides tells whether an order is carried out beside the leader's goroutine, whatever that is at.
func (m Order) Besides() bool {
	return m.Verb == EndJob || m.Verb == StopJob || m.Verb == SaveJob || m.Verb == VerbChallenge
}

// Revokes says whose certificates an order revokes.
func (m Order) Revokes() (role replica.Role, name string, ok bool) {
	switch m.Verb {
	case RevokeNode:
		return replica.NodeRole, string(m.Node), true
	case RevokeOperator:
		return replica.OperatorRole, m.Operator, true
	default:
		return 0, "", false
	}
}

// OperatorReply answers an Order: what was done, or why nothing was.
type OperatorReply struct {
	ID      uint64 `cbor:"1,keyasint"`
	Refused string `cbor:"2,keyasint"`
	Text    string `cbor:"3,keyasint"`
}

// Refusal is the answer to an order that is not carried out.
func Refusal(text string) OperatorReply { return OperatorReply{Refused: text} }
