package host

import (
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/rank"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// planned is the job with a plan of epoch 4 at (3,5), for which rank 0 holds both parts.
func (d *rig) planned(lj *job.Job, lr *rank.Rank) (group, private replica.Digest) {
	group, private = d.seal(lr.Arena, slot(2), fixture.Gen(3, 5), 1).Root, d.seal(lr.Arena, ring(3), fixture.Gen(3, 5), 2).Root
	lj.Job = fixture.Changed(fixture.Closed(lj.Job), func(j *replica.Job) {
		j.Phase, j.Epoch = replica.Planned, 4
		j.Plan = &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5), Ranks: j.Ranks,
			Sources: []replica.Source{{Part: replica.OfGroup(0), Root: group, Tier: replica.PeerRAM}, {Part: replica.OfRank(0), Root: private, Tier: replica.PeerRAM}, {Part: replica.OfRank(1), Tier: replica.PeerRAM}}}
	})
	return group, private
}

// The orders of a recovery, from the fence to GO: each is sent once, and a rank is let go once an epoch.
func TestOrders(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	var end *rankEnd
	lr.Peer, end = d.session(0)
	lr.Loaded, lr.Gone = 3, 3
	d.live(lr, 3, 6, replica.Idle)
	group, private := d.planned(lj, lr)
	d.reconcile(lj)
	if h, _ := end.reads(); h.Type != wire.MFence || h.Epoch != 3 {
		t.Errorf("first the rank reads %+v, want the fence", h)
	}
	d.reconcile(lj)
	end.quiet(lr.Peer) // it has not stopped: no load before its captures are joined
	if lj.View().Ranks[0].Waits {
		t.Error("it is restored while it runs")
	}

	stopped := session.Stopped{Peer: lr.Peer}
	d.handleSession(stopped)
	d.until("the restore", func() bool { return d.restored(lj, lr) })
	e, o := end.ordered()
	if e != 4 || o.Action != wire.OrderLoad || o.Slot != 2 || o.Place != 3 || o.ReplicatedRoot != group || o.PrivateRoot != private || o.Generation != fixture.Gen(3, 5) || o.Step != 5 || o.Source != replica.OwnRAM {
		t.Errorf("ordered %+v of epoch %d", o, e)
	}
	d.reconcile(lj)
	end.quiet(lr.Peer)
	d.says()

	loaded := session.Loaded{Peer: lr.Peer, Header: wire.RankHeader{Epoch: 4}, Loaded: wire.Loaded{Generation: fixture.Gen(3, 5), ReplicatedRoot: group, PrivateRoot: private}}
	for what, change := range map[string]func(*wire.Loaded){
		"another group root":   func(l *wire.Loaded) { l.ReplicatedRoot[0]++ },
		"another private root": func(l *wire.Loaded) { l.PrivateRoot[0]++ },
		"another generation":   func(l *wire.Loaded) { l.Generation.Step++ },
	} {
		bad := loaded
		change(&bad.Loaded)
		d.handleSession(bad)
		if ev := fixture.Only[control.Evidence](d.says()); lr.Loaded == 4 || len(ev) != 1 || ev[0].Fault.Kind != replica.BadDigest || ev[0].Fault.Epoch != 4 || ev[0].Fault.Incarnation != 4 {
			t.Errorf("%s: loaded %d, evidence %+v", what, lr.Loaded, ev)
		}
	}
	late := loaded
	late.Header.Epoch = 3
	d.handleSession(late)
	if lr.Loaded == 4 || len(fixture.Only[control.Evidence](d.says())) != 0 {
		t.Error("an acknowledgement of an earlier epoch counts")
	}
	d.handleSession(loaded)
	if got := fixture.Only[replica.NodeReport](d.says()); lr.Loaded != 4 || len(got) != 1 || got[0].Ranks[0].Loaded != 4 {
		t.Errorf("loaded %d, reported %+v", lr.Loaded, got)
	}
	end.quiet(lr.Peer) // not before Resume

	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Phase, j.Position = replica.Open, replica.Position{Epoch: 4, Step: 5} })
	d.reconcile(lj)
	if e, o := end.ordered(); e != 4 || o.Action != wire.OrderGo || o.Step != 5 || o.Generation != fixture.Gen(3, 5) {
		t.Errorf("ordered %+v of epoch %d, want to go", o, e)
	}
	if lr.Stopped() {
		t.Error("a rank that was let go counts as stopped")
	}
	d.reconcile(lj)
	d.handleSession(stopped) // its peers failed: it comes back under the open epoch
	d.reconcile(lj)
	end.quiet(lr.Peer)
	if !lr.Stopped() {
		t.Error("a rank that came back does not count as stopped")
	}
}

