package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	maxCertificate = 2 << 10 // of one that a peer shows, in bytes: ours have some 600
	maxSignature   = 128
)

// Operator is an operator's credentials: they sign orders.
type Operator struct {
	Cluster replica.ClusterID
	Name    string

	certificate []byte
	key         *ecdsa.PrivateKey
}

const operatorRemedy = "use one that `replicad pki init` or `replicad pki operator` made"

// LoadOperator reads <file>.pem and, beside it, <file>-key.pem. Whether the certificate is good is the leader's to judge: who gives
// orders needs no CA at hand.
func LoadOperator(file string) (*Operator, error) {
	stem, ok := strings.CutSuffix(file, ".pem")
	if !ok {
		return nil, fmt.Errorf("operator's certificate %s: its name must end with .pem, and its key lie beside it in NAME-key.pem: %s", file, operatorRemedy)
	}
	key := keyFile(stem)
	certPEM, err := readFile(file, false)
	if err != nil {
		return nil, fmt.Errorf("operator's certificate: %w", err)
	}
	keyPEM, err := readFile(key, true)
	if err != nil {
		return nil, fmt.Errorf("key of operator's certificate %s: %w", file, err)
	}
	return parseOperatorPEM(file, key, certPEM, keyPEM)
}

// parseOperatorPEM makes an operator of what the two files hold.
func parseOperatorPEM(file, key string, certPEM, keyPEM []byte) (*Operator, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("operator's certificate %s with key %s: %w: %s", file, key, err, operatorRemedy)
	}
	o := &Operator{certificate: pair.Leaf.Raw}
	if o.Cluster, o.Name, err = operatorName(pair.Leaf); err != nil {
		return nil, fmt.Errorf("operator's certificate %s: %w: %s", file, err, operatorRemedy)
	}
	var ok bool
	if o.key, ok = pair.PrivateKey.(*ecdsa.PrivateKey); !ok {
		return nil, fmt.Errorf("key %s of operator's certificate: a %T, want ECDSA: %s", key, pair.PrivateKey, operatorRemedy)
	}
	return o, nil
}

// CanLoadOperator tells whether this process may read both files of an operator that a configuration names: one that may not goes
// on without.
func CanLoadOperator(file string) bool {
	stem, _ := strings.CutSuffix(file, ".pem")
	for _, path := range []string{file, keyFile(stem)} {
		f, err := os.Open(path)
		if err != nil {
			return false
		}
		_ = f.Close()
	}
	return true
}

// Sign signs a message; the certificate goes with it.
func (o *Operator) Sign(message []byte) (certificate, signature []byte, err error) {
	sum := sha256.Sum256(message)
	signature, err = o.key.Sign(rand.Reader, sum[:], crypto.SHA256)
	return o.certificate, signature, err
}

// CheckOperator verifies a message that somebody signed as an operator of this cluster, with a certificate that is neither over nor revoked
// as far as this node knows, and returns the operator's name and the certificate's epoch.
func (id *Identity) CheckOperator(certificate, message, signature []byte, now time.Time) (string, replica.CertEpoch, error) {
	c, name, err := id.operator(certificate, signature)
	if err != nil {
		return "", 0, err
	}
	if now.After(c.NotAfter) {
		return "", 0, fmt.Errorf("the certificate of operator %q expired at %s: move it away and issue another with `replicad pki operator`", name, c.NotAfter.Format(time.RFC3339))
	}
	if err := id.checkSignature(c, name, message, signature, now); err != nil {
		return "", 0, err
	}
	epoch, err := epochOf(c)
	if err == nil {
		err = id.checkRevoked(c, replica.OperatorRole, name)
	}
	if err != nil {
		return "", 0, err
	}
	return name, epoch, nil
}

// Signer is the operator whom a certificate names. Nothing of it is verified; empty: it names none.
func Signer(certificate []byte) string {
	if len(certificate) > maxCertificate {
		return ""
	}
	c, err := x509.ParseCertificate(certificate)
	if err != nil {
		return ""
	}
	_, name, err := operatorName(c)
	if err != nil {
		return ""
	}
	return name
}

// operator reads a certificate that claims to be an operator's of this cluster; nothing is verified yet.
func (id *Identity) operator(certificate, signature []byte) (*x509.Certificate, string, error) {
	if len(certificate) > maxCertificate || len(signature) > maxSignature {
		return nil, "", fmt.Errorf("a certificate of %d bytes and a signature of %d, at most %d and %d", len(certificate), len(signature), maxCertificate, maxSignature)
	}
	c, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, "", fmt.Errorf("operator's certificate: %w", err)
	}
	cluster, name, err := operatorName(c)
	if err != nil {
		return nil, "", err
	}
	if cluster != id.Cluster {
		return nil, "", fmt.Errorf("%w: operator %q of cluster %v, this is cluster %v: use one that was made in this cluster's pki folder", ErrForeign, name, cluster, id.Cluster)
	}
	return c, name, nil
}

// checkSignature verifies the chain as it was at a time, and the signature.
func (id *Identity) checkSignature(c *x509.Certificate, name string, message, signature []byte, at time.Time) error {
	if _, err := c.Verify(x509.VerifyOptions{Roots: id.roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("the certificate of operator %q: %w: use one that `replicad pki` made for this cluster", name, err)
	}
	key, ok := c.PublicKey.(*ecdsa.PublicKey)
	sum := sha256.Sum256(message)
	if !ok || !ecdsa.VerifyASN1(key, sum[:], signature) {
		return fmt.Errorf("the signature is not that of operator %q over this order", name)
	}
	return nil
}

// operatorName reads the one URI SAN that an operator's certificate must have.
func operatorName(c *x509.Certificate) (replica.ClusterID, string, error) {
	if len(c.URIs) != 1 {
		return replica.ClusterID{}, "", fmt.Errorf("certificate %.120q has %d URI names: want one, %s://<cluster>%s<name>", c.Subject.CommonName, len(c.URIs), scheme, operatorPath)
	}
	return parseOperator(c.URIs[0].String())
}
