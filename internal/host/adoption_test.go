package host

import (
	"github.com/replicad/replicad/internal/host/rank"
	"os"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// restart is the host after its daemon's death: it knows nothing but the keeper and the disk.
func (d *rig) restart() {
	d.t.Helper()
	d.saveArenas()
	d.settled()
	for _, lj := range d.jobs.all {
		for _, lr := range lj.Ranks {
			d.t.Cleanup(func() { lr.Arena.Close() })
		}
	}
	next := New(d.config)
	next.ctx, next.era, next.link, next.leader, next.term = d.ctx, d.era, d.link, d.leader, d.term
	next.hands.Create, next.hands.Reuse = d.hands.Create, d.hands.Reuse
	d.Host = next
	d.keeps()
	if err := d.Adopt(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		for _, a := range d.adoption.Arenas() {
			a.Close()
		}
	})
}

// adopting tells whether the host still awaits an arena, as a node asks it.
func (d *rig) adopting() bool {
	var q adoptionState
	q.serve(d.Host)
	return q.waiting
}

// A daemon that starts again takes its arenas back from the keeper, and gives them to their jobs once the leader has told it.
func TestAdoption(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	job.Mirrors = [][]replica.NodeName{{"n2"}, {"n2"}}
	lj := d.put(job)
	dead, lives := d.attach(lj, 0), d.attach(lj, 1)
	p := d.process()
	lives.PID, lives.Start = p.pid, p.start
	lives.Arena.SetOwner(5, uint64(p.pid), p.start)
	gone := d.process()
	gone.in.Close()
	gone.cmd.Wait() //nolint:errcheck // it ended with its input
	dead.Arena.SetOwner(4, uint64(gone.pid), gone.start)
	older := d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false)}) // of a former incarnation of rank 1
	older.SetOwner(2, 0, 0)
	held := d.mirrorOf(lj, replica.OfRank(0), 0, false)
	garbage, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.keeper.Put("garbage", garbage); err != nil {
		t.Fatal(err)
	}
	garbage.Close()
	d.live(dead, 3, 6, replica.Updating)
	root := d.seal(dead.Arena, slot(1), fixture.Gen(3, 6), 1).Root
	d.setState(dead.Arena, slot(1), replica.SlotCopied)
	d.seal(held, ring(0), fixture.Gen(3, 5), 9)
	d.write(lives.Arena, atGood, uint64(replica.PackWord(3, 6, 0)))

	d.restart()
	if n := len(d.adoption.Arenas()); n != 4 || d.adopting() {
		t.Fatalf("%d arenas are taken back, adopting %v", n, d.adopting())
	}
	d.notify(d.adoption, act.Changed{})
	if len(d.adoption.Arenas()) != 4 {
		t.Error("arenas are given away before the leader has told of any job")
	}
	d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
	back := d.jobs.all[fixture.JobID]
	if back == nil || back.Ranks[0] == nil || back.Ranks[1] == nil || len(d.adoption.Arenas()) != 0 {
		t.Fatalf("after the view: %+v, %d arenas without a place", back, len(d.adoption.Arenas()))
	}
	if back.Ranks[0].Alive() || !back.Ranks[1].Alive() || back.Ranks[1].Incarnation != 5 || back.Ranks[1].Loaded != 3 {
		t.Errorf("rank 0 alive %v, rank 1 alive %v, incarnation %d, loaded %d", back.Ranks[0].Alive(), back.Ranks[1].Alive(), back.Ranks[1].Incarnation, back.Ranks[1].Loaded)
	}
	if len(back.Mirrors.All()) != 1 || back.Mirrors.Arena(replica.OfRank(0)) == nil {
		t.Errorf("mirrors %v", back.Mirrors.All())
	}
	if account, word := d.fencedAt(back.Ranks[1]); account != 2 || word != 2 {
		t.Errorf("the fence is at %d, its word at %d, though epoch 2 is closed", account, word)
	}
	said := d.says()
	for _, r := range fixture.Only[replica.NodeReport](said) {
		if len(r.Ranks) != 2 || !r.Ranks[1].Alive || r.Ranks[1].Incarnation != 5 || r.Fenced != 2 {
			t.Errorf("half of the truth is reported: fenced %d, ranks %+v", r.Fenced, r.Ranks)
		}
	}
	ev := fixture.Only[control.Evidence](said)
	if len(ev) != 1 || ev[0].Fault.Kind != replica.ProcessDead || ev[0].Fault.Rank != 0 || ev[0].Fault.Incarnation != 4 {
		t.Errorf("of the rank that died meanwhile it says %+v", ev)
	}
	d.until("the seal in the dead rank's name", func() bool { return back.Ranks[0].Finishing == 0 })
	if _, ok := back.View().Find(nil, replica.OfGroup(0), fixture.Gen(3, 6), root); !ok {
		t.Error("what the dead rank had copied is lost")
	}
	if d.parked()["garbage"] {
		t.Error("garbage stays with the keeper")
	}
	// Its end is watched again.
	p.in.Close()
	d.until("the exit", func() bool { return !back.Ranks[1].Alive() })
}

