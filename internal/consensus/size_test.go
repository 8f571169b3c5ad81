//go:build !race

package consensus

import (
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// largest is a cluster with one job that has all that a job may have while it is open, with the largest numbers.
func largest(world, size uint32, copies, name int) lock.View {
	v := lock.View{Index: 1 << 40, Cluster: replica.ClusterID{0xff}, Era: 1, Nodes: map[replica.NodeName]replica.Node{}, Jobs: map[replica.JobID]*replica.Job{}}
	node := func(i uint32) replica.NodeName {
		return replica.NodeName(fmt.Sprintf("%0*d", name, i%100000))
	}
	const big = 1<<64 - 1
	for i := range max(1, world/8) {
		n := replica.Node{Name: node(i), Incarnation: big, Session: big, Boot: replica.BootID{0xff}, Addr: "192.168.100.100:65535", Voter: true, Labels: map[string]string{"rack": strings.Repeat("r", 63), "host": strings.Repeat("h", 63)}}
		for range 16 {
			n.Former = append(n.Former, big)
		}
		v.Nodes[n.Name] = n
	}
	g := replica.Generation{Epoch: replica.MaxEpoch, Step: replica.MaxStep}
	l := replica.Layout{World: world}
	j := &replica.Job{ID: replica.JobID{0xff}, Name: strings.Repeat("j", 63), Era: 1, Options: replica.Options{MinCopies: copies, PrivateCap: big, ChunkBytes: 1 << 30}.WithDefaults(), Phase: replica.Open, Epoch: replica.MaxEpoch, ClosedEpoch: replica.MaxEpoch - 1,
		Lineage: replica.Lineage{{Epoch: replica.MaxEpoch, Start: replica.MaxStep}}, Position: replica.Position{Epoch: replica.MaxEpoch, Step: replica.MaxStep}, Committed: g, Copies: copies, NextIncarnation: big, Durable: g, LastIndex: 1 << 40}
	plan := &replica.Plan{Epoch: replica.MaxEpoch, Cites: 1 << 40, Generation: g, Reason: strings.Repeat("r", 1<<10)}
	write := &replica.DurableWrite{Generation: g, Position: j.Position, Writer: node(0)}
	part := func(p replica.Part, first uint32, holders int) {
		var hs []replica.Holder
		for i := range holders {
			hs = append(hs, replica.Holder{Node: node(first + uint32(i)), Incarnation: big})
		}
		j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: replica.Digest{0xff}, Holders: hs})
		plan.Sources = append(plan.Sources, replica.Source{Part: p, Root: replica.Digest{0xff}, Tier: replica.PeerRAM, Holders: hs})
		write.Shards = append(write.Shards, replica.Shard{Part: p, Node: node(first), Root: replica.Digest{0xff}})
	}
	mirrors := func(first uint32) (out []replica.NodeName) {
		for i := range copies - 1 {
			out = append(out, node(first+uint32(i)))
		}
		return out
	}
	for first := uint32(0); first < world; first += size {
		group := replica.GroupID(first / size)
		part(replica.OfGroup(group), first, max(copies, int(size)))
		j.GroupGeometry = append(j.GroupGeometry, replica.Digest{0xff})
		j.GroupMirrors = append(j.GroupMirrors, mirrors(first))
		for range min(size, world-first) {
			l.Groups = append(l.Groups, group)
		}
	}
	for r := range world {
		c := replica.Claimed{Incarnation: big, Node: node(r), NodeIncarnation: big, Nonce: big}
		j.Ranks = append(j.Ranks, c)
		part(replica.OfRank(replica.Rank(r)), r, copies)
		j.Mirrors = append(j.Mirrors, mirrors(r))
	}
	plan.Layout, plan.Ranks, plan.Mirrors, plan.GroupMirrors = l, j.Ranks, j.Mirrors, j.GroupMirrors
	j.Layout, j.Plan, j.Writer = l, plan, write
	v.Jobs[j.ID] = j
	return v
}

// What lock.Size says bounds what the state comes to: nothing that it lets in makes a snapshot, or a view, that nobody can read.
func TestSizeBoundsTheSnapshot(t *testing.T) {
	for _, world := range []uint32{1, 8, 1000} {
		for _, size := range []uint32{1, 2, 8, 1000} {
			for _, copies := range []int{1, 2, 3, 16} {
				for _, name := range []int{8, 20, 63} {
					if size > world {
						continue
					}
					v := largest(world, size, copies, name)
					b, err := encodeSnapshot(v)
					if err != nil {
						t.Fatal(err)
					}
					if is, says := uint64(len(b)), lock.Size(v); is > says || says > 4*is+64<<10 {
						t.Errorf("%d ranks in groups of %d, %d copies, names of %d: %d bytes, and Size says %d", world, size, copies, name, is, says)
					}
					if _, err := decodeSnapshot(b, v.Cluster); err != nil {
						t.Errorf("%d ranks in groups of %d: %v", world, size, err)
					}
				}
			}
		}
	}
}

// The largest job that was promised passes, on nodes of long names.
func TestEightyThousandRanksPass(t *testing.T) {
	v := largest(80_000, 8, 2, 20)
	if size := lock.Size(v); size > lock.MaxView {
		t.Fatalf("Size says %d, at most %d", size, lock.MaxView)
	}
	b, err := encodeSnapshot(v)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > wire.MaxState/2 {
		t.Errorf("a snapshot of %d bytes", len(b))
	}
	if _, err := decodeSnapshot(b, v.Cluster); err != nil {
		t.Error(err)
	}
}
