package host

import (
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Asked for the regions of a sealed part, a node hashes each by itself, those of the frozen area that the part binds too, and
// says so; the place is let go of. What does not lie here, or in another rank's arena only, is said not to.
func TestRegionsOfASealedPart(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Arena = d.arena(shm.Spec{Geometry: fixture.Geometry(t, true)})
	d.seal(lr.Arena, frozenPlace, fixture.Gen(1, 0), 99)
	weight := d.seal(lr.Arena, slot(0), fixture.Gen(3, 0), 7)
	d.seal(lr.Arena, slot(1), fixture.Gen(3, 1), 8)
	d.says()
	ask := func(o control.RegionsOrder) replica.RegionReport {
		t.Helper()
		d.leaderSays(o)
		var said []replica.RegionReport
		d.until("the regions", func() bool {
			said = append(said, fixture.Only[replica.RegionReport](d.says())...)
			return len(said) > 0
		})
		return said[0]
	}
	order := control.RegionsOrder{Job: fixture.JobID, Generation: fixture.Gen(3, 0), Part: replica.OfGroup(0), Root: weight.Root}
	got := ask(order)
	want := replica.RegionReport{Job: fixture.JobID, Generation: fixture.Gen(3, 0), Part: replica.OfGroup(0), Root: weight.Root,
		Regions: []replica.RegionDigest{{Name: "weight", Digest: regionHash(t, lr.Arena, slot(0), "weight")}, {Name: "base", Digest: regionHash(t, lr.Arena, frozenPlace, "base")}}}
	if len(got.Regions) != 2 || got.Regions[0] != want.Regions[0] || got.Regions[1] != want.Regions[1] || got.Failed != "" || got.Root != want.Root {
		t.Errorf("said %+v\nwant %+v", got, want)
	}
	if len(held(lr.Arena)) != 0 {
		t.Errorf("places are still held: %v", held(lr.Arena))
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
func regionHash(t *testing.T, a *holding.Arena, p shm.Place, name string) replica.Digest {
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
