package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/owner"
	"github.com/replicad/replicad/replica"
)

const (
	maxFile = 1 << 20 // of any credential file: a mistaken path must not be read into memory whole
)

// Identity is a node's credentials. Its methods are safe for concurrent use.
type Identity struct {
	Cluster replica.ClusterID
	Node    replica.NodeName

	files   files
	cert    *atomic.Pointer[tls.Certificate] // the newest that was read
	gossip  *atomic.Pointer[[][]byte]        // likewise; the first is the primary one
	roots   *x509.CertPool
	revoked *revoked
}

// files are the paths of a node's credentials.
type files struct{ ca, cert, key, gossip string }

// NotAfter is when the node's certificate expires.
func (id *Identity) NotAfter() time.Time { return id.cert.Load().Leaf.NotAfter }

// Epoch is that of the node's certificate.
func (id *Identity) Epoch() replica.CertEpoch {
	e, _ := epochOf(id.cert.Load().Leaf) // it was read when the file was
	return e
}

// Reload reads the files again and, where they hold another certificate of the same node, presents that one from the next handshake on. What runs
// goes on. Files that are no such thing change nothing; a certificate and a key that are being replaced may not fit for a moment.
func (id *Identity) Reload(now time.Time) (changed bool, err error) {
	f := id.files
	fresh, err := loadCertificate(f.ca, f.cert, f.key, now)
	if err != nil {
		return false, err
	}
	if fresh.Cluster != id.Cluster || fresh.Node != id.Node {
		return false, fmt.Errorf("certificate %s is of node %q, cluster %v now, and this daemon is node %q, cluster %v: put the right one there, or start the daemon again", f.cert, fresh.Node, fresh.Cluster, id.Node, id.Cluster)
	}
	c := fresh.cert.Load()
	old := id.cert.Swap(c)
	return !old.Leaf.Equal(c.Leaf), nil
}

// Warnings before a certificate's end: the first leaves time for a change, the last must not be overlooked.
const (
	warnEarly = 30 * 24 * time.Hour
	warnLate  = 3 * 24 * time.Hour
)

// Expires says that a certificate ends soon, and what to do; empty if it does not. urgent: within three days.
func Expires(notAfter, now time.Time) (text string, urgent bool) {
	left := notAfter.Sub(now)
	if left > warnEarly {
		return "", false
	}
	when := fmt.Sprintf("expires in %d days", int(left.Hours()/24))
	if left <= 0 {
		when = "has expired"
	} else if left < 48*time.Hour {
		when = fmt.Sprintf("expires in %d hours", int(left.Hours()))
	}
	return fmt.Sprintf("this node's certificate %s, at %s: replicad pki renew NODE where the CA's key is, then copy the node's two files here; the daemon takes them without a restart", when, notAfter.Format(time.RFC3339)), left <= warnLate
}

// Load reads a node's credentials and checks that they belong together and are valid now. Each failure names the file and
// what to do; files that can't be read are all named.
func Load(ca, cert, key, gossip string) (*Identity, error) {
	return load(ca, cert, key, gossip, time.Now())
}

func load(ca, cert, key, gossip string, now time.Time) (*Identity, error) {
	id, err := loadCertificate(ca, cert, key, now)
	gossipKeys, badGossip := readGossipKeys(gossip)
	if err := errors.Join(err, badGossip); err != nil {
		return nil, err
	}
	id.files.gossip = gossip
	id.gossip.Store(&gossipKeys)
	return id, nil
}

// loadCertificate is load but for the gossip keys.
func loadCertificate(ca, cert, key string, now time.Time) (*Identity, error) {
	caPEM, badCA := readFile(ca, false)
	certPEM, badCert := readFile(cert, false)
	keyPEM, badKey := readFile(key, true)
	if err := errors.Join(badCA, badCert, badKey); err != nil {
		return nil, err
	}
	return parse(files{ca: ca, cert: cert, key: key}, caPEM, certPEM, keyPEM, now)
}