// Arenas of jobs that ended, or that nobody knows, are given up; but not before a leader was heard.
func TestOrphansOfNoJobAreGivenUp(t *testing.T) {
	for what, jobs := range map[string][]*replica.Job{"unknown": nil, "ended": {fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = replica.Ended })}} {
		d := newRig(t)
		d.attach(d.put(fixture.Job()), 0)
		d.restart()
		if n := len(d.adoption.Arenas()); n != 1 {
			t.Fatalf("%d arenas are taken back", n)
		}
		d.views(control.View{Index: 20, Era: 1, Nodes: d.nodes, Jobs: jobs})
		if kept, waiting := len(d.parked()), len(d.adoption.Arenas()); kept != 0 || waiting != 0 {
			t.Errorf("%s: %d arenas stay with the keeper, %d in the room", what, kept, waiting)
		}
	}
}

// Until an arena that the keeper lost came back from its live rank, or that rank is gone, the node is adopting.
func TestAdoptionAwaitsLiveRanks(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lost := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	d.saveArenas()
	d.settled()
	for _, a := range []*holding.Arena{lr.Arena, lost} {
		if err := d.keeper.Drop(a.Key()); err != nil {
			t.Fatal(err)
		}
	}
	d.restart()
	if list := d.adoption.Awaited(); len(list) != 1 || list[0].PID != p.pid || !d.adopting() {
		t.Fatalf("awaits %+v", list)
	}
	if n := d.log.Count("arena_lost"); n != 1 {
		t.Errorf("%d arenas are told as lost, want the mirror's", n)
	}
	p.in.Close()
	p.cmd.Wait() //nolint:errcheck // it ended with its input
	if d.adopting() {
		t.Error("awaits the arena of a process that is gone")
	}
}

// A process that is stopped never brings the arena that it alone has. Its node waits for it as long as for any rank that stands still.
func TestAdoptionEndsBesideAStoppedProcess(t *testing.T) {
	d := newRig(t)
	lr := d.attach(d.put(fixture.Job()), 0)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	d.saveArenas()
	d.settled()
	if err := d.keeper.Drop(lr.Arena.Key()); err != nil {
		t.Fatal(err)
	}
	d.restart()
	if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if !d.adopting() {
		t.Fatal("a process that is stopped is not waited for")
	}
	d.turn(d.adoption, time.Now().Add(d.cfg.Timing.HangFirst))
	if d.adopting() || d.log.Count("arena_lost") != 1 {
		t.Errorf("adopting still, or %d arenas are told as lost", d.log.Count("arena_lost"))
	}
	p.cmd.Wait() //nolint:errcheck // killed
}

