package replica

import "fmt"

// CertEpoch orders the certificates of one name: the second of its issue since 1970, and at least one more than that of the certificate
// that it replaces. 0: the certificate was issued by a release that gave none.
type CertEpoch uint64

// Role is what a certificate's holder may be.
type Role uint8

// The roles.
const (
	NodeRole     Role = 1
	OperatorRole Role = 2
)

func (r Role) String() string {
	switch r {
	case NodeRole:
		return "node"
	case OperatorRole:
		return "operator"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Revocation ends the certificates of a name up to an epoch; a later one is good. It carries the order that an operator signed, so that
// every daemon judges by itself whether there is one: no voter, whatever it leads, revokes anything.
type Revocation struct {
	Role        Role      `json:"role" cbor:"1,keyasint"`
	Name        string    `json:"name" cbor:"2,keyasint"`
	Epoch       CertEpoch `json:"epoch" cbor:"3,keyasint"`
	Order       []byte    `json:"order,omitempty" cbor:"4,keyasint"`
	Certificate []byte    `json:"certificate,omitempty" cbor:"5,keyasint"` // the operator's
	Signature   []byte    `json:"signature,omitempty" cbor:"6,keyasint"`
}

// Of tells whether the revocation is of the same holder's certificates as another.
func (r Revocation) Of(role Role, name string) bool { return r.Role == role && r.Name == name }
