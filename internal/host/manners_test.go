package host

import (
	"errors"
	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/host/rank"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// What leaves is held back while ranks train here, and at no other time.
func TestYielding(t *testing.T) {
	const held, free = true, false
	for what, c := range map[string]struct {
		rate   config.DonorRate
		change func(*replica.Job, *rank.Rank)
		want   bool
	}{
		"a rank trains":                {config.Auto, func(*replica.Job, *rank.Rank) {}, held},
		"a rate of its own":            {"32MiB", func(*replica.Job, *rank.Rank) {}, held},
		"unlimited":                    {config.Unlimited, func(*replica.Job, *rank.Rank) {}, free},
		"the job recovers":             {config.Auto, func(j *replica.Job, _ *rank.Rank) { j.Phase = replica.Closed }, free},
		"it recovers, a rate":          {"32MiB", func(j *replica.Job, _ *rank.Rank) { j.Phase = replica.Planned }, free},
		"the rank waits for the fault": {config.Auto, func(_ *replica.Job, lr *rank.Rank) { lr.Life = rank.Stopped }, free},
		"it has finished":              {config.Auto, func(_ *replica.Job, lr *rank.Rank) { lr.Life = rank.Finished }, free},
		"it was not let go yet":        {config.Auto, func(_ *replica.Job, lr *rank.Rank) { lr.Gone = 2 }, free},
		"it stands still on purpose":   {config.Auto, func(_ *replica.Job, lr *rank.Rank) { lr.Pulse.Pause(time.Second, time.Hour) }, free},
	} {
		d := newRig(t)
		d.cfg.DonorRate = c.rate
		lj := d.put(fixture.Job())
		lr := d.attach(lj, 0)
		lr.Gone, lr.Loaded = 3, 3
		d.live(lr, 3, 6, replica.Idle)
		d.pulses(lj)
		c.change(lj.Job, lr)
		d.began = d.began.Add(-time.Minute)
		d.hands.Yield(time.Since(d.began), d.jobs.training)
		h := d.hands.Pacer.Holding()
		if (h.Limit != manners.NoLimit) != c.want || c.rate == "32MiB" && c.want && h.Limit != 32<<20 {
			t.Errorf("%s: held to %g: %s", what, h.Limit, h.Why)
		}
	}
}

// Who fetches or is sent a part, and when, says what waits for it.
func TestClassesOfTransfers(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	k := keyFor(replica.OfGroup(0), fixture.Gen(3, 5), replica.Digest{})
	lj.Job.Phase = replica.Planned
	if c := lj.FetchedFor(k, "n2"); c != manners.Recovery {
		t.Errorf("the rank's own node: class %d", c)
	}
	if c := lj.FetchedFor(k, "n7"); c != manners.Mirroring {
		t.Errorf("a mirror: class %d", c)
	}
	lj.Job.Phase = replica.Open
	if c := lj.FetchedFor(k, "n7"); c != manners.Background {
		t.Errorf("a mirror of a job that trains: class %d", c)
	}
}

// What a push has read that is not made after all holds no place, and is not under way: where it is sent at a pace too.
func TestADroppedPushHoldsNothing(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Arena = d.arena(shm.Spec{Rank: 0, Geometry: withLarge(t)})
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 1)
	d.seal(lr.Arena, ring(0), fixture.Gen(3, 5), 1)
	paced := 0
	for _, c := range lj.View().Copies() {
		r, err := d.hands.Open(lj.Job, c)
		if err != nil {
			t.Fatal(err)
		}
		p := d.hands.Pace(r, manners.Mirroring)
		if at, is := p.(transfer.Paced); is {
			paced++
			at.Pace()(1)
			if n := d.hands.Pacer.Holding().UnderWay; n != 1 {
				t.Errorf("%v: %d under way", c.Held.Part, n)
			}
		}
		hands.Drop(p)
		if n := d.hands.Pacer.Holding().UnderWay; n != 0 || len(held(lr.Arena)) != 0 {
			t.Errorf("%v is not sent after all, and holds its place, or %d are under way", c.Held.Part, n)
		}
	}
	if paced != 1 {
		t.Errorf("%d of the parts are sent at a pace, want the large one", paced)
	}
}

// withLarge has a private part that is sent at a pace.
func withLarge(t *testing.T) replica.Geometry {
	t.Helper()
	g, err := replica.NewGeometry([]replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{2500}, Bytes: 10000},
		{Name: "loader", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile,
			Shape: []uint64{hands.PacedFrom}, Bytes: hands.PacedFrom},
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A push that this node takes in is under way, by the class of what waits for it, until it is sealed or given up.
func TestAcceptIsPaced(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	g := withLarge(t)
	from := d.arena(shm.Spec{Rank: 1, Geometry: g})
	for step, fails := range map[replica.Step]error{6: nil, 7: errors.New("a test")} {
		man, chunks := manifestFor(from, ring(0), fixture.Gen(3, step), uint64(step))
		man.Regions = g.Of(replica.PrivatePart)
		lj.Candidate = fixture.Candidate(1, step)
		s, done, err := d.accept("n2", keyFor(replica.OfRank(1), man.Generation, man.Root), man)
		if err != nil {
			t.Fatal(err)
		}
		if n := d.hands.Pacer.Holding().UnderWay; n != 1 {
			t.Errorf("step %d: %d under way", step, n)
		}
		before := d.hands.Pacer.Moved()
		for i, b := range chunks {
			if err := s.Put(i, b); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.hands.Pacer.Moved() - before; n != man.Bytes {
			t.Errorf("step %d: %d of %d bytes counted", step, n, man.Bytes)
		}
		d.serves(func() { err = done(fails) })
		if !errors.Is(err, fails) {
			t.Errorf("step %d: %v", step, err)
		}
		if n := d.hands.Pacer.Holding().UnderWay; n != 0 {
			t.Errorf("step %d: %d under way at its end", step, n)
		}
	}
}
