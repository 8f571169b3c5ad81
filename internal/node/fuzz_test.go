package node

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// sealed is a frame of any body, CBOR or not, with a header and a checksum that are right.
func sealed(kind wire.Kind, body []byte) []byte {
	const header, sum = 12, 8
	frame, err := wire.Append(nil, kind, beat{})
	if err != nil {
		panic(err)
	}
	frame = append(frame[:header], body...)
	binary.LittleEndian.PutUint32(frame[8:], uint32(len(body)))
	return binary.LittleEndian.AppendUint64(frame, xxhash.Sum64(frame))
}

func TestSealed(t *testing.T) {
	want := encode(t, kindWelcome, welcome{OK: true, Leader: "n1"})
	if got := sealed(kindWelcome, want[12:len(want)-8]); !bytes.Equal(got, want) {
		t.Errorf("%x became %x", want, got)
	}
}

// received is a connection on which bytes have come.
type received struct {
	net.Conn // nil: nothing else is called
	in       bytes.Reader
}

func (r *received) Read(b []byte) (int, error) { return r.in.Read(b) }

// FuzzLinkHello: whatever a peer says first on a link, nothing panics. A node that passes the leader's checks is recorded as it said, and the
// state with it can still be told to every node.
func FuzzLinkHello(f *testing.F) {
	node := replica.Node{Name: "n2", Incarnation: 5, Session: 1, Addr: "10.0.0.2:7000", Labels: map[string]string{"rack": "r1", "zone": "z"}}
	for _, h := range []linkHello{{}, {Cluster: testCluster, Node: node}, {Cluster: testCluster, Node: replica.Node{Name: "n1", Incarnation: 4, Session: 2, Addr: "n1:1", Former: []replica.NodeIncarnation{1, 2}}}} {
		f.Add(uint8(kindLinkHello), body(f, kindLinkHello, h))
	}
	f.Add(uint8(kindWelcome), []byte{0xa0})
	known := lock.New(testCluster)
	known.Apply(1, replica.RegisterNode{Node: replica.Node{Name: "n1", Incarnation: 3, Session: 1, Addr: "n1:1"}})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		conn := &received{}
		conn.in.Reset(sealed(wire.Kind(kind), b))
		h, err := readHello(conn)
		if err != nil {
			return
		}
		if wire.Kind(kind) != kindLinkHello || len(b) > maxHello {
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
		told := body(t, kindView, view{Index: 2, Nodes: state.View().Nodes})
		if again, err := decodeFromLeader(kindView, told); err != nil || !bytes.Equal(body(t, kindView, again), told) {
			t.Fatalf("the state with %+v can't be told: %v", n, err)
		}
	})
}

// FuzzWelcome: whatever answers a hello, what is read of it is written and read again as the same.
func FuzzWelcome(f *testing.F) {
	for _, w := range []welcome{{}, {OK: true, Term: 7, Era: 2}, {Reason: notLeader, Leader: "n2", Address: "n2:7000"}, {Reason: "another cluster", Refused: true}} {
		f.Add(body(f, kindWelcome, w))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := decode[welcome](b)
		if err != nil {
			return
		}
		if again, err := decode[welcome](body(t, kindWelcome, w)); err != nil || again != w {
			t.Errorf("%+v comes back as %+v: %v", w, again, err)
		}
	})
}

// FuzzKept: whatever a node brings a new leader for a rendezvous, nothing panics, only epochs that are not closed get any of it, and only
// ranks of the job have it.
func FuzzKept(f *testing.F) {
	entry := kvEntry{Op: kvAdd, Key: "n", Delta: 5, Rank: 1, Nonce: 9, Once: 1, Seq: 6<<32 | 40, Total: 6}
	set := kvEntry{Op: kvSet, Key: "k", Value: []byte("v"), Rank: 0, Seq: 6<<32 | 41}
	barrier := kvEntry{Op: kvBarrier, Key: "up", Members: 2, Rank: 1}
	for _, m := range []kvKept{{}, {Done: true}, {Job: testJob, Epoch: 3, Entries: []kvEntry{entry, set, barrier}}, {Job: testJob, Epoch: 9, Entries: []kvEntry{{Op: kvDelete, Key: "k", Rank: 7, Seq: 6<<32 | 42}, {Op: kvCompareSet, Key: "k", Seq: 1}}}} {
		f.Add(body(f, kindKept, m))
	}
	job := newJob()
	job.ClosedEpoch = 2
	l := newLeader(nil, testCluster, recovery.DefaultTiming(), time.Minute, time.Second, nil, newTestJournal(f, io.Discard))
	l.jobs[testJob] = &ledJob{job: job}
	n := &nodeLink{node: replica.Node{Name: "n1", Incarnation: 11, Session: 1}}
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := decodeFromNode(kindKept, b)
		if err != nil {
			return
		}
		m := msg.(kvKept)
		l.kv = rendezvous.New(7)
		l.kept(n, m)
		for _, e := range m.Entries {
			if _, ok := l.kv.Get(m.Job, m.Epoch, e.Key); ok && (m.Job != testJob || m.Epoch <= job.ClosedEpoch || m.Done) {
				t.Errorf("epoch %d of job %v has key %q", m.Epoch, m.Job, e.Key)
			}
		}
		wrote := false // some write for a rank that the job has
		for _, e := range m.Entries {
			wrote = wrote || uint32(e.Rank) < job.Layout.World && e.Op != kvBarrier
		}
		for _, e := range m.Entries {
			if _, ok := l.kv.Get(m.Job, m.Epoch, e.Key); ok && !wrote {
				t.Errorf("key %q is there, and no rank of the job wrote anything", e.Key)
			}
		}
	})
}
