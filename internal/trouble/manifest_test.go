//go:build cgo

package trouble_test

import (
	"context"
	"net"
	"testing"

	"github.com/replicad/replicad/internal/endpoint"
	"github.com/replicad/replicad/internal/pace"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// TestManifestOfAnotherGeometry: a node of the cluster, which holds a rank of the job, sends a part for mirroring that is not
// laid out as the group's, or does not hash to what it is named by. It is refused with the reason, and no memory is taken.
func TestManifestOfAnotherGeometry(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	n1, n2 := c.nodes[0], c.nodes[1]
	n1.start()
	n2.start()
	first := n1.run("job", 2, rankSpec{}, "--ranks", "0")
	n2.run("job", 2, rankSpec{}, "--ranks", "1").await("step", fields{"step": 5})
	const held = 3 // the ledger, the arena of the node's rank, and that of the mirror of the other one's private part
	j := n1.statusWhen(func(s status) bool {
		return s.job("job").Position.Step > 0 && len(memory(t, n1.keeper.PID())) == held
	}).job("job")
	job, err := replica.ParseUUID(j.ID)
	if err != nil {
		t.Fatal(err)
	}
	n2.daemon.kill()
	id, err := pki.Load(n2.cfg.PKI.CA, n2.cfg.PKI.Cert, n2.cfg.PKI.Key, n2.cfg.PKI.GossipKey)
	if err != nil {
		t.Fatal(err)
	}
	// On another port: n2's refuses probes, so that the node is merely without its daemon.
	e, err := endpoint.Listen(endpoint.Config{Addr: net.JoinHostPort(n2.cfg.Host(), "0"), ServerTLS: id.ServerTLS(string(endpoint.Bulk)), ClientTLS: id.ClientTLS, PeerName: pki.PeerName, ProbeKeys: id.GossipKeys, ResetKey: [32]byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	conn, err := e.Dial(t.Context(), n1.cfg.Addr, "n1", endpoint.Bulk)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		part  replica.Part
		spoil func(*replica.Manifest)
		says  []string
	}{
		{"the group's part of other regions", replica.OfGroup(0), func(*replica.Manifest) {}, []string{"geometry", "the group has", "same regions in the same order"}},
		{"regions that are not the geometry's", replica.OfRank(1), func(m *replica.Manifest) { m.Regions[0].Name = "other" }, []string{"private 1", "regions do not make its geometry"}},
		{"another root", replica.OfRank(1), func(m *replica.Manifest) { m.Root[0] ^= 1 }, []string{"root"}},
		{"a part of a rank that the node does not hold", replica.OfRank(0), func(*replica.Manifest) {}, []string{"private 0 of rank 1 from node n2: that rank makes private 1"}},
	} {
		p := newPart(t, id.Cluster, replica.JobID(job), j.Epoch, tc.part)
		tc.spoil(&p.Man)
		key := transfer.Key{Cluster: id.Cluster, Era: p.Man.Era, Job: p.Man.Job, Epoch: j.Epoch, Part: tc.part, Generation: p.Man.Generation, Root: p.Man.Root, Rank: 1, Incarnation: j.Ranks[1].Incarnation}
		ctx, cancel := context.WithTimeout(t.Context(), pace.Of(patience))
		err := transfer.Push(ctx, lane{conn}, key, p, transfer.Turns{})
		cancel()
		if err == nil {
			t.Errorf("%s is taken", tc.name)
			continue
		}
		contains(t, err.Error(), tc.says...)
	}
	if now := len(memory(t, n1.keeper.PID())); now != held {
		t.Errorf("the keeper held %d files and holds %d", held, now)
	}
	n2.start()
	n1.daemon.awaitFrom(n1.daemon.mark(), "commit_seen", nil)
	if !first.Running() {
		t.Error("the launcher ended")
	}
}

// lane sends over one connection.
type lane struct{ *endpoint.Conn }

func (l lane) Open(ctx context.Context) (transfer.Stream, error) { return l.Conn.Open(ctx) }
func (l lane) Close()                                            {}

// part is a part of one region of zeros.
type part struct{ Man replica.Manifest }

func newPart(t *testing.T, cluster replica.ClusterID, job replica.JobID, epoch replica.Epoch, p replica.Part) *part {
	t.Helper()
	kind, class := replica.Replicated, replica.Window
	if p.Kind == replica.PrivatePart {
		kind, class = replica.Private, replica.Volatile
	}
	g, err := replica.NewGeometry([]replica.Region{{Name: "alien", DType: replica.F32, Kind: kind, Class: class, Shape: []uint64{16}, Bytes: 64}})
	if err != nil {
		t.Fatal(err)
	}
	m := replica.Manifest{Cluster: cluster, Era: 1, Job: job, Part: p, Generation: replica.Generation{Epoch: epoch, Step: 1 << 20}, Rank: 1, Incarnation: 1,
		Geometry: shm.GeometryDigest(g, p.Kind), Bytes: 64, ChunkBytes: 1 << 20, Chunks: []replica.Digest{shm.Hash(make([]byte, 64))}, Regions: g.Regions}
	m.Root = shm.Root(&m)
	return &part{m}
}

func (p *part) Manifest() replica.Manifest { return p.Man }
func (p *part) Close()                     {}
func (p *part) ReadChunk(int, []byte) ([]byte, error) {
	return make([]byte, p.Man.Bytes), nil
}
