package consensus

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// TestStatesAreCompared: a voter whose state has become another without a sign says so within so many entries; the others don't.
func TestStatesAreCompared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.tune = func(cfg *Config) { cfg.digestEvery = 8 }
		c.startAll(true)
		index := c.propose("w1")
		c.awaitNode("w1")
		wrong := replica.NodeName("n3")
		if c.leader("").cfg.ID == wrong {
			wrong = "n2"
		}
		c.stop(wrong)
		entry(t, c.config(wrong).Dir, index, func(e *raft.Log) { // as by a fault of its memory, before the checksum was made
			b, err := wire.EncodeCommand(register("wx"))
			if err != nil {
				t.Error(err)
			}
			e.Data = b
			e.Extensions = sumOfEntry(e)
		})
		c.start(wrong, false)
		for i := range 20 {
			c.propose(replica.NodeName(fmt.Sprintf("more%d", i)))
		}
		c.until("the difference to be seen", func() bool { return c.nodes[wrong].fsm.differs.Load() != 0 })
		for name, n := range c.nodes {
			if at := n.fsm.differs.Load(); name != wrong && at != 0 {
				t.Errorf("%s differs at entry %d", name, at)
			}
		}
	})
}

// TestDigestOfARestored: a voter that took a snapshot instead of the entries has the digest of those that applied them all.
func TestDigestOfARestored(t *testing.T) {
	id := replica.JobID{1, 2, 3}
	holder := replica.Holder{Node: "n1", Incarnation: 1}
	claim := func(r replica.Rank) replica.Claim {
		return replica.Claim{Job: id, Rank: r, Holder: holder, Geometry: replica.Digest{7}, Nonce: uint64(r) + 1}
	}
	commands := []replica.Command{
		register("n1"), register("n2"),
		replica.CreateJob{ID: id, Name: "job", Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}},
		replica.Begin{Job: id, Epoch: 1}, claim(0), claim(1), claim(1),
		replica.Quarantine{Job: id, Node: "n2"}, replica.Quarantine{Job: id, Node: "n2", Clear: true},
		replica.ReportFault{Job: id, Fault: replica.Fault{Epoch: 1, Kind: replica.ProcessDead, Rank: 1, Incarnation: 2}},
		replica.Condemn{Job: id, Generation: replica.Generation{Epoch: 1, Step: 9}}, replica.Begin{Job: id, Epoch: 2},
		replica.CreateJob{ID: replica.JobID{4}, Name: "next", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}}, replica.EndJob{Job: replica.JobID{4}},
		replica.NewEra{Era: 2}, register("n3"),
	}
	last := uint64(len(commands)) // of the log; the last mark is at the last entry
	run := func(restoredAfter uint64) uint64 {
		f := newFSM(testCluster, func() {}, func(string, ...any) {})
		f.every = last
		for i, c := range commands {
			b, err := wire.EncodeCommand(c)
			if err != nil {
				t.Fatal(err)
			}
			index := uint64(i) + 1
			if a := f.Apply(&raft.Log{Index: index, Data: b}).(applied); a.err != nil || a.out.Err != nil {
				t.Fatalf("%T: %v, %v", c, a.err, a.out.Err)
			}
			if index == restoredAfter {
				b, err := encodeSnapshot(f.state.View())
				if err != nil {
					t.Fatal(err)
				}
				f = newFSM(testCluster, func() {}, func(string, ...any) {})
				f.every = last
				if err := f.Restore(io.NopCloser(bytes.NewReader(b))); err != nil {
					t.Fatal(err)
				}
			}
		}
		m := f.mark.Load()
		if m == nil || m.index != last {
			t.Fatalf("mark %+v", m)
		}
		sum, err := m.digest()
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	want := run(0)
	for at := range last - 1 {
		if got := run(at + 1); got != want {
			t.Errorf("restored after entry %d: digest %016x, want %016x", at+1, got, want)
		}
	}
}