// A rank may write anything into its arena's page, another process's pid too. Whom its rank's end costs is the list's word; where
// the list is lost, nobody's, until the kernel says who attached again.
func TestPageDoesNotSayWhomToKill(t *testing.T) {
	for what, c := range map[string]struct{ listed, superseded bool }{"listed, superseded": {true, true}, "listed, ended": {true, false}, "list lost, superseded": {false, true}, "list lost, ended": {false, false}} {
		d := newRig(t)
		job := fixture.Job()
		lr := d.attach(d.put(job), 0)
		rank, victim := d.process(), d.process()
		lr.PID, lr.Start = rank.pid, rank.start
		d.saveArenas()
		lr.Arena.SetOwner(4, uint64(victim.pid), victim.start)
		if !c.listed {
			lr.Unproven = true
		}
		d.restart()
		d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
		lj := d.jobs.all[fixture.JobID]
		back := lj.Ranks[0]
		want := victim
		if c.listed {
			want = rank
		}
		if back == nil || !back.Alive() || back.PID != want.pid || back.Start != want.start || back.Unproven == c.listed {
			t.Fatalf("%s: adopted as %+v, want process %d", what, back, want.pid)
		}
		if n := d.log.Count(back.Arena.Key() + `","why"`); n != 1 {
			t.Errorf("%s: the disagreement is told %d times", what, n)
		}
		if c.superseded {
			lj.Job = fixture.Changed(fixture.Closed(job), func(j *replica.Job) {
				j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n3", NodeIncarnation: 33}, j.Ranks[1]}
			})
		} else {
			lj.Job = fixture.Changed(job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, recovery.Finished })
			lj.StopBy = time.Now().Add(-time.Second)
		}
		d.supersede(lj)
		d.reap(lj)
		if !session.Alive(victim.pid, victim.start) {
			t.Errorf("%s: a process that the page named was killed", what)
		}
		if c.listed {
			rank.cmd.Wait() //nolint:errcheck // killed
		} else if !session.Alive(rank.pid, rank.start) || back.Killed {
			t.Errorf("%s: somebody was killed", what)
		}
		victim.in.Close() // its end is the rank's, as far as anybody can tell
		if !c.listed {
			d.until("the end of the process that is watched", func() bool { return !back.Alive() })
		}
	}
}

// A rank whose list entry was lost is known for good once its process has attached again, before or after its job was known.
func TestAttachedAgainIsProven(t *testing.T) {
	for what, informed := range map[string]bool{"after the leader was heard": true, "before": false} {
		d := newRig(t)
		job := fixture.Job()
		lr := d.attach(d.put(job), 0)
		p, r := d.session(0)
		lr.Unproven = true // so that it isn't listed
		lr.Arena.SetOwner(4, uint64(p.PID()), p.StartTime())
		d.restart()
		tell := func() {
			d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
		}
		if informed {
			tell()
			if lr := d.jobs.all[fixture.JobID].Ranks[0]; lr == nil || !lr.Unproven {
				t.Fatalf("%s: taken back as %+v", what, lr)
			}
		}
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 8}, Hello: wire.Hello{Rank: 0, Job: "job"}, File: f})
		if h, _ := r.reads(); h.Type != wire.MAttached {
			t.Errorf("%s: answered by message %d", what, h.Type)
		}
		if !informed {
			tell()
		}
		back := d.jobs.all[fixture.JobID].Ranks[0]
		if back == nil || back.Unproven || back.Peer != p {
			t.Errorf("%s: then %+v", what, back)
		}
		list, err := d.loadArenas()
		if err != nil || len(list.Arenas) != 1 || list.Arenas[0].PID != p.PID() || list.Arenas[0].Start != p.StartTime() {
			t.Errorf("%s: the list has %+v, %v", what, list.Arenas, err)
		}
		back.PID, back.Life = -1, rank.Dead // the cleanup of the test must not meet this process
	}
}

// What has not found its place yet stays on the list: a daemon that dies again before it has must not take it for lost, nor its
// rank for unknown.
func TestListKeepsWhatIsNotPlaced(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	orphan, awaited, p := d.attach(lj, 0), d.attach(lj, 1), d.process()
	d.arena(shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false)}) // not listed
	d.mirrorOf(lj, replica.OfRank(1), 1, false)
	for _, lr := range []*rank.Rank{orphan, awaited} {
		lr.PID, lr.Start = p.pid, p.start
		lr.Arena.SetOwner(4, uint64(p.pid), p.start)
	}
	d.settled()
	if err := d.keeper.Drop(awaited.Arena.Key()); err != nil {
		t.Fatal(err)
	}
	d.restart()
	if kept, awaited := len(d.adoption.Arenas()), len(d.adoption.Awaited()); kept != 3 || awaited != 1 {
		t.Fatalf("%d arenas are taken back, %d awaited", kept, awaited)
	}
	before, err := d.loadArenas()
	if err != nil || len(before.Arenas) != 3 {
		t.Fatalf("the list is %+v, %v", before, err)
	}
	d.saveArenas()
	if after, err := d.loadArenas(); err != nil || !reflect.DeepEqual(after, before) {
		t.Errorf("of %+v the list keeps %+v, %v", before, after, err)
	}
}

