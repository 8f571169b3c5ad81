package node

import (
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/pki"
)

// Sign returns an order with an operator's signature over it and the leader's challenge.
func Sign(m control.Order, o *pki.Operator, challenge []byte) (control.Order, error) {
	message, err := m.Signed(o.Cluster, challenge)
	if err != nil {
		return m, err
	}
	p := &control.Proof{Challenge: challenge}
	if p.Certificate, p.Signature, err = o.Sign(message); err != nil {
		return m, fmt.Errorf("sign as operator %q: %w", o.Name, err)
	}
	m.Proof = p
	return m, nil
}