// parse makes an identity of what the files hold, but for the gossip keys.
func parse(from files, caPEM, certPEM, keyPEM []byte, now time.Time) (*Identity, error) {
	ca, cert, key := from.ca, from.cert, from.key
	caCert, err := parseCA(ca, caPEM, now)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w: use the two files that `replicad pki` wrote for the same node", cert, key, err)
	}
	id := &Identity{cert: new(atomic.Pointer[tls.Certificate]), gossip: new(atomic.Pointer[[][]byte]), roots: x509.NewCertPool(), revoked: new(revoked)}
	id.cert.Store(&pair)
	id.files = from
	id.roots.AddCert(caCert)
	if id.Cluster, id.Node, err = certName(pair.Leaf); err == nil {
		_, err = epochOf(pair.Leaf)
	}
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w: use one that `replicad pki` made", cert, err)
	}
	if err := checkSigned(pair.Leaf, caCert, cert, ca, now); err != nil {
		return nil, err
	}
	return id, nil
}

// checkSigned tells expiry and a CA of another cluster apart from other faults: they are what operators meet.
func checkSigned(leaf, ca *x509.Certificate, certFile, caFile string, now time.Time) error {
	cluster, name, err := certName(leaf)
	if err != nil {
		return err
	}
	caCluster, err := caName(ca)
	if err != nil {
		return fmt.Errorf("CA %s: %w: use the ca.pem that `replicad pki init` made", caFile, err)
	}
	if cluster != caCluster {
		return fmt.Errorf("certificate %s is of cluster %v, CA %s of cluster %v: %w: take both from one `replicad pki` directory", certFile, cluster, caFile, caCluster, ErrForeign)
	}
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("certificate %s of node %q expired at %s: issue another with `replicad pki renew`", certFile, name, leaf.NotAfter.Format(time.RFC3339))
	}
	if now.Before(leaf.NotBefore) {
		return fmt.Errorf("certificate %s of node %q is valid only from %s, now is %s: set the clock", certFile, name, leaf.NotBefore.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			return fmt.Errorf("certificate %s against CA %s: %w: issue it again with `replicad pki add`", certFile, caFile, err)
		}
	}
	return nil
}

func readCA(path string, now time.Time) (*x509.Certificate, error) {
	b, err := readFile(path, false)
	if err != nil {
		return nil, err
	}
	return parseCA(path, b, now)
}

func parseCA(path string, b []byte, now time.Time) (*x509.Certificate, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("CA %s: want exactly one PEM CERTIFICATE: use the ca.pem that `replicad pki init` made", path)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("CA %s: %w: use the ca.pem that `replicad pki init` made", path, err)
	}
	if !c.IsCA {
		return nil, fmt.Errorf("CA %s: the certificate is not a CA's: use the ca.pem that `replicad pki init` made", path)
	}
	if now.After(c.NotAfter) {
		return nil, fmt.Errorf("CA %s expired at %s: make new credentials for all nodes with `replicad pki init`", path, c.NotAfter.Format(time.RFC3339))
	}
	return c, nil
}

func caName(c *x509.Certificate) (replica.ClusterID, error) {
	if len(c.URIs) != 1 {
		return replica.ClusterID{}, fmt.Errorf("the certificate has %d URI names, want one", len(c.URIs))
	}
	cluster, path, err := splitURI(c.URIs[0].String())
	if err == nil && path != caPath {
		err = fmt.Errorf("the certificate's name %.120q is not a CA's", c.URIs[0].String())
	}
	return cluster, err
}

// readFile reads one credential: its owner's to change alone, and a private one his alone to read.
func readFile(path string, private bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is to be refused, not waited for
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: make it with `replicad pki init` or copy it from where that ran", err)
		}
		return nil, fmt.Errorf("%w: this process's user must be able to read it", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: name the credential file itself", path)
	}
	if err := owner.Check(path, st); err != nil {
		return nil, err
	}
	if !private && st.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s can be changed by others, with mode %04o, and decides whom this node trusts: chmod go-w %s", path, st.Mode().Perm(), path)
	}
	if private && st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s holds a secret but has mode %04o: chmod 600 %s", path, st.Mode().Perm(), path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes: it is not a credential file", path, maxFile)
	}
	return b, nil
}
