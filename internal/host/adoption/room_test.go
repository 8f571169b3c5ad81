package adoption

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const hangFirst = 30 * time.Second

// boot is the life of the host that the tests are in.
var boot = replica.BootID{1}

// process is one that the kernel of these tests knows.
type process struct{ halted bool }

// node is n1 of fixture.Job after its daemon was started again, and a transcript of what its room wants. Each arena has a name.
type node struct {
	t         *testing.T
	room      *Room
	view      room.JobView // Job nil: the node does not know it
	informed  bool
	processes map[int]*process
	names     map[*holding.Arena]string
	now       time.Time
	log       []string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, processes: map[int]*process{}, names: map[*holding.Arena]string{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	n.room = New(n, n, boot, hangFirst)
	return n
}

func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view, n.view.Job != nil }
func (n *node) Informed() bool                         { return n.informed }
func (n *node) Alive(pid int, start uint64) bool {
	return n.processes[pid] != nil && start == uint64(pid)
}
func (n *node) Halted(pid int, _ uint64) bool      { return n.processes[pid].halted }
func (n *node) Failed(what, _, why string)         { n.log = append(n.log, what+": "+why) }
func (n *node) Note2(_ *replica.Job, _, as string) { n.log = append(n.log, as) }

// peer is the session of a process.
type peer struct {
	pid   int
	start uint64
}

func (p *peer) ID() uint64                                     { return uint64(p.pid) }
func (p *peer) PID() int                                       { return p.pid }
func (p *peer) StartTime() uint64                              { return p.start }
func (*peer) UID() int                                         { return 0 }
func (*peer) Send(wire.RankHeader, []byte) error               { return nil }
func (*peer) SendFile(wire.RankHeader, []byte, *os.File) error { return nil }
func (*peer) Refuse(req uint32, code int32, text string)       {}
func (*peer) Close()                                           {}
func (n *node) starts(pid int) *peer                           { n.processes[pid] = &process{}; return &peer{pid, uint64(pid)} }
func (n *node) named(name string, a *holding.Arena)            { n.names[a] = name }
func (n *node) entry(a *holding.Arena, pid int) holding.Entry {
	return entry(a.Key(), a.Spec().Rank, pid)
}
func (n *node) keeps(list []holding.Entry, of ...*holding.Arena) { n.room.Learn(n.now, Kept{of, list}) }

func entry(key string, rank replica.Rank, pid int) holding.Entry {
	return holding.Entry{Key: key, Job: fixture.JobID, Rank: rank, PID: pid, Start: uint64(pid), Boot: boot}
}

// arena of a rank, that an incarnation of it had in a process.
func (n *node) arena(name string, rank replica.Rank, inc replica.Incarnation, pid int) *holding.Arena {
	a := roomtest.Arena(n.t, shm.Spec{Rank: rank, Geometry: fixture.Geometry(n.t, false)})
	a.SetOwner(inc, uint64(pid), uint64(pid))
	n.named(name, a)
	return a
}

func (n *node) mirror(name string, rank replica.Rank) *holding.Arena {
	a := roomtest.Arena(n.t, shm.Spec{Rank: rank, Geometry: fixture.Geometry(n.t, false), Mirror: true})
	n.named(name, a)
	return a
}

// tells the node of the job, as a leader does; nil: there is none.
func (n *node) tells(job *replica.Job) {
	n.informed, n.view.Job = true, job
	n.room.Learn(n.now, act.Changed{})
}

func ended(why string) *replica.Job {
	return fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, why })
}

// wants what the room asks for some time later, in words.
func (n *node) wants(after time.Duration, want ...string) {
	n.t.Helper()
	n.now = n.now.Add(after)
	if got := n.words(n.room.Step(n.now)); !slices.Equal(got, want) {
		n.t.Fatalf("after %v: %q, want %q", after, got, want)
	}
}

func (n *node) words(effects []act.Effect) (words []string) {
	for _, e := range effects {
		switch e := e.(type) {
		case Place:
			of := fmt.Sprintf("place %s as rank %d, incarnation %d", n.names[e.Arena], e.Rank, e.Incarnation)
			if e.Peer != nil {
				of += ", attached"
			}
			if e.Finished {
				of += ", finished"
			}
			words = append(words, of)
		case act.Retire:
			words = append(words, "retire "+n.names[e.Arena])
		case Mirror:
			words = append(words, fmt.Sprintf("mirror %v in %s", e.Part, n.names[e.Arena]))
		case GiveUp:
			if words = append(words, "give up "+n.names[e.Arena]); e.Peer != nil {
				words = append(words, fmt.Sprintf("stop process %d", e.Peer.PID()))
			}
		case Placed:
			words = append(words, "placed")
		case Settle:
			var sent []string
			for _, ev := range e.Sent {
				sent = append(sent, strings.TrimPrefix(fmt.Sprintf("%T", ev), "session."))
			}
			words = append(words, fmt.Sprintf("settle rank %d %v", e.Rank, sent))
		case act.Kill:
			words = append(words, fmt.Sprintf("kill %d", e.PID))
		}
	}
	return words
}

