package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// ServerTLS serves peers of this cluster only: TLS 1.3, a client certificate that the cluster's CA signed, naming a node of it.
func (id *Identity) ServerTLS(alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return id.cert.Load(), nil },
		ClientAuth:             tls.RequireAndVerifyClientCert,
		ClientCAs:              id.roots,
		NextProtos:             slices.Clone(alpn),
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, err := id.checkCluster(cs)
			return err
		},
	}
}

// ClientTLS connects to the node named want of this cluster and to nobody else. An empty want takes any node of the cluster.
func (id *Identity) ClientTLS(want replica.NodeName, alpn ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		// Not Certificates: crypto/tls would send none of them to a server of another CA, and that server's operator would read
		// "no certificate" instead of whose it was.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return id.cert.Load(), nil },
		NextProtos:           slices.Clone(alpn),
		// Identity is the URI name, not DNS. The library's check demands a DNS name, so VerifyConnection does all of it.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := id.verifyChain(cs.PeerCertificates, x509.ExtKeyUsageServerAuth); err != nil {
				return err
			}
			name, err := id.checkCluster(cs)
			if err == nil && want != "" && name != want {
				err = fmt.Errorf("the server is node %q, want %q: check that each node's address belongs to its name", name, want)
			}
			return err
		},
	}
}

// checkCluster names the peer of a verified chain and refuses one of another cluster.
func (id *Identity) checkCluster(cs tls.ConnectionState) (replica.NodeName, error) {
	cluster, name, err := PeerName(cs)
	if err != nil {
		return "", err
	}
	if cluster != id.Cluster {
		return "", id.foreign(cluster, name)
	}
	return name, nil
}

func (id *Identity) foreign(cluster replica.ClusterID, name replica.NodeName) error {
	return fmt.Errorf("%w: node %q of cluster %v, this is cluster %v: give both credentials of one `replicad pki`, or correct the address", ErrForeign, name, cluster, id.Cluster)
}

// verifyChain checks the peer's certificate against the cluster's CA and the present time. The error of a chain that does not
// verify says which cluster it claims: a mixed-up configuration is the usual cause.
func (id *Identity) verifyChain(chain []*x509.Certificate, usage x509.ExtKeyUsage) error {
	if len(chain) == 0 {
		return fmt.Errorf("peer presented no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: id.roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err == nil {
		return nil
	}
	if cluster, name, nameErr := certName(chain[0]); nameErr == nil && cluster != id.Cluster {
		err = fmt.Errorf("%w (%w)", id.foreign(cluster, name), err)
	}
	return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
}
