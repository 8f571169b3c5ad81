package host

import (
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/rank"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// grownRegions are those of fixture.Geometry and one more.
func grownRegions(t *testing.T) []replica.Region {
	t.Helper()
	regions := slices.Clone(fixture.Geometry(t, false).Regions)
	for i := range regions {
		regions[i].Offset = 0
	}
	return append(regions, replica.Region{Name: "late", DType: replica.U8, Shape: []uint64{500}, Bytes: 500})
}

func grownGeometry(t *testing.T) replica.Geometry {
	t.Helper()
	g, err := replica.NewGeometry(grownRegions(t))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// spares is the kernel's processes, of which none is killed: the rank's is the test's.
type spares struct {
	Processes
	t *testing.T
}

func (s spares) Kill(pid int, _ uint64) error {
	s.t.Logf("kills %d", pid)
	return nil
}

// growing is a node whose rank 0 trains and stands at the committed step 5 of epoch 3.
func growing(t *testing.T) (*rig, *job.Job, *rank.Rank, *rankEnd) {
	t.Helper()
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.GroupGeometry = []replica.Digest{shm.GeometryDigest(fixture.Geometry(t, false), replica.ReplicatedPart)}
	}))
	lr := d.attach(lj, 0)
	var end *rankEnd
	lr.Peer, end = d.session(0)
	lr.Life, lr.Loaded, lr.Gone, lr.PID = rank.Training, 3, 3, lr.Peer.PID()
	lr.Start = lr.Peer.StartTime()
	d.processes = spares{d.processes, d.t}
	d.live(lr, 3, 5, replica.Idle)
	d.both(lr.Arena, 0, fixture.Gen(3, 5))
	d.fence(lj)
	if h, _ := end.reads(); h.Type != wire.MFence {
		t.Fatalf("reads %+v", h)
	}
	return d, lj, lr, end
}

func (d *rig) grow(lr *rank.Rank, request uint32) {
	d.t.Helper()
	d.handleSession(session.Grow{Peer: lr.Peer, Header: wire.RankHeader{Type: wire.MGrow, Request: request, Epoch: 3, Incarnation: lr.Incarnation}, Growth: wire.Growth{Step: 5, Regions: 3, Recipe: 6}, Regions: grownRegions(d.t), Recipe: []byte("recipe")})
}

// decide has the job grow.
func (d *rig) decide(lj *job.Job) {
	d.t.Helper()
	d.views(control.View{Index: lj.Job.LastIndex + 1, Era: 1, Jobs: []*replica.Job{fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Growth = &replica.Growth{Step: 5, Geometries: j.GroupGeometry, What: "1 regions more"}
		j.GroupGeometry, j.Recipe = []replica.Digest{shm.GeometryDigest(grownGeometry(d.t), replica.ReplicatedPart)}, []byte("recipe")
		j.Phase, j.ClosedEpoch, j.Epoch, j.Plan = replica.Opening, 3, 4, nil
	})}})
}

// takeBack has a fault take the growth back.
func (d *rig) takeBack(lj *job.Job) {
	d.t.Helper()
	d.views(control.View{Index: lj.Job.LastIndex + 1, Era: 1, Jobs: []*replica.Job{fixture.Changed(lj.Job, func(j *replica.Job) {
		j.GroupGeometry, j.Recipe, j.Growth = j.Growth.Geometries, nil, nil
		j.Phase, j.ClosedEpoch, j.Plan = replica.Closed, j.Epoch, nil
	})}})
}

func growthReported(msgs []any, r replica.Rank) *replica.RankGrowth {
	var g *replica.RankGrowth
	for _, rep := range fixture.Only[replica.NodeReport](msgs) {
		for _, rr := range rep.Ranks {
			if rr.Rank == r {
				g = rr.Growth
			}
		}
	}
	return g
}

