package host

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer/storetest"
)

// TestStoreSuite: a node's store keeps the contract, for a private part that it mirrors beside a rank, and for a group's part beside
// another mirror.
func TestStoreSuite(t *testing.T) {
	t.Run("a private part", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Bed {
			d := newRig(t)
			lj := d.put(fixture.Job())
			a := d.attach(lj, 0).Arena
			d.seal(a, slot(2), fixture.Gen(3, 5), 7)
			has := partOf(manifestFor(a, slot(2), fixture.Gen(3, 5), 7))
			k, man, chunks := d.private(lj, fixture.Gen(3, 6), 3)
			return d.bed(has, storetest.Part{Key: k, Manifest: man, Chunks: chunks})
		})
	})
	t.Run("a group's part", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) storetest.Bed {
			d := newRig(t)
			maker := d.arena(shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false)})
			man, chunks := manifestFor(maker, slot(0), fixture.Gen(3, 6), 3)
			man.Regions = maker.Geometry().Of(replica.ReplicatedPart)
			lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
				j.Ranks[0].Node, j.Ranks[0].NodeIncarnation = "n2", 22
				j.GroupMirrors, j.GroupGeometry = [][]replica.NodeName{{"n1"}}, []replica.Digest{man.Geometry}
			}))
			a := d.mirrorOf(lj, replica.OfRank(1), 1, false)
			d.seal(a, ring(0), fixture.Gen(3, 5), 7)
			takes := partOf(man, chunks)
			takes.Key.Rank, takes.Key.Incarnation = 0, 4 // the group's part comes from its lowest rank
			return d.bed(partOf(manifestFor(a, ring(0), fixture.Gen(3, 5), 7)), takes)
		})
	})
}

// TestStoreSuiteOfLarge: the same for parts that are held back. What is served and what is taken lie in mirrors.
func TestStoreSuiteOfLarge(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Bed {
		d := newRig(t)
		d.put(fixture.Job())
		g, err := replica.NewGeometry([]replica.Region{
			{Name: "weight", DType: replica.F32, Shape: []uint64{16}, Bytes: 64},
			{Name: "loader", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{hands.PacedFrom}, Bytes: hands.PacedFrom},
		})
		if err != nil {
			t.Fatal(err)
		}
		a := d.arena(shm.Spec{Rank: 1, Geometry: g, Mirror: true})
		d.mirrors.Adopt(fixture.JobID, replica.OfRank(1), a)
		d.turn(d.mirrors, time.Now())
		d.seal(a, ring(0), fixture.Gen(3, 5), 7)
		man, chunks := manifestFor(a, ring(0), fixture.Gen(3, 6), 8)
		man.Regions = g.Of(replica.PrivatePart)
		return d.bed(partOf(manifestFor(a, ring(0), fixture.Gen(3, 5), 7)), partOf(man, chunks))
	})
}

// TestStoreSuiteOfFrozen: the same for a frozen part. It is pushed beside what binds it, and goes by any generation.
func TestStoreSuiteOfFrozen(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Bed {
		d := newRig(t)
		maker := d.arena(shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, true)})
		man, chunks := manifestFor(maker, frozenPlace, fixture.Gen(1, 0), 99)
		man.Regions = maker.Geometry().Of(replica.FrozenPart)
		lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
			j.Ranks[0].Node, j.Ranks[0].NodeIncarnation = "n2", 22
			j.GroupMirrors = [][]replica.NodeName{{"n1"}}
			j.GroupGeometry = []replica.Digest{maker.Header().Geometry[replica.ReplicatedPart]}
		}))
		private := d.mirrorOf(lj, replica.OfRank(1), 1, false)
		d.seal(private, ring(0), fixture.Gen(3, 5), 7)
		d.seal(d.mirrorOf(lj, replica.OfGroup(0), 0, true), slot(0), fixture.Gen(3, 6), 3)
		takes := partOf(man, chunks)
		takes.Key.Rank, takes.Key.Incarnation = 0, 4
		return d.bed(partOf(manifestFor(private, ring(0), fixture.Gen(3, 5), 7)), takes)
	})
}

// partOf is a part as rank 1 asks for it.
func partOf(man replica.Manifest, chunks [][]byte) storetest.Part {
	return storetest.Part{Key: keyFor(man.Part, man.Generation, man.Root), Manifest: man, Chunks: chunks}
}

// bed is the rig's node as n2, which holds rank 1, finds it.
func (d *rig) bed(has, takes storetest.Part) storetest.Bed {
	return storetest.Bed{Store: d.store(), Peer: "n2", Stranger: "n3", Has: has, Takes: takes, Do: d.serves, InUse: d.inUse}
}

// inUse names what is read, and what is on its way here, once the node has handled all that was posted before.
func (d *rig) inUse() (list []string) {
	d.t.Helper()
	d.serves(func() { d.ask(context.WithoutCancel(d.ctx), calls(func() {})) })
	lj := d.jobs.all[fixture.JobID]
	for range d.hands.Pacer.Holding().UnderWay {
		list = append(list, "a transfer that is held back")
	}
	var arenas []*holding.Arena
	for _, lr := range lj.Ranks {
		arenas = append(arenas, lr.Arena)
	}
	for _, m := range lj.Mirrors.All() {
		arenas = append(arenas, m.Arena)
	}
	for _, a := range arenas {
		for _, p := range held(a) {
			list = append(list, fmt.Sprintf("%v is read", p))
		}
		for _, p := range staged(a) {
			list = append(list, fmt.Sprintf("%v is written to", p))
		}
		for _, p := range a.Places() {
			if s := a.Word(p).State(); s != replica.SlotFree && s != replica.SlotSealed {
				list = append(list, fmt.Sprintf("%v is %v", p, s))
			}
		}
	}
	return list
}
