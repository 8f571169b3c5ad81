package host

import (
	"errors"
	"github.com/replicad/replicad/internal/host/rank"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
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
		d.yield()
		h := d.yielding.pacer.Holding()
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

// part is a reader of so many bytes.
type part struct {
	transfer.Reader
	bytes  uint64
	closed bool
}

func (p *part) Manifest() replica.Manifest { return replica.Manifest{Bytes: p.bytes} }
func (p *part) Close()                     { p.closed = true }

type partOnItsWay struct{ part }

func (*partOnItsWay) Has(int) bool { return true }

// Small parts are never held back. Others stay what they are, and their end is counted.
func TestPaced(t *testing.T) {
	d := newRig(t)
	if small := (&part{bytes: pacedFrom - 1}); d.pace(small, manners.Recovery) != transfer.Reader(small) {
		t.Error("a small part is held back")
	}
	whole, coming := &part{bytes: pacedFrom}, &partOnItsWay{part{bytes: pacedFrom}}
	for _, r := range []transfer.Reader{whole, coming} {
		p := d.pace(r, manners.Mirroring)
		if _, is := p.(transfer.Receiving); is != (r == transfer.Reader(coming)) {
			t.Errorf("%T is %T", r, p)
		}
		p.(transfer.Paced).Pace()(pacedFrom)
		if n := d.yielding.pacer.Holding().UnderWay; n != 1 {
			t.Errorf("%d under way", n)
		}
		p.Close()
		if n := d.yielding.pacer.Holding().UnderWay; n != 0 {
			t.Errorf("%d under way at its end", n)
		}
	}
	if !whole.closed || !coming.closed {
		t.Error("not closed")
	}
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 1)
	r, err := d.reader(lj.Job, lj.View().Copies()[0])
	if err != nil {
		t.Fatal(err)
	}
	drop(&paced{r, d.yielding.pacer.Flow(manners.Mirroring, pacedFrom)})
	if len(held(lr.Arena)) != 0 {
		t.Error("a part that is not sent after all holds its place")
	}
}

type sink struct{ transfer.Sink }

func (sink) Put(int, []byte) error { return nil }

// What is pushed here is held back as what leaves is: a mirror's ranks would feel it else. It is under way until its end.
func TestPacedSink(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := new(manners.Pacer)
		p.Limit(64<<20, "a test")
		h := &Host{yielding: yielding{pacer: p}}
		if s, end := h.paceSink(sink{}, pacedFrom-1, manners.Mirroring); s != transfer.Sink(sink{}) {
			t.Error("a small part is held back")
		} else {
			end()
		}
		s, end := h.paceSink(sink{}, 64<<20, manners.Mirroring)
		if n := p.Holding().UnderWay; n != 1 {
			t.Errorf("%d under way", n)
		}
		began := time.Now()
		for i := range 16 {
			if err := s.Put(i, make([]byte, 4<<20)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < 900*time.Millisecond || took > 1100*time.Millisecond {
			t.Errorf("64 MiB came in within %v at 64 MiB a second", took)
		}
		if p.Moved() != 64<<20 {
			t.Errorf("%d bytes moved", p.Moved())
		}
		end()
		if n := p.Holding().UnderWay; n != 0 {
			t.Errorf("%d under way at its end", n)
		}
	})
}

// A push that this node takes in is under way, by the class of what waits for it, until it is sealed or given up.
func TestAcceptIsPaced(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	g, err := replica.NewGeometry([]replica.Region{
		{Name: "weight", DType: replica.F32, Shape: []uint64{2500}, Bytes: 10000},
		{Name: "loader", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{pacedFrom}, Bytes: pacedFrom},
	})
	if err != nil {
		t.Fatal(err)
	}
	from := d.arena(shm.Spec{Rank: 1, Geometry: g})
	for step, fails := range map[replica.Step]error{6: nil, 7: errors.New("a test")} {
		man, chunks := manifestFor(from, ring(0), fixture.Gen(3, step), uint64(step))
		man.Regions = g.Of(replica.PrivatePart)
		lj.Candidate = fixture.Candidate(1, step)
		s, done, err := d.accept("n2", keyFor(replica.OfRank(1), man.Generation, man.Root), man)
		if err != nil {
			t.Fatal(err)
		}
		if n := d.yielding.pacer.Holding().UnderWay; n != 1 {
			t.Errorf("step %d: %d under way", step, n)
		}
		before := d.yielding.pacer.Moved()
		for i, b := range chunks {
			if err := s.Put(i, b); err != nil {
				t.Fatal(err)
			}
		}
		if n := d.yielding.pacer.Moved() - before; n != man.Bytes {
			t.Errorf("step %d: %d of %d bytes counted", step, n, man.Bytes)
		}
		d.serves(func() { err = done(fails) })
		if !errors.Is(err, fails) {
			t.Errorf("step %d: %v", step, err)
		}
		if n := d.yielding.pacer.Holding().UnderWay; n != 0 {
			t.Errorf("step %d: %d under way at its end", step, n)
		}
	}
}
