package node

import (
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// restart is the member after its daemon's death: it knows nothing but the keeper and the disk.
func (d *desk) restart() {
	d.t.Helper()
	d.saveArenas()
	d.settled()
	for _, lj := range d.jobs {
		for _, lr := range lj.ranks {
			d.t.Cleanup(func() { lr.arena.Close() })
		}
	}
	d.init()
	d.servers.Go(func() { d.custody.run(d.ctx) })
	d.informed, d.orphans, d.awaited = false, nil, nil
	if err := d.adopt(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		for _, a := range d.orphans {
			a.Close()
		}
	})
}

// A daemon that starts again takes its arenas back from the keeper, and gives them to their jobs once the leader has told it.
func TestAdoption(t *testing.T) {
	d := newDesk(t)
	job := newJob()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	job.Mirrors = [][]replica.NodeName{{"n2"}, {"n2"}}
	lj := d.put(job)
	dead, lives := d.attach(lj, 0), d.attach(lj, 1)
	p := d.process()
	lives.pid, lives.start = p.pid, p.start
	lives.arena.SetOwner(5, uint64(p.pid), p.start)
	gone := d.process()
	gone.in.Close()
	gone.cmd.Wait() //nolint:errcheck // it ended with its input
	dead.arena.SetOwner(4, uint64(gone.pid), gone.start)
	older := d.arena(shm.Spec{Rank: 1, Geometry: testGeometry(t, false)}) // of a former incarnation of rank 1
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
	root := d.seal(dead.arena, slot(1), gen(3, 6), 1).Root
	d.setState(dead.arena, slot(1), replica.SlotCopied)
	d.seal(held, ring(0), gen(3, 5), 9)
	d.write(lives.arena, atGood, uint64(replica.PackWord(3, 6, 0)))

	d.restart()
	if len(d.orphans) != 4 || d.adopting() {
		t.Fatalf("%d arenas are taken back, adopting %v", len(d.orphans), d.adopting())
	}
	d.claimOrphans()
	if len(d.orphans) != 4 {
		t.Error("arenas are given away before the leader has told of any job")
	}
	for i, ref := range d.orphans { // the dead rank first: what its death sets off must find the others in place
		if ref.Spec().Rank == 0 && !ref.Spec().Mirror {
			d.orphans[0], d.orphans[i] = ref, d.orphans[0]
		}
	}
	d.leaderSays(view{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
	back := d.jobs[testJob]
	if back == nil || back.ranks[0] == nil || back.ranks[1] == nil || len(d.orphans) != 0 {
		t.Fatalf("after the view: %+v, %d orphans", back, len(d.orphans))
	}
	if back.ranks[0].alive || !back.ranks[1].alive || back.ranks[1].incarnation != 5 || back.ranks[1].loaded != 3 {
		t.Errorf("rank 0 alive %v, rank 1 alive %v, incarnation %d, loaded %d", back.ranks[0].alive, back.ranks[1].alive, back.ranks[1].incarnation, back.ranks[1].loaded)
	}
	if len(back.mirrors) != 1 || back.mirrors[replica.OfRank(0)] == nil {
		t.Errorf("mirrors %v", back.mirrors)
	}
	if account, word := d.fencedAt(back.ranks[1]); account != 2 || word != 2 {
		t.Errorf("the fence is at %d, its word at %d, though epoch 2 is closed", account, word)
	}
	said := d.says()
	for _, r := range only[replica.NodeReport](said) {
		if len(r.Ranks) != 2 || !r.Ranks[1].Alive || r.Ranks[1].Incarnation != 5 || r.Fenced != 2 {
			t.Errorf("half of the truth is reported: fenced %d, ranks %+v", r.Fenced, r.Ranks)
		}
	}
	ev := only[evidence](said)
	if len(ev) != 1 || ev[0].Fault.Kind != replica.ProcessDead || ev[0].Fault.Rank != 0 || ev[0].Fault.Incarnation != 4 {
		t.Errorf("of the rank that died meanwhile it says %+v", ev)
	}
	d.until("the seal in the dead rank's name", func() bool { return back.ranks[0].finishing == 0 })
	if _, ok := back.find(nil, replica.OfGroup(0), gen(3, 6), root); !ok {
		t.Error("what the dead rank had copied is lost")
	}
	if d.parked()["garbage"] {
		t.Error("garbage stays with the keeper")
	}
	// Its end is watched again.
	p.in.Close()
	d.until("the exit", func() bool { return !back.ranks[1].alive })
}

// Arenas of jobs that ended, or that nobody knows, are given up; but not before a leader was heard.
func TestOrphansOfNoJobAreGivenUp(t *testing.T) {
	for what, jobs := range map[string][]*replica.Job{"unknown": nil, "ended": {changed(newJob(), func(j *replica.Job) { j.Phase = replica.Ended })}} {
		d := newDesk(t)
		d.attach(d.put(newJob()), 0)
		d.restart()
		if len(d.orphans) != 1 {
			t.Fatalf("%d arenas are taken back", len(d.orphans))
		}
		d.leaderSays(view{Index: 20, Era: 1, Nodes: d.nodes, Jobs: jobs})
		if n := len(d.parked()); n != 0 || len(d.orphans) != 0 {
			t.Errorf("%s: %d arenas stay with the keeper, %d orphans", what, n, len(d.orphans))
		}
	}
}

// Until an arena that the keeper lost came back from its live rank, or that rank is gone, the node is adopting.
func TestAdoptionAwaitsLiveRanks(t *testing.T) {
	d := newDesk(t)
	lj := d.put(newJob())
	lr := d.attach(lj, 0)
	lost := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	p := d.process()
	lr.pid, lr.start = p.pid, p.start
	d.saveArenas()
	d.settled()
	for _, a := range []*arenaRef{lr.arena, lost} {
		if err := d.keeper.Drop(a.key); err != nil {
			t.Fatal(err)
		}
	}
	d.restart()
	if len(d.awaited) != 1 || d.awaited[0].PID != p.pid || !d.adopting() {
		t.Fatalf("awaits %+v", d.awaited)
	}
	if n := d.log.count("arena_lost"); n != 1 {
		t.Errorf("%d arenas are told as lost, want the mirror's", n)
	}
	p.in.Close()
	p.cmd.Wait() //nolint:errcheck // it ended with its input
	if d.adopting() || len(d.awaited) != 0 {
		t.Error("awaits the arena of a process that is gone")
	}
}

// A rank may write anything into its arena's page, another process's pid too. Whom its rank's end costs is the list's word; where
// the list is lost, nobody's, until the kernel says who attached again.
func TestPageDoesNotSayWhomToKill(t *testing.T) {
	for what, c := range map[string]struct{ listed, superseded bool }{"listed, superseded": {true, true}, "listed, ended": {true, false}, "list lost, superseded": {false, true}, "list lost, ended": {false, false}} {
		d := newDesk(t)
		job := newJob()
		lr := d.attach(d.put(job), 0)
		rank, victim := d.process(), d.process()
		lr.pid, lr.start = rank.pid, rank.start
		d.saveArenas()
		lr.arena.SetOwner(4, uint64(victim.pid), victim.start)
		if !c.listed {
			lr.unproven = true
		}
		d.restart()
		d.leaderSays(view{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
		lj := d.jobs[testJob]
		back := lj.ranks[0]
		want := victim
		if c.listed {
			want = rank
		}
		if back == nil || !back.alive || back.pid != want.pid || back.start != want.start || back.unproven == c.listed {
			t.Fatalf("%s: adopted as %+v, want process %d", what, back, want.pid)
		}
		if n := d.log.count(back.arena.key + `","why"`); n != 1 {
			t.Errorf("%s: the disagreement is told %d times", what, n)
		}
		if c.superseded {
			lj.job = changed(closed(job), func(j *replica.Job) {
				j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n3", NodeIncarnation: 33}, j.Ranks[1]}
			})
		} else {
			lj.job = changed(job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, jobFinished })
			lj.stopBy = time.Now().Add(-time.Second)
		}
		d.supersede(lj)
		d.reap(lj)
		if !session.Alive(victim.pid, victim.start) {
			t.Errorf("%s: a process that the page named was killed", what)
		}
		if c.listed {
			rank.cmd.Wait() //nolint:errcheck // killed
		} else if !session.Alive(rank.pid, rank.start) || back.killed {
			t.Errorf("%s: somebody was killed", what)
		}
		victim.in.Close() // its end is the rank's, as far as anybody can tell
		if !c.listed {
			d.until("the end of the process that is watched", func() bool { return !back.alive })
		}
	}
}

// A rank whose list entry was lost is known for good once its process has attached again, before or after its job was known.
func TestAttachedAgainIsProven(t *testing.T) {
	for what, informed := range map[string]bool{"after the leader was heard": true, "before": false} {
		d := newDesk(t)
		job := newJob()
		lr := d.attach(d.put(job), 0)
		p, r := d.session(0)
		lr.unproven = true // so that it isn't listed
		lr.arena.SetOwner(4, uint64(p.PID()), p.StartTime())
		d.restart()
		tell := func() {
			d.leaderSays(view{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
		}
		if informed {
			tell()
			if lr := d.jobs[testJob].ranks[0]; lr == nil || !lr.unproven {
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
		back := d.jobs[testJob].ranks[0]
		if back == nil || back.unproven || back.peer != p {
			t.Errorf("%s: then %+v", what, back)
		}
		list, err := d.loadArenas()
		if err != nil || len(list.Arenas) != 1 || list.Arenas[0].PID != p.PID() || list.Arenas[0].Start != p.StartTime() {
			t.Errorf("%s: the list has %+v, %v", what, list.Arenas, err)
		}
		back.pid, back.alive = -1, false // the cleanup of the test must not meet this process
	}
}

// What has not found its place yet stays on the list: a daemon that dies again before it has must not take it for lost, nor its
// rank for unknown.
func TestListKeepsWhatIsNotPlaced(t *testing.T) {
	d := newDesk(t)
	lj := d.put(newJob())
	orphan, awaited, p := d.attach(lj, 0), d.attach(lj, 1), d.process()
	d.arena(shm.Spec{Rank: 1, Geometry: testGeometry(t, false)}) // not listed
	d.mirrorOf(lj, replica.OfRank(1), 1, false)
	for _, lr := range []*localRank{orphan, awaited} {
		lr.pid, lr.start = p.pid, p.start
		lr.arena.SetOwner(4, uint64(p.pid), p.start)
	}
	d.settled()
	if err := d.keeper.Drop(awaited.arena.key); err != nil {
		t.Fatal(err)
	}
	d.restart()
	if len(d.orphans) != 3 || len(d.awaited) != 1 {
		t.Fatalf("%d orphans, %d awaited", len(d.orphans), len(d.awaited))
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
