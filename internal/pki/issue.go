package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	caFile      = "ca.pem"
	caKeyFile   = "ca-key.pem"
	gossipFile  = "gossip.key"
	clusterFile = "cluster.id"

	operatorFile  = "operator" // without what every certificate ends with
	firstOperator = "operator"

	caLife   = 10 * 365 * 24 * time.Hour
	nodeLife = 2 * 365 * 24 * time.Hour // and an operator's
	skew     = time.Hour                // clocks of nodes may be behind the issuer's by this much
)

// file is one credential to write.
type file struct {
	name string
	mode os.FileMode
	data []byte
}

func certFile(name string) string { return name + ".pem" }
func keyFile(name string) string  { return name + "-key.pem" }

// Init makes a new cluster's credentials in dir: ca.pem, ca-key.pem, gossip.key, cluster.id, <node>.pem with <node>-key.pem for
// each node, and operator.pem with its key. It refuses to overwrite any file, and leaves none of its own behind when it fails.
func Init(dir string, nodes []replica.NodeName, now time.Time) error {
	var cluster replica.ClusterID
	rand.Read(cluster[:]) // never fails (crypto/rand)
	cluster[6], cluster[8] = cluster[6]&0x0f|0x40, cluster[8]&0x3f|0x80
	ca, certPEM, keyPEM, err := newCA(cluster, now)
	if err != nil {
		return fmt.Errorf("make cluster CA: %w", err)
	}
	files := []file{
		{caFile, 0o644, certPEM},
		{caKeyFile, 0o600, keyPEM},
		{gossipFile, 0o600, gossipText([][]byte{newGossipKey()})},
		{clusterFile, 0o644, []byte(cluster.String() + "\n")},
	}
	more, err := nodeFiles(ca, cluster, nodes, now, first)
	if err != nil {
		return err
	}
	operator, err := operatorFiles(ca, cluster, firstOperator, operatorFile, now, 0)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory for credentials: %w", err)
	}
	return writeNew(dir, slices.Concat(files, more, operator))
}

// AddNodes issues certificates for more nodes with the CA that Init made in dir.
func AddNodes(dir string, nodes []replica.NodeName, now time.Time) error {
	ca, cluster, err := openCA(dir, now)
	if err != nil {
		return err
	}
	files, err := nodeFiles(ca, cluster, nodes, now, first)
	if err != nil {
		return err
	}
	return writeNew(dir, files)
}

// first: no certificate comes before it.
func first(replica.NodeName) replica.CertEpoch { return 0 }

// Renew issues certificates with new keys for nodes of the cluster and replaces their files in dir, each whole; what was there is gone. Their
// epochs lie above those of the ones replaced, and above after, up to which those may have been revoked.
func Renew(dir string, nodes []replica.NodeName, now time.Time, after replica.CertEpoch) error {
	ca, cluster, err := openCA(dir, now)
	if err != nil {
		return err
	}
	former := map[replica.NodeName]replica.CertEpoch{}
	for _, node := range nodes {
		was, err := fileEpoch(filepath.Join(dir, certFile(string(node))))
		if err != nil {
			return fmt.Errorf("renew node %q: %w: a node that has none gets one by `replicad pki add`", node, err)
		}
		former[node] = max(was, after)
	}
	files, err := nodeFiles(ca, cluster, nodes, now, func(node replica.NodeName) replica.CertEpoch { return former[node] })
	if err != nil {
		return err
	}
	return replaceFiles(dir, files)
}

// fileEpoch is the epoch of a certificate that is to be replaced; 0 for a file that is none, and for an epoch that no daemon takes: it is
// replaced all the same.
func fileEpoch(path string) (replica.CertEpoch, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	if block, _ := pem.Decode(b); block != nil {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			epoch, _ := epochOf(c)
			return epoch, nil
		}
	}
	return 0, nil
}

// AddOperator issues operator-<name>.pem, with its key, with the CA that Init made in dir. Its epoch lies above after.
func AddOperator(dir, name string, now time.Time, after replica.CertEpoch) error {
	ca, cluster, err := openCA(dir, now)
	if err != nil {
		return err
	}
	files, err := operatorFiles(ca, cluster, name, operatorFile+"-"+name, now, after)
	if err != nil {
		return err
	}
	return writeNew(dir, files)
}

