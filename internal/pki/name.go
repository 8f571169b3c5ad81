package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/replicad/replicad/replica"
)

const (
	scheme       = "replicad"
	nodePath     = "/node/"
	operatorPath = "/operator/"
	caPath       = "/ca"
)

// ErrForeign marks a certificate of another cluster.
var ErrForeign = errors.New("certificate of another cluster")

// PeerName returns who the other side's certificate says it is. It does not verify the certificate: after a handshake with
// ServerTLS or ClientTLS that has been done; on the unverified chain of a failed one the answer is only good for a log line.
func PeerName(cs tls.ConnectionState) (replica.ClusterID, replica.NodeName, error) {
	if len(cs.PeerCertificates) == 0 {
		return replica.ClusterID{}, "", errors.New("peer presented no certificate")
	}
	return certName(cs.PeerCertificates[0])
}

// certName reads the one URI SAN that a node's certificate must have.
func certName(c *x509.Certificate) (replica.ClusterID, replica.NodeName, error) {
	if len(c.URIs) != 1 {
		return replica.ClusterID{}, "", fmt.Errorf("certificate %q has %d URI names: want one, %s://<cluster>%s<name>", c.Subject.CommonName, len(c.URIs), scheme, nodePath)
	}
	return parseName(c.URIs[0].String())
}

// parseName is strict: what it accepts, nodeURI writes the same way, so one identity has one spelling.
func parseName(uri string) (replica.ClusterID, replica.NodeName, error) {
	cluster, name, err := parseRole(uri, nodePath, "a node's")
	return cluster, replica.NodeName(name), err
}

// parseOperator is parseName for an operator. The two roles share no name: neither passes for the other.
func parseOperator(uri string) (replica.ClusterID, string, error) {
	return parseRole(uri, operatorPath, "an operator's")
}

func parseRole(uri, role, whose string) (replica.ClusterID, string, error) {
	cluster, path, err := splitURI(uri)
	if err != nil {
		return replica.ClusterID{}, "", err
	}
	name, ok := strings.CutPrefix(path, role)
	if !ok {
		return replica.ClusterID{}, "", fmt.Errorf("certificate name %.120q: not %s (want %s://<cluster>%s<name>)", uri, whose, scheme, role)
	}
	if err := replica.CheckName(name); err != nil {
		return replica.ClusterID{}, "", fmt.Errorf("certificate name %.120q: %w", uri, err)
	}
	return cluster, name, nil
}

// splitURI cuts replicad://<uuid><path>.
func splitURI(uri string) (replica.ClusterID, string, error) {
	rest, ok := strings.CutPrefix(uri, scheme+"://")
	host, path, slash := strings.Cut(rest, "/")
	if !ok || !slash {
		return replica.ClusterID{}, "", fmt.Errorf("certificate name %.120q: want %s://<cluster>%s<name>", uri, scheme, nodePath)
	}
	id, err := replica.ParseUUID(host)
	if err != nil {
		return replica.ClusterID{}, "", fmt.Errorf("certificate name %.120q: %w", uri, err)
	}
	if cluster := replica.ClusterID(id); cluster.String() == host {
		return cluster, "/" + path, nil
	}
	return replica.ClusterID{}, "", fmt.Errorf("certificate name %.120q: cluster is not written as a lower-case UUID", uri)
}

func nodeURI(cluster replica.ClusterID, name replica.NodeName) *url.URL {
	return &url.URL{Scheme: scheme, Host: cluster.String(), Path: nodePath + string(name)}
}

func operatorURI(cluster replica.ClusterID, name string) *url.URL {
	return &url.URL{Scheme: scheme, Host: cluster.String(), Path: operatorPath + name}
}

func caURI(cluster replica.ClusterID) *url.URL {
	return &url.URL{Scheme: scheme, Host: cluster.String(), Path: caPath}
}
