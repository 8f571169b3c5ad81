package node

import (
	"fmt"

	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Order is what an operator asks of the leader, as the command line makes it and an admin socket takes it.
type Order = operatorRequest

// Verb is what an Order asks for.
type Verb = operatorVerb

// orderMagic says what is signed, in which version.
const orderMagic = "replicad operator order 1"

// verbChallenge asks for the challenge that the next order is signed over.
const verbChallenge operatorVerb = 64

func (v operatorVerb) String() string {
	switch v {
	case Lost:
		return "node lost"
	case Drain:
		return "node drain"
	case Clear:
		return "node clear"
	case EndJob:
		return "job end"
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
	}
	return fmt.Sprintf("request %d", uint8(v))
}

// proof is an operator's signature under an order. The challenge is the leader's, random and good for one order: an order that was heard
// on its way is of no use a second time, nor to another leader, and no clock is asked.
type proof struct {
	Challenge   []byte `cbor:"1,keyasint"`
	Certificate []byte `cbor:"2,keyasint"`
	Signature   []byte `cbor:"3,keyasint"`
}

// signedOrder is what is signed: all of an order, in the one encoding that it has.
type signedOrder struct {
	Magic     string            `cbor:"1,keyasint"` // and version
	Cluster   replica.ClusterID `cbor:"2,keyasint"`
	Challenge []byte            `cbor:"3,keyasint"`
	Order     operatorRequest   `cbor:"4,keyasint"` // without what a daemon adds, and the proof
}

// Signed is the bytes that an operator signs.
func (m operatorRequest) Signed(cluster replica.ClusterID, challenge []byte) ([]byte, error) {
	m.ID, m.UID, m.Proof = 0, 0, nil
	return wire.Append(nil, kindOperator, signedOrder{orderMagic, cluster, challenge, m})
}

// Sign returns the order with an operator's signature over it and the leader's challenge.
func (m operatorRequest) Sign(o *pki.Operator, challenge []byte) (Order, error) {
	message, err := m.Signed(o.Cluster, challenge)
	if err != nil {
		return m, err
	}
	p := &proof{Challenge: challenge}
	if p.Certificate, p.Signature, err = o.Sign(message); err != nil {
		return m, fmt.Errorf("sign as operator %q: %w", o.Name, err)
	}
	m.Proof = p
	return m, nil
}