// openCA reads the CA that Init made in dir, with its key.
func openCA(dir string, now time.Time) (authority, replica.ClusterID, error) {
	fail := func(err error) (authority, replica.ClusterID, error) { return authority{}, replica.ClusterID{}, err }
	caCert, err := readCA(filepath.Join(dir, caFile), now)
	if err != nil {
		return fail(err)
	}
	cluster, err := caName(caCert)
	if err != nil {
		return fail(fmt.Errorf("CA %s: %w", filepath.Join(dir, caFile), err))
	}
	keyPath := filepath.Join(dir, caKeyFile)
	keyPEM, err := readFile(keyPath, true)
	if err != nil {
		return fail(err)
	}
	pair, err := tls.X509KeyPair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caCert.Raw}), keyPEM)
	if err != nil {
		return fail(fmt.Errorf("CA key %s: %w: it must be the one made together with %s", keyPath, err, caFile))
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return fail(fmt.Errorf("CA key %s: a %T can't sign", keyPath, pair.PrivateKey))
	}
	return authority{caCert, key}, cluster, nil
}

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newCA(cluster replica.ClusterID, now time.Time) (ca authority, certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return ca, nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "replicad CA " + cluster.String()},
		URIs:                  []*url.URL{caURI(cluster)},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	certPEM, keyPEM, err = sign(template, template, key, key)
	if err != nil {
		return ca, nil, nil, err
	}
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	return authority{cert, key}, certPEM, keyPEM, err
}

// nodeFiles issues a certificate and key for each node. A node is client and server alike.
func nodeFiles(ca authority, cluster replica.ClusterID, nodes []replica.NodeName, now time.Time, after func(replica.NodeName) replica.CertEpoch) ([]file, error) {
	var files []file
	for _, node := range nodes {
		if err := replica.CheckName(string(node)); err != nil {
			return nil, fmt.Errorf("node %w", err)
		}
		epoch, err := nextEpoch(now, after(node))
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", node, err)
		}
		own, err := ca.issue(string(node), string(node), nodeURI(cluster, node), now, epoch, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
		if err != nil {
			return nil, fmt.Errorf("node %q: %w", node, err)
		}
		files = append(files, own...)
	}
	return files, nil
}

// operatorFiles issues a certificate and key for an operator, who serves nobody.
func operatorFiles(ca authority, cluster replica.ClusterID, name, file string, now time.Time, after replica.CertEpoch) ([]file, error) {
	if err := replica.CheckName(name); err != nil {
		return nil, fmt.Errorf("operator %w", err)
	}
	epoch, err := nextEpoch(now, after)
	if err != nil {
		return nil, fmt.Errorf("operator %q: %w", name, err)
	}
	files, err := ca.issue(file, "operator "+name, operatorURI(cluster, name), now, epoch, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, fmt.Errorf("operator %q: %w", name, err)
	}
	return files, nil
}

// issue makes a key and its certificate: <file>.pem and <file>-key.pem.
func (ca authority) issue(name, subject string, uri *url.URL, now time.Time, epoch replica.CertEpoch, usage ...x509.ExtKeyUsage) ([]file, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	notAfter := now.Add(nodeLife)
	if notAfter.After(ca.cert.NotAfter) {
		notAfter = ca.cert.NotAfter
	}
	certPEM, keyPEM, err := sign(&x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: subject, SerialNumber: strconv.FormatUint(uint64(epoch), 10)},
		URIs:                  []*url.URL{uri},
		NotBefore:             now.Add(-skew),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           usage,
		BasicConstraintsValid: true,
	}, ca.cert, key, ca.key)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return []file{{certFile(name), 0o644, certPEM}, {keyFile(name), 0o600, keyPEM}}, nil
}

func sign(template, parent *x509.Certificate, key, signer crypto.Signer) (certPEM, keyPEM []byte, err error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}

func newSerial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)
	b[0] &= 0x7f // positive
	return new(big.Int).SetBytes(b)
}

// replaceFiles puts each file in the place of one of its name, whole. What a run that was killed left on the way there is gone.
func replaceFiles(dir string, files []file) error {
	fresh := slices.Clone(files)
	for i := range fresh {
		fresh[i].name += ".new"
		if err := os.Remove(filepath.Join(dir, fresh[i].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	if err := writeNew(dir, fresh); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	return nil
}

// writeNew writes files that must not exist yet: all of them, or none.
func writeNew(dir string, files []file) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write credentials: %w", err)
	}
	defer root.Close()
	return writeInto(root, files)
}

// writeInto is writeNew in the folder that was opened, whatever lies at its path by now: what is undone is what was written.
func writeInto(root *os.Root, files []file) (err error) {
	var written []string
	defer func() {
		if err != nil {
			for _, name := range written {
				err = errors.Join(err, root.Remove(name))
			}
		}
	}()
	for i, f := range files {
		path := filepath.Join(root.Name(), f.name)
		if slices.ContainsFunc(files[:i], func(o file) bool { return o.name == f.name }) {
			return fmt.Errorf("two credentials would be called %s: choose another name for the node", path)
		}
		out, err := root.OpenFile(f.name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s exists already and is not overwritten: move it away or choose another directory", path)
		}
		if err != nil {
			return fmt.Errorf("write credentials: %w", err)
		}
		written = append(written, f.name)
		_, err = bytes.NewReader(f.data).WriteTo(out)
		if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
			return fmt.Errorf("credentials: %w", err)
		}
	}
	return nil
}
