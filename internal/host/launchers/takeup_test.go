package launchers

import (
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// twoLaunchers are on the node of rank 0, whose process was the first one's and is dead. The first one has not said so.
func twoLaunchers(t *testing.T) (d *rig, lj *localJob, first, second *launcher, ends [2]*peer) {
	d = newRig(t)
	lj = d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	}))
	var l [2]*launcher
	for i := range l {
		var peer session.Peer
		peer, ends[i] = d.session()
		d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 1}}, time.Now())
		ends[i].Reads() // accepted
		l[i] = d.all[peer.ID()]
	}
	lj.attach(0).Alive = false
	l[0].starts.runs(0, 4711, time.Now())
	l[0].starts[0].attached = true
	return d, lj, l[0], l[1], ends
}

// The launcher whose process has ended is about to say so, and has the first turn; one that does not is left out.
func TestOfferWaitsForTheLauncherOfTheDeadProcess(t *testing.T) {
	for what, says := range map[string]bool{"it says so": true, "it is stopped": false} {
		d, lj, first, second, ends := twoLaunchers(t)
		d.Of(lj).Offered(control.Offers{Job: fixture.JobID, Ranges: []control.OfferRange{{First: 0, Count: 1, Expect: 4}}}, time.Now())
		if first.starts.of(0).pid == 0 || second.runs(0) {
			t.Fatalf("%s: another one is asked at once", what)
		}
		if says {
			d.Handle(session.RunExited{Peer: first.peer, RunExited: wire.RunExited{Rank: 0, PID: 4711}}, time.Now())
			if typ, rank, _ := ends[0].gets(t); typ != wire.MRunStart || rank != 0 || second.runs(0) {
				t.Errorf("%s: message %d for rank %d", what, typ, rank)
			}
			continue
		}
		lj.book.untaken[0].since = time.Now().Add(-reapPatience)
		d.Of(lj).TakeOffers(time.Now())
		if typ, rank, _ := ends[1].gets(t); typ != wire.MRunStart || rank != 0 || !second.runs(0) {
			t.Errorf("%s: message %d for rank %d", what, typ, rank)
		}
		d.running(second.peer, 0, 99)
		if d.Of(lj).TakeOffers(time.Now()); len(lj.book.untaken) != 0 {
			t.Errorf("%s: the offer is kept after it was taken up", what)
		}
	}
}

// A launcher that does not take up a start is left for another one, which is told why, and is stopped from starting the process later.
func TestAnotherLauncherIsAsked(t *testing.T) {
	d, lj, first, second, ends := twoLaunchers(t)
	d.Handle(session.RunExited{Peer: first.peer, RunExited: wire.RunExited{Rank: 0, PID: 4711}}, time.Now())
	d.Of(lj).Offered(control.Offers{Job: fixture.JobID, Ranges: []control.OfferRange{{First: 0, Count: 1, Expect: 4}}}, time.Now())
	if typ, rank, _ := ends[0].gets(t); typ != wire.MRunStart || rank != 0 {
		t.Fatalf("message %d for rank %d", typ, rank)
	}
	if n, _ := d.offers(lj.job); n != 1 {
		t.Errorf("%d further processes are offered, want the second launcher's", n)
	}
	d.Of(lj).TakeOffers(time.Now())
	if second.runs(0) {
		t.Fatal("another one is asked at once")
	}
	lj.book.untaken[0].asked, first.heard = time.Now().Add(-d.takeUp()), time.Time{}
	d.Of(lj).TakeOffers(time.Now())
	if typ, rank, _ := ends[1].gets(t); typ != wire.MRunNote {
		t.Fatalf("message %d for rank %d", typ, rank)
	} else if typ, rank, _ = ends[1].gets(t); typ != wire.MRunStart || rank != 0 {
		t.Fatalf("message %d for rank %d", typ, rank)
	}
	h, body := ends[0].Reads()
	if s, err := wire.ParseRunStop(body); err != nil || h.Type != wire.MRunStop || s.Rank != 0 || syscall.Signal(s.Signal) != syscall.SIGKILL {
		t.Errorf("the first one gets message %d, %+v, %v", h.Type, s, err)
	}
	if n, _ := d.offers(lj.job); n != 0 {
		t.Errorf("%d further processes are offered: the first launcher does not answer", n)
	}
	if ranks, _, _ := d.starting(lj); len(ranks) != 1 {
		t.Errorf("starting: %v", ranks)
	}
	d.running(first.peer, 0, 98) // awake: it starts the process, and finds the stop
	d.Handle(session.RunExited{Peer: first.peer, RunExited: wire.RunExited{Rank: 0, PID: 98, Status: 137}}, time.Now())
	if n, _ := d.offers(lj.job); n != 1 {
		t.Errorf("%d processes are offered after it is awake", n)
	}
	if !second.runs(0) {
		t.Error("the second one's process is forgotten")
	}
}