// logs what was logged since.
func (n *node) logs(want ...string) {
	n.t.Helper()
	if len(n.log) != len(want) {
		n.t.Fatalf("logged %q, want %q", n.log, want)
	}
	for i, w := range want {
		if !strings.Contains(n.log[i], w) {
			n.t.Errorf("logged %q, want %q", n.log[i], w)
		}
	}
	n.log = nil
}

// Nothing is given away before a leader was heard. Then each arena has its place before any death is looked at.
func TestArenasWaitForTheirJob(t *testing.T) {
	n := newNode(t)
	n.starts(101)
	dead, lives, held := n.arena("dead", 0, 4, 100), n.arena("lives", 1, 5, 101), n.mirror("held", 1)
	n.keeps([]holding.Entry{n.entry(dead, 100), n.entry(lives, 101), n.entry(held, 0)}, dead, lives, held)
	n.room.Learn(n.now, act.Changed{})
	n.wants(0)
	n.informed = true // and its jobs are being taken over
	n.wants(0)
	if n := len(n.room.Arenas()); n != 3 {
		t.Errorf("%d arenas wait", n)
	}
	n.tells(fixture.Job())
	n.wants(0, "mirror private 1 in held", "place dead as rank 0, incarnation 4", "place lives as rank 1, incarnation 5", "placed", "settle rank 0 []", "settle rank 1 []")
	n.wants(0)
	if n := len(n.room.Arenas()); n != 0 {
		t.Errorf("%d arenas wait still", n)
	}
	n.logs()
}

// Of two arenas of one process the one that a growth has brought has the place, and the session.
func TestTheGrownArenaHasThePlace(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		n := newNode(t)
		before := n.arena("before", 0, 4, 100)
		grown := holding.New(before.Arena, holding.GrownKey(fixture.JobID, 0, 4, 9), func(*shm.Arena) {})
		n.named("grown", grown)
		if grown.Grown() != 9 || before.Grown() != 0 {
			t.Fatal(grown.Grown(), before.Grown())
		}
		arenas := []*holding.Arena{before, grown}
		n.keeps(nil, arenas[order[0]], arenas[order[1]])
		n.tells(fixture.Job())
		n.wants(0, "retire before", "place grown as rank 0, incarnation 4", "placed", "settle rank 0 []")
	}
}

// Whatever the order in which arenas of a rank come back, and whatever has its place already: the newest incarnation has it, and each other arena is a
// holder, once.
func TestTheNewestIncarnationHasThePlace(t *testing.T) {
	incs := []replica.Incarnation{2, 4, 6}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for _, there := range []replica.Incarnation{0, 3, 6, 7} { // in its place already; 0: none
			n := newNode(t)
			var back []*holding.Arena
			for _, i := range order {
				back = append(back, n.arena(fmt.Sprint(incs[i]), 0, incs[i], 100))
			}
			want := []string{"retire 2", "retire 4"}
			if there != 0 {
				n.view.Ranks = []room.Rank{{Rank: 0, Incarnation: there, Arena: n.arena("there", 0, there, 100), Alive: true}}
			}
			switch {
			case there >= 6:
				want = append(want, "retire 6", "placed")
			case there != 0:
				want = append(want, "retire there", "place 6 as rank 0, incarnation 6", "placed", "settle rank 0 []")
			default:
				want = append(want, "place 6 as rank 0, incarnation 6", "placed", "settle rank 0 []")
			}
			n.keeps(nil, back...)
			n.tells(fixture.Job())
			got := n.words(n.room.Step(n.now))
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("in order %v, where %d is there: %q, want %q", order, there, got, want)
			}
		}
	}
}