// What was committed, or where the job went back to, while a daemon was away is told to the ranks that live: who waits for that commit would wait until the
// next one, and who is to commit a step again would take the older commit for it.
func TestAdoptedRankHearsOfTheCommit(t *testing.T) {
	for what, c := range map[string]struct {
		before, now replica.Position
	}{
		"committed meanwhile": {replica.Position{Epoch: 3, Step: 5}, replica.Position{Epoch: 3, Step: 6}},
		"went back meanwhile": {replica.Position{Epoch: 3, Step: 9}, replica.Position{Epoch: 4, Step: 6}},
	} {
		d := newRig(t)
		job := fixture.Job()
		d.comeBack(job, func(lr *rank.Rank) { lr.Arena.SetCommitted(c.before) })
		d.tell(fixture.Changed(job, func(j *replica.Job) {
			j.Epoch, j.Position, j.Committed = c.now.Epoch, c.now, fixture.Gen(c.now.Epoch, c.now.Step)
		}))
		if got, want := d.jobs.all[fixture.JobID].Ranks[0].Arena.Committed(), replica.PackWord(c.now.Epoch, c.now.Step, 0); got != want {
			t.Errorf("%s: the rank is told that %v is committed, want %v", what, got, want)
		}
	}
}

// comeBack is a daemon that starts again under a rank that attaches again at once, before any leader was heard.
func (d *rig) comeBack(job *replica.Job, before func(*rank.Rank)) (session.Peer, *rankEnd) {
	d.t.Helper()
	lr := d.attach(d.put(job), 0)
	p, r := d.session(0)
	lr.PID, lr.Start = p.PID(), p.StartTime()
	lr.Arena.SetOwner(4, uint64(p.PID()), p.StartTime())
	before(lr)
	d.restart()
	d.t.Cleanup(func() {
		if lr := d.jobs.all[job.ID].Ranks[0]; lr != nil {
			lr.PID, lr.Life = -1, rank.Dead // the cleanup of the test must not meet this process
		}
	})
	f, err := os.Open(os.DevNull)
	if err != nil {
		d.t.Fatal(err)
	}
	d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 8}, Hello: wire.Hello{Rank: 0, Job: "job", Nonce: 5}, File: f})
	if h, _ := r.reads(); h.Type != wire.MAttached {
		d.t.Fatalf("answered by message %d", h.Type)
	}
	return p, r
}

func (d *rig) tell(job *replica.Job) {
	d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
}