// A rank's growth is reported, handed out once it is decided, sealed, and gone on from; the arena of before stays until then.
func TestARankGrows(t *testing.T) {
	d, lj, lr, end := growing(t)
	before := lr.Arena
	d.says()
	d.grow(lr, 7)
	if g := growthReported(d.says(), 0); g == nil || g.Prepared || string(g.RecipeBytes) != "recipe" || !lr.Pulse.Stands() {
		t.Fatalf("%+v, stands: %v", g, lr.Pulse.Stands())
	}
	d.until("the arena", func() bool { return growthReported(d.says(), 0) != nil })
	end.quiet(lr.Peer)

	d.decide(lj)
	if h, _ := end.reads(); h.Type != wire.MFence || h.Epoch != 3 {
		t.Errorf("reads %+v, want the fence of epoch 3", h)
	}
	d.until("that it is parked", func() bool { return d.parked()[lr.Arena.Key()] && len(d.in) == 0 })
	h, body := end.reads()
	if a, err := wire.ParseAttached(body); h.Type != wire.MAttached || h.Request != 7 || err != nil || a.ArenaBytes != lr.Arena.Header().ArenaBytes || a.Fence != 3 {
		t.Fatalf("reads %+v, %+v (%v)", h, a, err)
	}
	if lr.Arena == before || lr.Arena.Grown() != 4 || lr.Arena.Fence() != 3 || before.Fence() != 3 || !slices.Contains(lj.Retired, before) || lr.Life != rank.Attached || lr.Loaded != 0 || lr.Pulse.Stands() {
		t.Fatalf("arena %v, fences %d and %d, %v, loaded %d", lr.Arena.Key(), lr.Arena.Fence(), before.Fence(), lr.Life, lr.Loaded)
	}
	if list, err := d.loadArenas(); err != nil || len(list.Arenas) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}

	d.handleSession(session.Stopped{Peer: lr.Peer})
	if e, o := end.ordered(); e != 4 || o.Action != wire.OrderInit || o.Step != 5 {
		t.Fatalf("ordered %+v of epoch %d", o, e)
	}
	d.both(lr.Arena, 0, fixture.Gen(4, 5))
	d.checkInitial(lj, lr)
	if lr.Initial != 4 {
		t.Fatal("its step is not sealed")
	}
	group, private := d.rootsOf(lr, fixture.Gen(4, 5))
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Phase = replica.Planned
		j.Plan = &replica.Plan{Epoch: 4, Initial: true, Generation: fixture.Gen(4, 5), Layout: j.Layout, Ranks: j.Ranks, Sources: []replica.Source{
			{Part: replica.OfGroup(0), Root: group, Tier: replica.OwnRAM, Holders: []replica.Holder{d.holder()}}, {Part: replica.OfRank(0), Root: private, Tier: replica.OwnRAM, Holders: []replica.Holder{d.holder()}}}}
	})
	d.reconcile(lj)
	d.until("the restore", func() bool { return d.restored(lj, lr) })
	if e, o := end.ordered(); e != 4 || o.Action != wire.OrderLoad || o.Step != 5 || o.Source != replica.OwnRAM {
		t.Fatalf("ordered %+v of epoch %d", o, e)
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Phase, j.Growth, j.Grown, j.Position, j.Committed = replica.Open, nil, 4, replica.Position{Epoch: 4, Step: 5}, fixture.Gen(4, 5)
		j.Lineage = append(slices.Clone(j.Lineage), replica.Opened{Epoch: 4, Start: 5})
	})
	d.reconcile(lj)
	if len(lj.Retired) != 0 || lr.Outgrown(lj.Job) {
		t.Errorf("%d arenas of before are held, outgrown: %v", len(lj.Retired), lr.Outgrown(lj.Job))
	}
}

// rootsOf is what a rank has sealed of a generation.
func (d *rig) rootsOf(lr *rank.Rank, g replica.Generation) (group, private replica.Digest) {
	for _, p := range lr.Arena.Places() {
		if info, err := lr.Arena.Info(p); err == nil && info.Generation == g {
			if p.Kind == shm.Slot {
				group = info.Root
			} else if p.Kind == shm.Ring {
				private = info.Root
			}
		}
	}
	return group, private
}

// A fault at each moment: before the growth is decided the rank has what it had, afterwards its process ends.
func TestAFaultInAGrowth(t *testing.T) {
	for _, moment := range []string{"asked", "made", "decided", "sealed"} {
		t.Run(moment, func(t *testing.T) {
			d, lj, lr, end := growing(t)
			before := lr.Arena
			d.says()
			d.grow(lr, 7)
			if moment != "asked" {
				d.until("the arena", func() bool { g := growthReported(d.says(), 0); return g != nil && g.Prepared })
			}
			if moment == "asked" || moment == "made" {
				d.views(control.View{Index: lj.Job.LastIndex + 1, Era: 1, Jobs: []*replica.Job{fixture.Closed(lj.Job)}})
				end.reads() // the fence
				if h, body := end.reads(); h.Type != wire.MRefused || h.Request != 7 || !strings.Contains(string(body), "closed before the growth was decided") {
					t.Fatalf("reads %+v %s", h, body)
				}
				if lr.Arena != before || d.growing.Asks(lj.Job.ID) {
					t.Error("something has changed")
				}
				return
			}
			d.decide(lj)
			end.reads() // the fence
			d.until("that it is parked", func() bool { return d.parked()[lr.Arena.Key()] && len(d.in) == 0 })
			end.reads() // the arena
			if moment == "sealed" {
				d.handleSession(session.Stopped{Peer: lr.Peer})
				end.ordered()
				d.both(lr.Arena, 0, fixture.Gen(4, 5))
				d.checkInitial(lj, lr)
			}
			d.takeBack(lj)
			if h, _ := end.reads(); h.Type != wire.MFence || h.Epoch != 4 {
				t.Errorf("reads %+v, want the fence of epoch 4", h)
			}
			if _, o := end.ordered(); o.Action != wire.OrderStop || !strings.Contains(o.Text, "broken off") || len(o.Text) > 63 {
				t.Errorf("ordered %+v", o)
			}
			d.says()
			d.report(lj)
			if !lr.Outgrown(lj.Job) || !slices.Contains(lj.Retired, before) {
				t.Errorf("outgrown: %v, holders %v", lr.Outgrown(lj.Job), lj.Retired)
			}
			// What is gone on from lies in the arena of before.
			if _, ok := lj.View().Find(nil, replica.OfRank(0), fixture.Gen(3, 5), func() replica.Digest { i, _ := before.Info(ring(0)); return i.Root }()); !ok {
				t.Error("the committed step is gone")
			}
		})
	}
}

