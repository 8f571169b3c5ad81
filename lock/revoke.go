package lock

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/replicad/replicad/replica"
)

const (
	maxRevoked   = 1024 // names; the records of all travel to every node
	maxOrder     = 1 << 10
	maxSigner    = 2 << 10 // an operator's certificate: ours have some 600 bytes
	maxSignature = 128
	maxCertEpoch = 1 << 40 // the year 36812
)

// Revokes tells up to which epoch the certificates of a name are revoked; 0: none is. Those of releases that gave no epoch count as 0, and
// are revoked with the first revocation of their name.
func (v View) Revokes(role replica.Role, name string) (upTo replica.CertEpoch, some bool) {
	at, found := findRevoked(v.Revoked, role, name)
	if !found {
		return 0, false
	}
	return v.Revoked[at].Epoch, true
}

func findRevoked(list []replica.Revocation, role replica.Role, name string) (int, bool) {
	return slices.BinarySearchFunc(list, replica.Revocation{Role: role, Name: name}, compareRevoked)
}

func compareRevoked(a, b replica.Revocation) int {
	return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
}

// CheckRevoked refuses a list that this package would not have made.
func CheckRevoked(list []replica.Revocation) error {
	if len(list) > maxRevoked {
		return refuse(Full, "%d names are revoked: at most %d", len(list), maxRevoked)
	}
	for i, r := range list {
		if err := checkRevocation(r); err != nil {
			return err
		}
		if i > 0 && compareRevoked(list[i-1], r) >= 0 {
			return refuse(Invalid, "revocations out of order at %v %s", r.Role, r.Name)
		}
	}
	return nil
}

func checkRevocation(r replica.Revocation) error {
	if r.Role != replica.NodeRole && r.Role != replica.OperatorRole {
		return refuse(Invalid, "revocation of %v %q: want a node or an operator", r.Role, r.Name)
	}
	if err := replica.CheckName(r.Name); err != nil {
		return refuse(Invalid, "revocation: %v", err)
	}
	if r.Epoch == 0 || r.Epoch > maxCertEpoch {
		return refuse(Invalid, "revocation of %v %s up to epoch %d: want 1 to %d", r.Role, r.Name, r.Epoch, uint64(maxCertEpoch))
	}
	if len(r.Order) > maxOrder || len(r.Certificate) > maxSigner || len(r.Signature) > maxSignature {
		return refuse(Invalid, "revocation of %v %s: an order of %d bytes, a certificate of %d, a signature of %d: want at most %d, %d and %d", r.Role, r.Name, len(r.Order), len(r.Certificate), len(r.Signature), maxOrder, maxSigner, maxSignature)
	}
	return nil
}

func fitsRevocation(v View, r replica.Revocation) error {
	if err := checkRevocation(r); err != nil {
		return err
	}
	if _, known := findRevoked(v.Revoked, r.Role, r.Name); !known && len(v.Revoked) >= maxRevoked {
		return refuse(Full, "revoke %v %s: the certificates of %d names are revoked, the limit: make a new CA (`replicad pki init`), which ends all old certificates", r.Role, r.Name, len(v.Revoked))
	}
	return nil
}

// revoke records a revocation, of which the later one of a name counts. A node's present life is dead to every job at once, in the same
// entry: nobody lets it in to say that it is not. Registered again, under a later certificate, it is alive as any other.
func (s *State) revoke(index uint64, r replica.Revocation) Outcome {
	if err := fitsRevocation(s.v, r); err != nil {
		return Outcome{Err: err}
	}
	list := slices.Clone(s.v.Revoked)
	at, known := findRevoked(list, r.Role, r.Name)
	switch {
	case known && r.Epoch < list[at].Epoch:
		return Outcome{Err: refuse(Stale, "revoke %v %s up to epoch %d: they are revoked up to %d", r.Role, r.Name, r.Epoch, list[at].Epoch)}
	case known && r.Epoch == list[at].Epoch && bytes.Equal(r.Certificate, list[at].Certificate):
		return Outcome{}
	case known && r.Epoch == list[at].Epoch: // ordered again by another operator, since the first one's word counts no more
		list[at] = r
		s.v.Revoked = list
		return Outcome{Changed: true}
	case known:
		list[at] = r
	default:
		list = slices.Insert(list, at, r)
	}
	s.v.Revoked = list
	n, registered := s.v.Nodes[replica.NodeName(r.Name)]
	if r.Role != replica.NodeRole || !registered {
		return Outcome{Changed: true}
	}
	for _, id := range s.sortedJobs() {
		s.change(index, id, func(j *replica.Job) (bool, error) {
			return reportFault(j, s.v.Nodes, replica.Fault{Epoch: j.Epoch, Kind: replica.NodeDead, Node: n.Name, NodeIncarnation: n.Incarnation, Detail: "its certificate is revoked"})
		})
	}
	return Outcome{Changed: true}
}