// What a rank says between its daemon's restart and the first word of a leader was dropped, and the rank waited for an answer until
// its own deadline. It counts once the job is known.
// Case "unloadable": a failed load counted as a process that died, so a job ended for a generation that no process could load.
func TestOrphanIsHeard(t *testing.T) {
	planned := func() *replica.Job {
		return fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Phase, j.Epoch = replica.Planned, 4
			j.Plan = &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5), Sources: []replica.Source{{Part: replica.OfGroup(0), Root: replica.Digest{1}}, {Part: replica.OfRank(0), Root: replica.Digest{2}}}}
		})
	}
	head := wire.RankHeader{Request: 77, Epoch: 3}
	for what, c := range map[string]struct {
		job  *replica.Job
		says func(p session.Peer) []session.Event
		then func(d *rig, lr *rank.Rank, said []any) bool
	}{
		"stopped": {fixture.Closed(fixture.Job()), func(p session.Peer) []session.Event { return []session.Event{session.Stopped{Peer: p, Header: head}} },
			func(d *rig, lr *rank.Rank, said []any) bool {
				rs := fixture.Only[replica.NodeReport](said)
				return lr.Stopped() && len(rs) > 0 && rs[len(rs)-1].Ranks[0].Stopped
			}},
		"stopped under an open epoch": {fixture.Job(), func(p session.Peer) []session.Event { return []session.Event{session.Stopped{Peer: p, Header: head}} },
			func(d *rig, lr *rank.Rank, said []any) bool { return lr.Stopped() && lr.Loaded == 3 }},
		"loaded": {planned(), func(p session.Peer) []session.Event {
			h := head
			h.Epoch = 4
			return []session.Event{session.Stopped{Peer: p, Header: h}, session.Loaded{Peer: p, Header: h, Loaded: wire.Loaded{Generation: fixture.Gen(3, 5), ReplicatedRoot: replica.Digest{1}, PrivateRoot: replica.Digest{2}}}}
		}, func(d *rig, lr *rank.Rank, said []any) bool { return lr.Loaded == 4 }},
		"fail": {fixture.Job(), func(p session.Peer) []session.Event {
			return []session.Event{session.Fail{Peer: p, Header: head, Text: "a NaN"}}
		},
			func(d *rig, lr *rank.Rank, said []any) bool {
				ev := fixture.Only[control.Evidence](said)
				return len(ev) == 1 && ev[0].Fault.Kind == replica.Exception && ev[0].Fault.Detail == "a NaN" && ev[0].Fault.Incarnation == 4
			}},
		"unloadable": {planned(), func(p session.Peer) []session.Event {
			return []session.Event{session.Unloadable{Peer: p, Header: head, Text: "frozen area: its root is not the plan's"}}
		},
			func(d *rig, lr *rank.Rank, said []any) bool {
				ev := fixture.Only[control.Evidence](said)
				return len(ev) == 1 && ev[0].Fault.Kind == replica.BadDigest && ev[0].Fault.Detail == "load: frozen area: its root is not the plan's" && ev[0].Fault.Incarnation == 4
			}},
		"reject": {planned(), func(p session.Peer) []session.Event {
			return []session.Event{session.Reject{Peer: p, Header: head, Text: "bad"}}
		},
			func(d *rig, lr *rank.Rank, said []any) bool {
				r := fixture.Only[control.Rejected](said)
				return lr.Rejected == 3 && len(r) == 1 && r[0].Rank == 0
			}},
		"leave": {fixture.Job(), func(p session.Peer) []session.Event { return []session.Event{session.Leave{Peer: p, Header: head}} },
			func(d *rig, lr *rank.Rank, said []any) bool { return lr.Left() && lr.LeaveTo == 77 }},
		"stopped, left": {fixture.Job(), func(p session.Peer) []session.Event {
			return []session.Event{session.Leave{Peer: p, Header: head}, session.Stopped{Peer: p, Header: head}, session.Leave{Peer: p, Header: head}}
		}, func(d *rig, lr *rank.Rank, said []any) bool { return lr.Left() }},
		"pause": {fixture.Job(), func(p session.Peer) []session.Event {
			return []session.Event{session.Pause{Peer: p, Header: head, Most: time.Hour}}
		},
			func(d *rig, lr *rank.Rank, said []any) bool {
				return !reflect.DeepEqual(lr.Pulse, recovery.Pulse{})
			}},
		"sealed": {fixture.Job(), func(p session.Peer) []session.Event {
			return []session.Event{session.Sealed{Peer: p, Header: head, Sealed: wire.Sealed{Kind: uint32(shm.Slot), Index: 1}}}
		}, func(d *rig, lr *rank.Rank, said []any) bool { _, ok := lr.SealedAt[fixture.Gen(3, 6)]; return ok }},
	} {
		d := newRig(t)
		p, _ := d.comeBack(c.job, func(lr *rank.Rank) {
			d.seal(lr.Arena, slot(1), fixture.Gen(3, 6), 1)
			if c.job.Phase == replica.Open {
				d.write(lr.Arena, atGood, uint64(replica.PackWord(3, 6, 0)))
			}
		})
		for _, ev := range c.says(p) {
			d.handleSession(ev)
		}
		d.says()
		d.tell(c.job)
		if lr := d.jobs.all[fixture.JobID].Ranks[0]; lr == nil || !c.then(d, lr, d.says()) {
			t.Errorf("%s: lost: %+v", what, lr)
		}
	}
}

