package pki

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// ErrRevoked marks a certificate that an operator has revoked.
var ErrRevoked = errors.New("certificate revoked")

// revoked is up to which epoch the certificates of each name are good for nothing, and the newest that was seen of each. Both only rise.
type revoked struct {
	mu   sync.RWMutex // guards what follows
	list map[holder]replica.Revocation
	seen map[holder]replica.CertEpoch // names that the CA signed, so there are no more of them than certificates
}

type holder struct {
	role replica.Role
	name string
}

// Revoke takes a revocation in, that its caller has found to be an operator's (CheckRevoker). news: it goes beyond what was known.
func (id *Identity) Revoke(r replica.Revocation) (news bool) {
	id.revoked.mu.Lock()
	defer id.revoked.mu.Unlock()
	of := holder{r.Role, r.Name}
	if id.revoked.list == nil {
		id.revoked.list = map[holder]replica.Revocation{}
	}
	if have, known := id.revoked.list[of]; known && have.Epoch >= r.Epoch {
		return false
	}
	id.revoked.list[of] = r
	return true
}

// Revokes tells whether what a revocation says is known already.
func (id *Identity) Revokes(r replica.Revocation) bool {
	id.revoked.mu.RLock()
	defer id.revoked.mu.RUnlock()
	have, known := id.revoked.list[holder{r.Role, r.Name}]
	return known && have.Epoch >= r.Epoch
}

// Revoked lists the revocations by role and name.
func (id *Identity) Revoked() []replica.Revocation {
	id.revoked.mu.RLock()
	defer id.revoked.mu.RUnlock()
	var list []replica.Revocation
	for _, r := range id.revoked.list {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b replica.Revocation) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// Newest is the newest epoch that this node has seen of a name's certificates; 0: none, or none that has one.
func (id *Identity) Newest(role replica.Role, name string) replica.CertEpoch {
	id.revoked.mu.RLock()
	defer id.revoked.mu.RUnlock()
	return id.revoked.seen[holder{role, name}]
}

func (id *Identity) saw(role replica.Role, name string, epoch replica.CertEpoch) {
	if id.Newest(role, name) >= epoch {
		return
	}
	id.revoked.mu.Lock()
	defer id.revoked.mu.Unlock()
	if id.revoked.seen == nil {
		id.revoked.seen = map[holder]replica.CertEpoch{}
	}
	of := holder{role, name}
	id.revoked.seen[of] = max(id.revoked.seen[of], epoch)
}

// CheckRevoked is an ErrRevoked, with the remedy, if the certificate of a verified peer is revoked. The TLS configurations leave that to
// whoever uses them: an alert says no word to the node that it refuses.
func (id *Identity) CheckRevoked(cs tls.ConnectionState) error {
	_, name, err := PeerName(cs)
	if err != nil {
		return err
	}
	return id.checkRevoked(cs.PeerCertificates[0], replica.NodeRole, string(name))
}

// OwnRevoked is CheckRevoked of this node's own certificate.
func (id *Identity) OwnRevoked() error {
	return id.checkRevoked(id.cert.Load().Leaf, replica.NodeRole, string(id.Node))
}

func (id *Identity) checkRevoked(c *x509.Certificate, role replica.Role, name string) error {
	epoch, err := epochOf(c)
	if err != nil {
		return err
	}
	id.saw(role, name, epoch)
	id.revoked.mu.RLock()
	r, some := id.revoked.list[holder{role, name}]
	id.revoked.mu.RUnlock()
	if !some || epoch > r.Epoch {
		return nil
	}
	return revokedError(role, name, epoch, r.Epoch)
}

// revokedError says what is revoked and what to do, in few bytes: it travels as the reason of a closed connection.
func revokedError(role replica.Role, name string, epoch, upTo replica.CertEpoch) error {
	remedy := fmt.Sprintf("`replicad pki renew %s --after %d`, then copy its two files to it", name, upTo)
	if role == replica.OperatorRole {
		remedy = fmt.Sprintf("`replicad pki operator %s --after %d`, in a folder without the old files", name, upTo)
	}
	return fmt.Errorf("%w: that of %v %s, epoch %d: all up to %d are: %s", ErrRevoked, role, name, epoch, upTo, remedy)
}

// CheckRevoker verifies the signature of an operator of this cluster under an order that this node has believed before, when CheckOperator let it
// pass: whether the certificate has ended since, or was revoked, does not matter. It returns the operator's name.
func (id *Identity) CheckRevoker(certificate, message, signature []byte) (string, error) {
	c, name, err := id.operator(certificate, signature)
	if err != nil {
		return "", err
	}
	return name, id.checkSignature(c, name, message, signature, c.NotBefore)
}

// EpochTime is when a certificate of that epoch was issued, by the clock of where the CA's key is.
func EpochTime(e replica.CertEpoch) time.Time {
	return time.Unix(int64(min(e, 1<<40)), 0) // it is small enough
}
