package node

import (
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Asked for the regions of a sealed part, a node hashes each by itself, those of the frozen area that the part binds too, and
// says so; the place is let go of. What does not lie here, or in another rank's arena only, is said not to.
func TestRegionsOfASealedPart(t *testing.T) {
	d := newDesk(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.arena = d.arena(shm.Spec{Geometry: testGeometry(t, true)})
	d.seal(lr.arena, frozenPlace, fixture.Gen(1, 0), 99)
	weight := d.seal(lr.arena, slot(0), fixture.Gen(3, 0), 7)
	d.seal(lr.arena, slot(1), fixture.Gen(3, 1), 8)
	d.says()
	ask := func(o control.RegionsOrder) replica.RegionReport {
		t.Helper()
		d.leaderSays(o)
		var said []replica.RegionReport
		d.until("the regions", func() bool { said = append(said, only[replica.RegionReport](d.says())...); return len(said) > 0 })
		return said[0]
	}
	order := control.RegionsOrder{Job: fixture.JobID, Generation: fixture.Gen(3, 0), Part: replica.OfGroup(0), Root: weight.Root}
	got := ask(order)
	want := replica.RegionReport{Job: fixture.JobID, Generation: fixture.Gen(3, 0), Part: replica.OfGroup(0), Root: weight.Root,
		Regions: []replica.RegionDigest{{Name: "weight", Digest: regionHash(t, lr.arena, slot(0), "weight")}, {Name: "base", Digest: regionHash(t, lr.arena, frozenPlace, "base")}}}
	if len(got.Regions) != 2 || got.Regions[0] != want.Regions[0] || got.Regions[1] != want.Regions[1] || got.Failed != "" || got.Root != want.Root {
		t.Errorf("said %+v\nwant %+v", got, want)
	}
	if len(lr.arena.held) != 0 {
		t.Errorf("places are still held: %v", lr.arena.held)
	}
	for what, change := range map[string]func(*control.RegionsOrder){
		"another root":       func(o *control.RegionsOrder) { o.Root[0] ^= 1 },
		"another rank":       func(o *control.RegionsOrder) { o.Rank = 1 },
		"another generation": func(o *control.RegionsOrder) { o.Generation.Step++ },
		"a private part":     func(o *control.RegionsOrder) { o.Part = replica.OfRank(0) },
		"another job":        func(o *control.RegionsOrder) { o.Job[0] ^= 1 },
	} {
		o := order
		change(&o)
		if got := ask(o); got.Failed == "" || len(got.Regions) != 0 {
			t.Errorf("%s: said %+v, want that it is not here", what, got)
		}
	}
}

// regionHash hashes a region's bytes, found by its offset in the part.
func regionHash(t *testing.T, a *arenaRef, p shm.Place, name string) replica.Digest {
	t.Helper()
	info, err := a.Sealed(p)
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for i := range info.Digests {
		b, err := a.ReadChunk(p, info.Count, i, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	for _, r := range a.Geometry().Regions {
		if r.Name == name {
			return shm.Hash(all[r.Offset : r.Offset+r.Bytes])
		}
	}
	t.Fatalf("no region %q", name)
	return replica.Digest{}
}

// The leader asks the nodes of two ranks that sealed different initial states for their regions, hears each of its own rank
// alone, and ends the job with the region's name.
func TestLeaderNamesRegions(t *testing.T) {
	c := newChair(t)
	links := map[replica.NodeName]*nodeLink{"n1": c.node("n1", 11), "n2": c.node("n2", 22)}
	job := fixture.Job()
	job.Phase, job.Epoch, job.ClosedEpoch, job.Lineage, job.Plan, job.Position, job.Committed = replica.Opening, 1, 0, nil, nil, replica.Position{}, replica.Generation{}
	c.knows(job)
	roots := []replica.Digest{{1}, {2}}
	for r, name := range []replica.NodeName{"n1", "n2"} {
		rank := replica.Rank(r)
		c.message(t.Context(), links[name], replica.NodeReport{Job: fixture.JobID, Holder: links[name].node.Holder(), Session: 1, Seq: 1, Settled: true,
			Ranks: []replica.RankReport{{Rank: rank, Incarnation: job.Ranks[r].Incarnation, Alive: true, Attached: true, Initial: 1}},
			Parts: []replica.Held{{Part: replica.OfGroup(0), Generation: fixture.Gen(1, 0), Root: roots[r], Rank: rank}, {Part: replica.OfRank(rank), Generation: fixture.Gen(1, 0), Root: replica.Digest{3}, Rank: rank}}})
	}
	answer := func(r replica.Rank, digest byte) replica.RegionReport {
		return replica.RegionReport{Job: fixture.JobID, Generation: fixture.Gen(1, 0), Part: replica.OfGroup(0), Rank: r, Root: roots[r],
			Regions: []replica.RegionDigest{{Name: "same", Digest: replica.Digest{5}}, {Name: "other", Digest: replica.Digest{digest}}}}
	}
	for r, name := range []replica.NodeName{"n1", "n2"} {
		want := control.RegionsOrder{Job: fixture.JobID, Generation: fixture.Gen(1, 0), Part: replica.OfGroup(0), Rank: replica.Rank(r), Root: roots[r]}
		if asked := only[control.RegionsOrder](told(t, links[name])); len(asked) != 1 || asked[0] != want {
			t.Fatalf("%s was asked %+v, want %+v", name, asked, want)
		}
	}
	c.message(t.Context(), links["n1"], answer(0, 6))
	c.message(t.Context(), links["n1"], answer(1, 6)) // not its rank
	if cmds := c.proposed(); len(cmds) != 0 {
		t.Fatalf("proposed %v on one node's word", cmds)
	}
	c.message(t.Context(), links["n2"], answer(1, 7))
	cmds := c.proposed()
	if len(cmds) != 1 {
		t.Fatalf("proposed %v, want the end of the job", cmds)
	}
	const says = `initial state of group 0 differs between rank 0 (n1) and rank 1 (n2): region "other"; remedy: broadcast the state of one rank of the group to the others before seal_initial; roots: rank 0 on n1: `
	if end, ok := cmds[0].(replica.EndJob); !ok || len(end.Reason) < len(says) || end.Reason[:len(says)] != says {
		t.Errorf("proposed %+v", cmds[0])
	}
}