// A rendezvous call of such a rank waits for the job to be known; a rank whose job has ended, or is not known at all, is told to stop.
func TestOrphanWaitsAndIsTold(t *testing.T) {
	d := newRig(t)
	p, r := d.comeBack(fixture.Job(), func(*rank.Rank) {})
	d.handleSession(session.KV{Peer: p, Header: wire.RankHeader{Request: 9, Epoch: 3}, Op: wire.MBarrier, KV: wire.KV{Key: "step 6", Members: 2}})
	r.quiet(p)
	d.tell(fixture.Job())
	if asked := fixture.Only[control.KVRequest](d.says()); len(asked) != 1 || asked[0].Key != "step 6" || asked[0].Rank != 0 || asked[0].Nonce != 5 {
		t.Errorf("the leader is asked %+v", asked)
	}

	d = newRig(t)
	p, r = d.comeBack(fixture.Job(), func(*rank.Rank) {})
	d.handleSession(session.Leave{Peer: p, Header: wire.RankHeader{Request: 77}})
	d.tell(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, recovery.Finished }))
	if h, _ := r.reads(); h.Type != wire.MBye || h.Request != 77 {
		t.Errorf("who left reads %+v, want BYE", h)
	}

	d = newRig(t)
	_, r = d.comeBack(fixture.Job(), func(*rank.Rank) {})
	d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes})
	if _, o := r.ordered(); o.Action != wire.OrderStop || o.Code != wire.CodeStopped {
		t.Errorf("a rank of no job reads %+v, want to be stopped", o)
	}
	d.put(fixture.Job())
}

// The daemon dies after it has named a process the owner of its predecessor's arena, and before that process got it. The process says hello
// again: it is given the arena, with nobody's words in it.
func TestArenaIsHandedOutByTheNextDaemon(t *testing.T) {
	d := newRig(t)
	job := fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	})
	lj := d.put(job)
	old := d.attach(lj, 0)
	old.Incarnation = 4
	old.Arena.SetOwner(4, 0, 0)
	d.write(old.Arena, atHolder, 4)
	d.live(old, 3, 6, replica.Idle)
	d.both(old.Arena, 0, fixture.Gen(3, 5))
	gone := d.process()
	gone.in.Close()
	gone.cmd.Wait() //nolint:errcheck // it ended with its input
	old.PID, old.Start, old.Life = gone.pid, gone.start, rank.Dead
	old.Arena.Process = holding.Process{PID: gone.pid, Start: gone.start, Proven: true}
	p, r := d.session(0)
	h := wire.Hello{ABI: wire.RankABI, Rank: 0, World: 2, Group: 0, Nonce: 77, Job: job.Name}
	d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 1}, Hello: h})
	r.reads() // the welcome
	d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: old.Arena.Geometry().Regions})
	claims := fixture.Only[control.ClaimRequest](d.says())
	if len(claims) != 1 {
		t.Fatalf("%d claims", len(claims))
	}
	job = fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) { j.Ranks[0].Incarnation, j.NextIncarnation = 6, 6 })
	lj.Job = job
	d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 6})
	came(t, "the parking", d.in) // the daemon dies here
	d.restart()
	d.tell(job)
	lr := d.jobs.all[job.ID].Ranks[0]
	if lr == nil || lr.Incarnation != 6 || lr.Loaded != 0 || lr.Arena.Step() != 0 {
		t.Fatalf("adopted as %+v, at %v", lr, lr.Arena.Step())
	}
	t.Cleanup(func() { lr.PID, lr.Life = -1, rank.Dead }) // it is this process
	d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 1}, Hello: h})
	if head, _ := r.reads(); head.Type != wire.MWelcome {
		t.Fatalf("the hello is answered by %d", head.Type)
	}
	d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: old.Arena.Geometry().Regions})
	if head, body := r.reads(); head.Type != wire.MAttached || lr.Peer != p {
		t.Errorf("the attach is answered by %d: %s", head.Type, body)
	}
}

// While a plan is carried out good may be of the initial state that a rank sealed, or of a load that it is about to reject: a daemon that
// adopts its arena then has not heard that it has loaded.
func TestAdoptedWhilePlannedHasNotLoaded(t *testing.T) {
	for phase, want := range map[replica.JobPhase]replica.Epoch{replica.Planned: 0, replica.Open: 3, replica.Closed: 3} {
		d := newRig(t)
		job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
			if j.Phase = phase; phase == replica.Closed {
				j.ClosedEpoch, j.Plan = j.Epoch, nil
			}
		})
		d.comeBack(job, func(lr *rank.Rank) { d.write(lr.Arena, atGood, uint64(replica.PackWord(3, 0, 0))) })
		d.tell(job)
		if lr := d.jobs.all[fixture.JobID].Ranks[0]; lr == nil || lr.Loaded != want {
			t.Errorf("%v: %+v, want loaded %d", phase, lr, want)
		}
	}
}