// A job that nobody knows, or that has ended, needs no arena. A rank that lives has its place in a job that has ended: it is told of the end there.
func TestArenasThatNobodyNeeds(t *testing.T) {
	for _, c := range []struct {
		job  *replica.Job
		want []string
	}{
		{nil, []string{"give up dead", "give up lives", "stop process 101", "give up held"}},
		{ended("given up"), []string{"place lives as rank 1, incarnation 5, attached", "give up dead", "give up held", "placed", "settle rank 1 []"}},
		{ended(recovery.Finished), []string{"place lives as rank 1, incarnation 5, attached, finished", "give up dead", "give up held", "placed", "settle rank 1 []"}},
	} {
		n := newNode(t)
		p := n.starts(101)
		dead, lives := n.arena("dead", 0, 4, 100), n.arena("lives", 1, 5, 101)
		n.keeps([]holding.Entry{n.entry(dead, 100), n.entry(lives, 101)}, dead, lives, n.mirror("held", 1))
		if _, ok := n.room.Back(p, 1); !ok {
			t.Fatal("a live rank is not taken back")
		}
		n.tells(c.job)
		n.wants(0, c.want...)
	}
}

// The page of an arena may name any process. The list on disk, or the kernel once the process came back, says whose it is: till then it stays off the
// list, and its claim does not run.
func TestThePageProvesNothing(t *testing.T) {
	n := newNode(t)
	p := n.starts(101)
	n.starts(102)
	listed, page := n.arena("listed", 0, 4, 102), n.arena("page", 1, 5, 101)
	n.keeps([]holding.Entry{n.entry(listed, 103)}, listed, page)
	n.logs("the list counts", "never killed")
	if list := n.room.Listed(); len(list) != 1 || list[0].PID != 103 {
		t.Errorf("listed %+v", list)
	}
	if claims := n.room.Running(); len(claims) != 0 {
		t.Errorf("runs %+v", claims)
	}
	if _, ok := n.room.Back(p, 0); ok {
		t.Error("a process is given the arena of another rank")
	}
	if _, ok := n.room.Back(&peer{102, 102}, 0); ok {
		t.Error("a process is given what the list says is another's")
	}
	if a, ok := n.room.Back(p, 1); !ok || a != page || !page.Process.Proven {
		t.Errorf("came back to %v, %v", a, ok)
	}
	if list := n.room.Listed(); len(list) != 2 {
		t.Errorf("then listed %+v", list)
	}
	if claims := n.room.Running(); len(claims) != 1 || claims[0] != (replica.Running{Job: fixture.JobID, Rank: 1, Incarnation: 5}) {
		t.Errorf("then runs %+v", claims)
	}
	delete(n.processes, 101)
	if claims := n.room.Running(); len(claims) != 0 {
		t.Errorf("after its end runs %+v", claims)
	}
}

// A mirror's arena is the daemon's own: it is listed without a process, and runs nothing.
func TestAMirrorIsListed(t *testing.T) {
	n := newNode(t)
	held := n.mirror("held", 1)
	n.keeps(nil, held)
	if list := n.room.Listed(); len(list) != 1 || !list[0].Mirror || list[0].PID != 0 || list[0].Key != held.Key() {
		t.Errorf("listed %+v", list)
	}
	n.logs()
}

// What the keeper has lost is awaited from a live process alone, of this life of the host.
func TestWhatTheKeeperLostIsAwaited(t *testing.T) {
	n := newNode(t)
	n.starts(101)
	if _, ok := n.room.Next(); ok {
		t.Error("the room asks for time with nothing to await")
	}
	other := entry("other boot", 0, 101)
	other.Boot = replica.BootID{2}
	n.keeps([]holding.Entry{entry("lives", 0, 101), entry("gone", 1, 100), {Key: "mirror", Job: fixture.JobID, Mirror: true, Boot: boot}, other})
	n.logs("arena gone came back neither", "arena mirror came back neither", "arena other boot came back neither")
	if list := n.room.Awaited(); len(list) != 1 || list[0].Key != "lives" || !n.room.Awaiting() {
		t.Errorf("awaits %+v", list)
	}
	if list := n.room.Listed(); len(list) != 1 {
		t.Errorf("the list forgets what is awaited: %+v", list)
	}
	n.wants(0)
	if at, ok := n.room.Next(); !ok || at != n.now.Add(lookEvery) {
		t.Errorf("looks again at %v, %v", at, ok)
	}
	n.wants(hangFirst - 1)
	if !n.room.Awaiting() {
		t.Error("a process that lives is not awaited")
	}
	delete(n.processes, 101)
	n.wants(0)
	if n.room.Awaiting() {
		t.Error("a process that is gone is awaited")
	}
	n.logs()
}