// A launcher that has much to start begins one after the other: for as long as it says that one runs, nobody else is asked for those behind, and it is not
// taken for one that hangs.
func TestALauncherIsHeardWhileItStartsMany(t *testing.T) {
	d, lj, first, second, _ := twoLaunchers(t)
	first.hello.Capacity = 2
	d.Handle(session.RunExited{Peer: first.peer, RunExited: wire.RunExited{Rank: 0, PID: 4711}}, time.Now())
	d.Of(lj).Offered(control.Offers{Job: fixture.JobID, Ranges: []control.OfferRange{{First: 0, Count: 1, Expect: 4}, {First: 1, Count: 1, Expect: lj.job.Ranks[1].Incarnation}}}, time.Now())
	if n := first.starts.unheard(); n != 2 {
		t.Fatalf("it is asked for %d processes", n)
	}
	long := time.Now().Add(-2 * d.takeUp())
	late := func() {
		lj.book.untaken[1].asked, first.starts[1].since = long, long
	}
	late()
	d.running(first.peer, 0, 98)
	d.Of(lj).TakeOffers(time.Now())
	if ranks, _, _ := d.starting(lj); len(ranks) != 2 || first.deaf || second.runs(1) {
		t.Errorf("it has just started one: starting %v, deaf %t, another one is asked: %t", ranks, first.deaf, second.runs(1))
	}
	first.heard = long
	if ranks, _, _ := d.starting(lj); len(ranks) != 1 {
		t.Errorf("silent since: starting %v", ranks)
	}
	if d.Of(lj).TakeOffers(time.Now()); !first.deaf || !second.runs(1) {
		t.Errorf("silent since: deaf %t, another one is asked: %t", first.deaf, second.runs(1))
	}
}

// Alone on its node, a launcher that does not answer offers nothing, so that the leader asks another node.
func TestADeafLauncherOffersNothing(t *testing.T) {
	d, lj, first, second, ends := twoLaunchers(t)
	d.Gone(second.peer.ID())
	d.Handle(session.RunExited{Peer: first.peer, RunExited: wire.RunExited{Rank: 0, PID: 4711}}, time.Now())
	d.Of(lj).Offered(control.Offers{Job: fixture.JobID, Ranges: []control.OfferRange{{First: 0, Count: 1, Expect: 4}}}, time.Now())
	ends[0].gets(t)
	lj.book.untaken[0].asked, first.starts[0].since, first.heard = time.Now().Add(-d.takeUp()), time.Now().Add(-2*d.takeUp()), time.Time{}
	d.Of(lj).TakeOffers(time.Now())
	if ranks, _, _ := d.starting(lj); len(ranks) != 0 || !first.deaf {
		t.Errorf("deaf %t, starting %v", first.deaf, ranks)
	}
	d.running(first.peer, 0, 98)
	if ranks, _, _ := d.starting(lj); len(ranks) != 1 || first.deaf {
		t.Errorf("awake: deaf %t, starting %v", first.deaf, ranks)
	}
	d.Of(lj).TakeOffers(time.Now())
}

// A launcher that offers thousands of processes is believed as many as a node has sessions, and is asked for a few at a time: a burst of
// messages would end its session. The leader is told of all that were asked in one report.
func TestManyOffersAreTakenUpBitByBit(t *testing.T) {
	const world = 8000
	d := newRig(t)
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase, j.Layout.World = replica.Closed, world
		j.Layout.Groups, j.Ranks = make([]replica.GroupID, world), make([]replica.Claimed, world)
	})
	lj := d.put(job)
	peer, end := d.session()
	d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: world, Capacity: world}}, time.Now())
	end.Reads() // accepted
	l := d.all[peer.ID()]
	if n, _ := d.offers(job); n != maxSeats {
		t.Errorf("%d processes are offered, want %d", n, maxSeats)
	}
	d.says()
	d.Of(lj).Offered(control.Offers{Job: job.ID, Ranges: []control.OfferRange{{First: 0, Count: world}}}, time.Now())
	if n, reports := l.starts.running(), len(fixture.Only[replica.NodeReport](d.says())); n != startsAtOnce || reports != 1 {
		t.Fatalf("%d processes are asked for, want %d; %d reports, want one", n, startsAtOnce, reports)
	}
	for r := range replica.Rank(200) {
		if typ, rank, _ := end.gets(t); typ != wire.MRunStart || rank != r {
			t.Fatalf("message %d for rank %d, want a start of rank %d", typ, rank, r)
		}
		d.running(peer, r, uint64(r)+100)
	}
	if n, free := l.starts.running(), l.free(); n != startsAtOnce+200 || free != maxSeats-n {
		t.Errorf("%d processes are asked for once 200 run, and %d are free", n, free)
	}
}

// A user has so many sessions here: the leader is offered no process that would find none, whatever launchers say.
func TestNoMoreSeatsAreOfferedThanSessions(t *testing.T) {
	d := newRig(t)
	d.cfg.PerUser.Sessions = 10
	job := fixture.Job()
	other := fixture.Changed(job, func(j *replica.Job) { j.ID, j.Name = replica.JobID{9}, "other" })
	d.put(job)
	d.put(other)
	comes := func(name string) *launcher {
		t.Helper()
		peer, end := d.session()
		d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: name, World: job.Layout.World, Capacity: 8000}}, time.Now())
		end.Reads() // accepted
		return d.all[peer.ID()]
	}
	offered := func(j *replica.Job, want int) {
		t.Helper()
		if n, _ := d.offers(j); n != want {
			t.Errorf("job %s: %d processes are offered, want %d", j.Name, n, want)
		}
	}
	first := comes("job")
	offered(job, 9) // one session is the launcher's
	comes("other")
	offered(job, 8)
	for r := range replica.Rank(3) {
		first.starts.asked(r, time.Now())
	}
	offered(job, 5)
	offered(other, 5)
	stranger := comes("other")
	stranger.user++
	offered(job, 5)
	for r := range replica.Rank(9) {
		first.starts.asked(r, time.Now())
	}
	offered(job, 0)
}
