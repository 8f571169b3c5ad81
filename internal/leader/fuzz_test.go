package leader

import (
	"bytes"
	"io"
	"maps"
	"net"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// received is a connection on which bytes have come.
type received struct {
	net.Conn // nil: nothing else is called
	in       bytes.Reader
}

func (r *received) Read(b []byte) (int, error) { return r.in.Read(b) }

// FuzzLinkHello: whatever a peer says first on a link, nothing panics. A node that passes the leader's checks is recorded as it said, and the
// state with it can still be told to every node.
func FuzzLinkHello(f *testing.F) {
	node := replica.Node{Name: "n2", Incarnation: 5, Session: 1, Addr: "10.0.0.2:7000", Addrs: []string{"10.1.0.2:7000", "[fd00::2]:7000"}, Labels: map[string]string{"rack": "r1", "zone": "z"}}
	for _, h := range []control.Hello{{}, {Cluster: fixture.Cluster, Node: node}, {Cluster: fixture.Cluster, Node: replica.Node{Name: "n1", Incarnation: 4, Session: 2, Addr: "n1:1", Former: []replica.NodeIncarnation{1, 2}}}} {
		f.Add(uint8(control.KindHello), fixture.Body(f, control.KindHello, h))
	}
	f.Add(uint8(control.KindWelcome), []byte{0xa0})
	known := lock.New(fixture.Cluster)
	known.Apply(1, replica.RegisterNode{Node: replica.Node{Name: "n1", Incarnation: 3, Session: 1, Addr: "n1:1"}})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		conn := &received{}
		conn.in.Reset(fixture.Sealed(wire.Kind(kind), b))
		h, err := control.ReadHello(conn)
		if err != nil {
			return
		}
		if wire.Kind(kind) != control.KindHello || len(b) > control.MaxHello {
			t.Fatalf("message %d of %d bytes is a hello", kind, len(b))
		}
		n := h.Node
		n.Former = nil
		command := replica.RegisterNode{Node: n, Limit: lock.MaxView}
		before := known.View()
		if config.CheckNode(n) != nil || lock.Fits(before, command) != nil {
			return
		}
		before.Nodes = maps.Clone(before.Nodes)
		state := lock.FromView(before)
		if out := state.Apply(2, command); out.Err != nil {
			return // of a life that is over
		}
		if got := state.View().Nodes[n.Name]; !sameNode(got, n) {
			t.Fatalf("%+v is recorded as %+v", n, got)
		}
		told := fixture.Body(t, control.KindView, control.View{Index: 2, Nodes: state.View().Nodes})
		if again, err := control.Decode(control.ToNode, control.KindView, told); err != nil || !bytes.Equal(fixture.Body(t, control.KindView, again), told) {
			t.Fatalf("the state with %+v can't be told: %v", n, err)
		}
	})
}

// FuzzWelcome: whatever answers a hello, what is read of it is written and read again as the same.
func FuzzWelcome(f *testing.F) {
	for _, w := range []control.Welcome{{}, {OK: true, Term: 7, Era: 2}, {Reason: control.NotLeader, Leader: "n2", Address: "n2:7000"}, {Reason: "another cluster", Refused: true}} {
		f.Add(fixture.Body(f, control.KindWelcome, w))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := control.DecodeAs[control.Welcome](b)
		if err != nil {
			return
		}
		if again, err := control.DecodeAs[control.Welcome](fixture.Body(t, control.KindWelcome, w)); err != nil || again != w {
			t.Errorf("%+v comes back as %+v: %v", w, again, err)
		}
	})
}

// FuzzKept: whatever a node brings a new leader for a rendezvous, nothing panics, only epochs that are not closed get any of it, and only
// ranks of the job have it.
func FuzzKept(f *testing.F) {
	entry := control.KVEntry{Op: control.KVAdd, Key: "n", Delta: 5, Rank: 1, Nonce: 9, Once: 1, Seq: 6<<32 | 40, Total: 6}
	set := control.KVEntry{Op: control.KVSet, Key: "k", Value: []byte("v"), Rank: 0, Seq: 6<<32 | 41}
	barrier := control.KVEntry{Op: control.KVBarrier, Key: "up", Members: 2, Rank: 1}
	for _, m := range []control.KVKept{{}, {Done: true}, {Job: fixture.JobID, Epoch: 3, Entries: []control.KVEntry{entry, set, barrier}}, {Job: fixture.JobID, Epoch: 9, Entries: []control.KVEntry{{Op: control.KVDelete, Key: "k", Rank: 7, Seq: 6<<32 | 42}, {Op: control.KVCompareSet, Key: "k", Seq: 1}}}} {
		f.Add(fixture.Body(f, control.KindKept, m))
	}
	job := fixture.Job()
	job.ClosedEpoch = 2
	l := New(Config{Cluster: fixture.Cluster, Timing: config.Default().Timing, Journal: journaltest.New(f, io.Discard)})
	l.jobs[fixture.JobID] = &ledJob{job: job}
	n := &nodeLink{node: replica.Node{Name: "n1", Incarnation: 11, Session: 1}}
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := control.Decode(control.ToLeader, control.KindKept, b)
		if err != nil {
			return
		}
		m := msg.(control.KVKept)
		l.kv = rendezvous.New(7, 0)
		l.kept(n, m)
		for _, e := range m.Entries {
			if _, ok := l.kv.Get(m.Job, m.Epoch, e.Key); ok && (m.Job != fixture.JobID || m.Epoch <= job.ClosedEpoch || m.Done) {
				t.Errorf("epoch %d of job %v has key %q", m.Epoch, m.Job, e.Key)
			}
		}
		wrote := false // some write for a rank that the job has
		for _, e := range m.Entries {
			wrote = wrote || uint32(e.Rank) < job.Layout.World && e.Op != control.KVBarrier
		}
		for _, e := range m.Entries {
			if _, ok := l.kv.Get(m.Job, m.Epoch, e.Key); ok && !wrote {
				t.Errorf("key %q is there, and no rank of the job wrote anything", e.Key)
			}
		}
	})
}
