//go:build cgo

package trouble_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pace"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
)

// TestForeignConnections: nobody with the credentials of another cluster gets a connection of any class, and both ends are told why.
func TestForeignConnections(t *testing.T) {
	t.Parallel()
	n := one(t)
	foreign := newCluster(t, "n1", "n2")
	cfg := foreign.nodes[1].cfg
	id, err := pki.Load(cfg.PKI.CA, cfg.PKI.Cert, cfg.PKI.Key, cfg.PKI.GossipKey)
	if err != nil {
		t.Fatal(err)
	}
	careless := false // a client that takes any server shows that the daemon checks for itself
	client := func(want replica.NodeName, alpn ...string) *tls.Config {
		c := id.ClientTLS(want, alpn...)
		if careless {
			c.InsecureSkipVerify, c.VerifyConnection, c.VerifyPeerCertificate = true, nil, nil
		}
		return c
	}
	e, err := endpoint.Listen(endpoint.Config{Addr: cfg.Addr, ServerTLS: id.ServerTLS(string(endpoint.Raft)), ClientTLS: client, PeerName: pki.PeerName, ProbeKeys: id.GossipKeys, ResetKey: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	dial := func(class endpoint.Class) error {
		ctx, cancel := context.WithTimeout(t.Context(), pace.Of(patience))
		defer cancel()
		c, err := e.Dial(ctx, n.cfg.Addr, "n1", class)
		if err != nil {
			return err
		}
		select { // a client has its connection before the server has judged its certificate
		case <-c.Done():
			return c.Err()
		case <-ctx.Done():
			t.Fatalf("%s: a foreigner's connection stays", class)
			return nil
		}
	}
	classes := []endpoint.Class{endpoint.Raft, endpoint.Control, endpoint.Bulk}
	for _, class := range classes {
		err := dial(class)
		if err == nil {
			t.Fatalf("%s: connected", class)
		}
		contains(t, err.Error(), id.Cluster.String(), n.cluster(), "give both credentials of one", "correct the address")
	}
	careless = true
	for _, class := range classes {
		if err := dial(class); err == nil {
			t.Fatalf("%s: connected", class)
		} else {
			contains(t, err.Error(), "the peer refused this node's certificate")
		}
	}
	// A probe is no connection; it is keyed, so a foreigner gets no answer at all.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r, err := e.Probe(ctx, n.cfg.Addr); err == nil {
		t.Errorf("the probe of a foreigner is answered: %+v", r)
	}
	contains(t, n.daemon.await("failed", fields{"what": "endpoint"}).text, n.cluster(), "another cluster")
}

// cluster is the id of the node's cluster, as text.
func (n *node) cluster() string {
	n.t.Helper()
	id, err := pki.Load(n.cfg.PKI.CA, n.cfg.PKI.Cert, n.cfg.PKI.Key, n.cfg.PKI.GossipKey)
	if err != nil {
		n.t.Fatal(err)
	}
	return id.Cluster.String()
}

// TestForeignDaemon: a daemon of another cluster that was given this one's addresses joins neither its Raft, nor its leader,
// nor its gossip, and says why.
func TestForeignDaemon(t *testing.T) {
	t.Parallel()
	n := one(t)
	n.run("job", 1, rankSpec{}).await("step", fields{"step": 5})
	foreign := newCluster(t, "n1", "n2", "n3").nodes[1]
	foreign.cfg.Voters[0] = config.Voter{Name: "n1", Addr: n.cfg.Addr}
	foreign.cfg.Seeds = []string{n.cfg.GossipAddr}
	foreign.write()
	foreign.launch()
	link := foreign.daemon.await("failed", fields{"what": "link", "subject": "voter n1 at " + n.cfg.Addr})
	contains(t, link.text, foreign.cluster(), n.cluster(), "give both credentials of one")
	contains(t, n.daemon.await("failed", fields{"what": "endpoint"}).text, n.cluster(), "another cluster")
	contains(t, n.daemon.await("failed", fields{"what": "gossip"}).text, "gossip key another one", "replicad pki init")
	if s := foreign.status(); s.Leader != "" || len(s.Nodes) != 0 {
		t.Errorf("the foreigner's status: %+v", s)
	}
	if s := n.statusWhen(linked); len(s.Nodes) != 1 || s.Leader != "n1" {
		t.Errorf("status: %+v", s)
	}
	n.daemon.awaitFrom(n.daemon.mark(), "commit_seen", nil)
}