// While the job opens a rank that waits is told to initialise, once each time that it comes to wait.
func TestInitOrder(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase, j.Plan, j.Position, j.Committed = replica.Opening, nil, replica.Position{}, replica.Generation{}
	}))
	lr := d.attach(lj, 0)
	var end *rankEnd
	lr.Peer, end = d.session(0)
	d.order(lj)
	end.quiet(lr.Peer)
	d.fence(lj)
	if h, _ := end.reads(); h.Type != wire.MFence || h.Epoch != 2 {
		t.Errorf("reads %+v, want the fence of epoch 2", h)
	}
	lj.Job.Naming = []replica.GroupID{0, replica.NoGroup}
	d.handleSession(session.Stopped{Peer: lr.Peer})
	end.quiet(lr.Peer) // nothing is sealed before it is known which group's it is
	lj.Job.Naming = nil
	d.order(lj)
	if e, o := end.ordered(); e != 3 || o.Action != wire.OrderInit {
		t.Errorf("ordered %+v of epoch %d", o, e)
	}
	end.quiet(lr.Peer)
	lr.Initial = 3
	d.handleSession(session.Stopped{Peer: lr.Peer})
	end.quiet(lr.Peer)
	lr.Initial, lr.Ordered = 0, rank.OrderKey{}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.ClosedEpoch = 3 })
	d.order(lj)
	end.quiet(lr.Peer) // its epoch is closed: the next Begin mints another
}

// Only a rank that has loaded the generation's epoch and stands whole at it is asked to capture it, and only before a plan.
func TestCaptureOrder(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	lr := d.attach(lj, 0)
	var end *rankEnd
	lr.Peer, end = d.session(0)
	for what, change := range map[string]func(){
		"runs":                    func() { lr.Life = rank.Training },
		"elsewhere":               func() { d.live(lr, 3, 6, replica.Idle) },
		"good is behind":          func() { d.write(lr.Arena, atGood, uint64(replica.PackWord(3, 6, 0))) },
		"the epoch opened":        func() { lj.Job.Phase = replica.Open },
		"a plan is made":          func() { lj.Job.Phase = replica.Planned },
		"an heir":                 func() { lr.Loaded = 0 }, // whatever its arena says: it took the rank over since
		"loaded another":          func() { lr.Loaded = 2 },
		"its predecessor's words": func() { d.write(lr.Arena, atHolder, uint64(lr.Incarnation-1)) },
	} {
		lj.Job.Phase, lr.Life, lr.Loaded = replica.Closed, rank.Stopped, 3
		d.write(lr.Arena, atHolder, uint64(lr.Incarnation))
		d.live(lr, 3, 7, replica.Idle)
		change()
		d.leaderSays(control.CaptureOrder{Job: fixture.JobID, Generation: fixture.Gen(3, 7)})
		t.Log(what)
		end.quiet(lr.Peer)
	}
	lj.Job.Phase, lr.Life, lr.Loaded = replica.Closed, rank.Stopped, 3
	d.write(lr.Arena, atHolder, uint64(lr.Incarnation))
	d.live(lr, 3, 7, replica.Idle)
	d.leaderSays(control.CaptureOrder{Job: fixture.JobID, Generation: fixture.Gen(3, 7)})
	if e, o := end.ordered(); e != 3 || o.Action != wire.OrderCapture || o.Generation != fixture.Gen(3, 7) {
		t.Errorf("ordered %+v of epoch %d", o, e)
	}
}

// A place for a restore: a free one, else one that is neither C, T, pinned nor read; never one of those.
func TestStageMakesRoom(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	a := lr.Arena
	lj.Job = fixture.Changed(fixture.Closed(lj.Job), func(j *replica.Job) {
		j.Phase, j.Epoch, j.Plan = replica.Planned, 4, &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 6)}
	})
	for i, s := range []replica.Step{5, 4, 3} { // C, and two old ones
		d.seal(a, slot(i), fixture.Gen(3, s), uint64(s))
	}
	man := func(seed uint64) replica.Manifest { m, _ := manifestFor(a, slot(0), fixture.Gen(3, 6), seed); return m }
	place, s, err := lj.TakePlace(a, man(10))
	if err != nil || place != slot(3) {
		t.Fatalf("staged in %v, %v; want the free slot 3", place, err)
	}
	s.Abort()
	d.seal(a, slot(3), fixture.Gen(3, 6), 10)
	a.Hold(slot(2))
	place, s, err = lj.TakePlace(a, man(11))
	if err != nil || place != slot(1) {
		t.Fatalf("staged in %v, %v; want slot 1, the oldest that nobody reads", place, err)
	}
	if _, _, err := lj.TakePlace(a, man(12)); err == nil {
		t.Error("a place that is read, C, T or being staged gives way")
	}
	if got := states(a, shm.Slot); !slices.Equal(got, []replica.SlotState{replica.SlotSealed, replica.SlotCopying, replica.SlotSealed, replica.SlotSealed}) {
		t.Errorf("slots %v", got)
	}
	s.Abort()
}