// A rank that gave up waiting and stops with its words of before can't seal: that is a fault, and the growth is taken back.
func TestARankStrays(t *testing.T) {
	d, lj, lr, end := growing(t)
	d.grow(lr, 7)
	d.until("the arena", func() bool { g := growthReported(d.says(), 0); return g != nil && g.Prepared })
	d.decide(lj)
	end.reads()
	d.says()
	d.handleSession(session.Stopped{Peer: lr.Peer, Live: replica.PackWord(3, 5, replica.Idle)})
	if ev := fixture.Only[control.Evidence](d.says()); len(ev) != 1 || ev[0].Fault.Kind != replica.Exception || !strings.Contains(ev[0].Fault.Detail, "without waiting") || lr.Stopped() {
		t.Errorf("%+v", ev)
	}
}

// A process asks how it gets the job's regions before it registers.
func TestTheRecipe(t *testing.T) {
	d, lj, lr, end := growing(t)
	ask := func(offset uint32) (wire.RankHeader, []byte) {
		d.handleSession(session.Recipe{Peer: lr.Peer, Header: wire.RankHeader{Type: wire.MRecipe, Request: 9}, Offset: offset})
		return end.reads()
	}
	long := make([]byte, wire.MaxPiece+10)
	long[wire.MaxPiece] = 1
	for _, c := range []struct {
		recipe []byte
		offset uint32
		want   int
	}{{nil, 0, 0}, {nil, 99, 0}, {[]byte("recipe"), 0, 6}, {[]byte("recipe"), 4, 2}, {[]byte("recipe"), 7, 0}, {long, 0, wire.MaxPiece}, {long, wire.MaxPiece, 10}} {
		lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Recipe = c.recipe })
		h, body := ask(c.offset)
		if p, err := wire.ParsePiece(body); h.Type != wire.MRecipeIs || h.Request != 9 || err != nil || len(p.Bytes) != c.want || int(p.Total) != len(c.recipe) {
			t.Errorf("%d bytes from %d: %+v, %d of %d (%v)", len(c.recipe), c.offset, h, len(p.Bytes), p.Total, err)
		}
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Growth = &replica.Growth{} })
	if h, _ := ask(0); h.Type != wire.MRefused {
		t.Errorf("while the job grows: %+v", h)
	}
}

// A mirror's arena of before is a holder while a growth can be taken back.
func TestAMirrorGrows(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Growth = &replica.Growth{Step: 5}
		j.Phase, j.ClosedEpoch, j.Epoch, j.Plan = replica.Opening, 3, 4, nil
	}))
	old := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	d.seal(old, ring(0), fixture.Gen(3, 5), 1)
	other, err := replica.NewGeometry([]replica.Region{{Name: "rng", DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{200}, Bytes: 200}})
	if err != nil {
		t.Fatal(err)
	}
	man := replica.Manifest{Part: replica.OfRank(1), Geometry: shm.GeometryDigest(other, replica.PrivatePart), Regions: other.Regions, Bytes: other.PrivateBytes, ChunkBytes: 4096}
	_, mk, err := d.mirrors.Find(d.began, lj.Job, 1, man)
	if err != nil {
		t.Fatal(err)
	}
	d.turn(d.mirrors, d.began)
	d.until("the mirror's arena", func() bool {
		select {
		case <-mk.Done():
			return true
		default:
			return false
		}
	})
	if a := lj.Mirrors.Arena(replica.OfRank(1)); a == old || !slices.Contains(lj.Retired, old) || old.Dropped() {
		t.Errorf("retired: %v, dropped: %v", slices.Contains(lj.Retired, old), old.Dropped())
	}
}