// A process that does not bring what it alone has is killed as one that hangs.
func TestAProcessThatStandsStillIsKilled(t *testing.T) {
	for how, halted := range map[string]bool{"is stopped by a signal, and is killed": true, "hangs, and is killed": false} {
		n := newNode(t)
		n.starts(101)
		n.processes[101].halted = halted
		n.keeps([]holding.Entry{entry("stuck", 0, 101)})
		n.wants(hangFirst - 1)
		n.wants(1, "kill 101")
		n.logs(how)
		if n.wants(1); n.room.Awaiting() {
			t.Error("it is awaited still")
		}
	}
}

// A process has several ranks, and offers each one's arena.
func TestEachRankOffersItsOwn(t *testing.T) {
	n := newNode(t)
	p := n.starts(101)
	a, b := n.arena("a", 0, 4, 101), n.arena("b", 1, 5, 101)
	n.keeps([]holding.Entry{entry("first", 0, 101), entry("second", 1, 101)})
	if n.room.Awaits(&peer{102, 102}, 0) || n.room.Awaits(p, 2) || !n.room.Awaits(p, 1) {
		t.Error("an arena is awaited from a process or for a rank that the list does not name")
	}
	otherJob := b.Spec()
	otherJob.Job = replica.JobID{9}
	for _, c := range []struct {
		from *peer
		rank replica.Rank
		spec shm.Spec
		want string
	}{{p, 1, a.Spec(), ""}, {p, 0, b.Spec(), ""}, {p, 1, otherJob, ""}, {&peer{102, 102}, 1, b.Spec(), ""}, {&peer{102, 101}, 1, b.Spec(), ""}, {&peer{101, 102}, 1, b.Spec(), ""}, {p, 1, b.Spec(), "second"}, {p, 0, a.Spec(), "first"}} {
		if key, ok := n.room.Key(c.from, c.rank, c.spec); key != c.want || ok != (c.want != "") {
			t.Errorf("process %d offers for rank %d the arena of rank %d: %q, %v", c.from.pid, c.rank, c.spec.Rank, key, ok)
		}
	}
}

// An arena that is brought back is awaited no more, and has its place at once where its job is known.
func TestAnArenaIsBroughtBack(t *testing.T) {
	for _, known := range []bool{true, false} {
		n := newNode(t)
		p := n.starts(101)
		a := n.arena("a", 0, 4, 101)
		n.keeps([]holding.Entry{n.entry(a, 101), entry("other", 1, 101)})
		if known {
			n.tells(fixture.Job())
			n.wants(0)
		}
		a.Process = holding.Process{PID: 101, Start: 101, Proven: true}
		n.room.Learn(n.now, Offered{Arena: a, Peer: p})
		if list := n.room.Awaited(); len(list) != 1 || list[0].Key != "other" {
			t.Errorf("awaits %+v", list)
		}
		if known {
			n.wants(0, "place a as rank 0, incarnation 4, attached", "placed", "settle rank 0 []")
		} else {
			n.wants(0)
		}
	}
}

// The daemon died as it handed an arena out, and the keeper with it: the process asks for one, and never brings it.
func TestAProcessThatGotNothing(t *testing.T) {
	n := newNode(t)
	p := n.starts(101)
	handed, passing, other := entry("handed", 0, 101), entry("passing", 0, 101), entry("other job's", 0, 101)
	passing.For, other.For = "job", "other"
	n.keeps([]holding.Entry{handed, passing, other})
	n.room.Learn(n.now, Asked{Peer: &peer{102, 102}, Job: "job", Rank: 0})
	n.room.Learn(n.now, Asked{Peer: p, Job: "job", Rank: 1})
	n.room.Learn(n.now, Asked{Peer: p, Rank: 0})
	n.logs()
	n.room.Learn(n.now, Asked{Peer: p, Job: "job", Rank: 0})
	n.logs("arena passing was never handed")
	if list := n.room.Awaited(); len(list) != 2 || list[0].Key != "handed" || list[1].For != "other" {
		t.Errorf("awaits %+v", list)
	}
}