// A report is sent when it changed, with a number that rises, and again over a new link.
func TestReportsAreNumbered(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	reports := func() []replica.NodeReport { return fixture.Only[replica.NodeReport](d.says()) }
	d.report(lj)
	first := reports()
	if len(first) != 1 || first[0].Holder != (replica.Holder{Node: "n1", Incarnation: 11}) || first[0].Session != 3 || len(first[0].Ranks) != 1 || first[0].Ranks[0].Incarnation != 4 || !first[0].Ranks[0].Alive || first[0].Ranks[0].Attached {
		t.Fatalf("reported %+v", first)
	}
	d.report(lj)
	if again := reports(); len(again) != 0 {
		t.Errorf("reported without a change: %+v", again)
	}
	d.seal(lr.Arena, slot(1), fixture.Gen(3, 6), 1)
	d.report(lj)
	second := reports()
	if len(second) != 1 || second[0].Seq <= first[0].Seq || len(second[0].Parts) != 1 {
		t.Errorf("after a change it reports %+v", second)
	}
	up := d.link
	d.handle(LinkUp{Link: up, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 10}})
	if third := reports(); len(third) != 1 || third[0].Seq <= second[0].Seq {
		t.Errorf("over a new link it reports %+v", third)
	}
	lr.Life = rank.Stopped
	d.live(lr, 3, 6, replica.Idle)
	d.report(lj)
	if got := reports(); len(got) != 1 || !got[0].Ranks[0].Whole || !got[0].Ranks[0].Stopped || !got[0].Settled {
		t.Errorf("of a rank that stands whole it reports %+v", got)
	}
	d.write(lr.Arena, atGood, uint64(replica.PackWord(3, 5, 0)))
	d.report(lj)
	if got := reports(); len(got) != 1 || got[0].Ranks[0].Whole {
		t.Errorf("of a rank whose device is behind it reports %+v", got)
	}
}

// What is awaited from the leader is asked again over a new link.
func TestRequestsAreSentAgain(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	d.put(fixture.Changed(opening(), func(j *replica.Job) { j.ID, j.Name = replica.JobID{9}, "opens" }))
	asks := &mute{id: 1001}
	d.handleSession(session.Hello{Peer: asks, Hello: wire.Hello{ABI: wire.RankABI, Rank: 1, World: 2, Nonce: 77, Job: "opens"}})
	d.handleSession(session.Attach{Peer: asks, Header: wire.RankHeader{Request: 2}, Regions: fixture.Geometry(t, false).Regions})
	d.handleSession(session.RunHello{Peer: &mute{id: 1002}, RunHello: wire.RunHello{World: 2, Job: "next"}})
	d.visitor(0).asks(3, wire.MKVGet, wire.KV{Key: "addr"})
	asked := d.asked()
	d.writesShard(lj, fixture.Gen(3, 5), replica.Digest{}) // and fails at once
	d.says()
	d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 10}})
	said := d.says()
	claims, creates, kvs, shards := fixture.Only[control.ClaimRequest](said), fixture.Only[control.CreateRequest](said), fixture.Only[control.KVRequest](said), fixture.Only[control.ShardReport](said)
	if len(claims) != 1 || claims[0].ID != 1 || claims[0].Claim.Nonce != 77 {
		t.Errorf("claims %+v: a claim sent twice must be the same claim", claims)
	}
	if len(creates) != 1 || creates[0].ID != 2 || creates[0].Name != "next" || len(creates[0].Layout.Groups) != 2 {
		t.Errorf("creates %+v", creates)
	}
	if len(kvs) != 1 || kvs[0].ID != asked.ID || kvs[0].Key != "addr" {
		t.Errorf("rendezvous %+v", kvs)
	}
	if len(shards) != 1 || shards[0].Part != replica.OfGroup(0) {
		t.Errorf("shards %+v", shards)
	}
	old := d.link
	d.connect()
	d.handle(LinkDown{Link: old}) // of a link that was replaced
	d.handle(FromLeader{old, control.Progress{Job: fixture.JobID, Index: 99, Position: replica.Position{Epoch: 3, Step: 9}}})
	if d.link == nil {
		t.Error("the end of an old link takes the new one away")
	}
	if lj.Job.Position.Step == 9 {
		t.Error("an old link's leader is believed")
	}
}

// A host that has ended takes nothing more, and nobody waits for it.
func TestHostEnds(t *testing.T) {
	m := New(Config{Daemon: &config.Config{StateDir: t.TempDir()}})
	close(m.ended)
	for range hostQueue + 1 {
		m.Post(asked{})
	}
	done := make(chan bool, 1)
	go func() { done <- m.ask(t.Context(), calls(func() { t.Error("run by a host that has ended") })) }()
	select {
	case ok := <-done:
		if ok {
			t.Error("done by a host that has ended")
		}
	case <-time.After(fixture.Patience):
		t.Fatal("waits for a host that has ended")
	}
}

// A node that reads of its own death goes on reporting: its word of before the fault counts no more.
func TestANodeThatIsTakenForDeadRepeatsItself(t *testing.T) {
	for node, want := range map[replica.NodeName]int{"n1": 1, "n2": 0} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.NodeDead, Node: node, NodeIncarnation: 11})
		}))
		d.report(lj)
		d.says()
		for range 2 {
			d.lastReport = time.Time{}
			d.tick()
			if got := fixture.Only[replica.NodeReport](d.says()); len(got) != want {
				t.Errorf("of a fault of %s: %d reports without a change, want %d", node, len(got), want)
			}
		}
	}
}