// Whatever a rank sends before its job is known, what is remembered is bounded, newest last, and is handed on once.
func TestWhatARankSendsIsBounded(t *testing.T) {
	n := newNode(t)
	p := n.starts(101)
	a := n.arena("a", 0, 4, 101)
	n.keeps([]holding.Entry{n.entry(a, 101)}, a)
	n.room.Back(p, 0)
	for i := range 10000 {
		n.room.Learn(n.now, Sent{p, session.Sealed{Peer: p, Sealed: wire.Sealed{Kind: uint32(i % 5), Index: uint32(i)}}})
		n.room.Learn(n.now, Sent{p, session.Stopped{Peer: p, Header: wire.RankHeader{Request: uint32(i)}}})
		n.room.Learn(n.now, Sent{p, session.Leave{Peer: p}})
		n.room.Learn(n.now, Sent{&peer{102, 102}, session.Fail{}})
	}
	if n := len(n.room.of(p).sent); n > len(a.Places())+2 {
		t.Errorf("%d events are remembered", n)
	}
	seals := len(n.room.of(p).sent) - 2
	if seals == 0 {
		t.Error("no seal is remembered")
	}
	n.tells(fixture.Job())
	effects := n.room.Step(n.now)
	s, ok := effects[len(effects)-1].(Settle)
	if !ok || len(s.Sent) != seals+2 {
		t.Fatalf("%q", n.words(effects))
	}
	if last, ok := s.Sent[seals].(session.Stopped); !ok || last.Header.Request != 9999 {
		t.Errorf("not the newest is handed on: %+v", s.Sent[seals])
	}
}

// Of seals the newest of each place is remembered, since another place may be the one that counts.
func TestASealOfEachPlace(t *testing.T) {
	n := newNode(t)
	p := n.starts(101)
	a := n.arena("a", 0, 4, 101)
	n.keeps([]holding.Entry{n.entry(a, 101)}, a)
	n.room.Back(p, 0)
	for i, at := range []shm.Place{{Kind: shm.Slot, Index: 0}, {Kind: shm.Slot, Index: 1}, {Kind: shm.Ring, Index: 0}, {Kind: shm.Slot, Index: 0}} {
		n.room.Learn(n.now, Sent{p, session.Sealed{Peer: p, Header: wire.RankHeader{Request: uint32(i)}, Sealed: wire.Sealed{Kind: uint32(at.Kind), Index: uint32(at.Index)}}})
	}
	var got []uint32
	for _, ev := range n.room.of(p).sent {
		got = append(got, ev.(session.Sealed).Header.Request)
	}
	if !slices.Equal(got, []uint32{1, 2, 3}) {
		t.Errorf("remembers seals %v", got)
	}
}

// A rank that went away again is not attached, and nobody is told to stop.
func TestASessionEnds(t *testing.T) {
	for _, job := range []*replica.Job{fixture.Job(), nil} {
		n := newNode(t)
		p := n.starts(101)
		a := n.arena("a", 0, 4, 101)
		n.keeps([]holding.Entry{n.entry(a, 101)}, a)
		n.room.Back(p, 0)
		n.room.Learn(n.now, act.Gone{Peer: &peer{101, 101}})
		n.room.Learn(n.now, Sent{p, session.Stopped{}})
		n.room.Learn(n.now, act.Gone{Peer: p})
		n.room.Learn(n.now, Sent{p, session.Leave{}})
		n.tells(job)
		if job != nil {
			n.wants(0, "place a as rank 0, incarnation 4", "placed", "settle rank 0 [Stopped]")
		} else {
			n.wants(0, "give up a")
		}
	}
}

func TestLoaded(t *testing.T) {
	for phase, want := range map[replica.JobPhase]replica.Epoch{replica.Opening: 0, replica.Planned: 0, replica.Open: 3, replica.Closed: 3} {
		job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = phase })
		if got := loaded(job, replica.PackWord(3, 6, 0)); got != want {
			t.Errorf("%v, good in the job's epoch: loaded %d, want %d", phase, got, want)
		}
		if got := loaded(job, replica.PackWord(2, 6, 0)); got != 2 {
			t.Errorf("%v, good in a former epoch: loaded %d", phase, got)
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		job                     *replica.Job
		informed, mirror, alive bool
		want                    fate
	}{
		{nil, false, false, true, waits}, {nil, false, true, false, waits},
		{nil, true, false, true, unwanted}, {nil, true, true, false, unwanted},
		{ended("x"), true, false, true, ranks}, {ended("x"), true, false, false, unwanted}, {ended("x"), true, true, true, unwanted},
		{fixture.Job(), true, true, false, mirrors}, {fixture.Job(), true, false, false, ranks}, {fixture.Job(), false, false, false, ranks},
	} {
		if got := judge(c.job, c.informed, c.mirror, c.alive); got != c.want {
			t.Errorf("%+v: %d, want %d", c, got, c.want)
		}
	}
}
