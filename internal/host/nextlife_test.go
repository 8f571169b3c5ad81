package host

import (
	"github.com/replicad/replicad/internal/host/rank"
	"os"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// lostKeeper is a daemon that starts again, after keeper and daemon died, under ranks of the job that have one live process.
func (d *rig) lostKeeper(job *replica.Job, p session.Peer) (kept map[replica.Rank]*os.File) {
	d.t.Helper()
	lj := d.put(job)
	kept = map[replica.Rank]*os.File{}
	for r := range replica.Rank(2) {
		lr := d.attach(lj, r)
		lr.PID, lr.Start = p.PID(), p.StartTime()
		lr.Arena.SetOwner(lr.Incarnation, uint64(p.PID()), p.StartTime())
		f, err := unixsock.Duplicate(lr.Arena.File())
		if err != nil {
			d.t.Fatal(err)
		}
		d.t.Cleanup(func() { f.Close() })
		kept[r] = f
	}
	d.saveArenas()
	d.settled()
	for _, lr := range lj.Ranks {
		if err := d.keeper.Drop(lr.Arena.Key()); err != nil {
			d.t.Fatal(err)
		}
	}
	d.restart()
	return kept
}

func (d *rig) offersArena(p session.Peer, r *rankEnd, rank replica.Rank, f *os.File) uint16 {
	d.t.Helper()
	mine, err := unixsock.Duplicate(f)
	if err != nil {
		d.t.Fatal(err)
	}
	d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 8}, Hello: wire.Hello{Rank: rank, Job: "job", Nonce: 5}, File: mine})
	h, _ := r.reads()
	return h.Type
}

// TestEachRankOffersItsOwnArena: one process has two ranks, and offers the arenas in the other order than they are listed in.
func TestEachRankOffersItsOwnArena(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	p, r := d.session(0)
	kept := d.lostKeeper(job, p)
	if list := d.adoption.Awaited(); len(list) != 2 {
		t.Fatalf("awaits %+v", list)
	}
	listed := map[string]replica.Rank{}
	for _, e := range d.adoption.Awaited() {
		listed[e.Key] = e.Rank
	}
	if got := d.offersArena(p, r, 1, kept[0]); got == wire.MAttached {
		t.Error("rank 1 is given back the arena of rank 0")
	}
	for _, rank := range []replica.Rank{1, 0} {
		if got := d.offersArena(p, r, rank, kept[rank]); got != wire.MAttached {
			t.Fatalf("rank %d is answered by message %d", rank, got)
		}
	}
	for _, ref := range d.adoption.Arenas() {
		if rank := listed[ref.Key()]; ref.Spec().Rank != rank || d.adoption.Awaiting() {
			t.Errorf("the arena that is listed for rank %d is rank %d's", rank, ref.Spec().Rank)
		}
	}
	var running running
	running.serve(d.Host)
	want := []replica.Running{{Job: job.ID, Rank: 0, Incarnation: job.Ranks[0].Incarnation}, {Job: job.ID, Rank: 1, Incarnation: job.Ranks[1].Incarnation}}
	if !slices.Equal(running.claims, want) {
		t.Errorf("it runs %+v, want %+v", running.claims, want)
	}
	for _, ref := range d.adoption.Arenas() {
		ref.Process.PID = -1 // the cleanup of the test must not meet this process
	}
}

// TestRunningIsProved: what the arena's page alone says, what no process has, and a mirror are no claims that a daemon serves.
func TestRunningIsProved(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	lj := d.put(job)
	live, gone := d.attach(lj, 0), d.attach(lj, 1)
	p := d.process()
	live.PID, live.Start = p.pid, p.start
	gone.Life = rank.Dead
	d.mirrorOf(lj, replica.OfRank(1), 1, false)
	claims := func() []replica.Running {
		var r running
		r.serve(d.Host)
		return r.claims
	}
	want := []replica.Running{{Job: job.ID, Rank: 0, Incarnation: live.Incarnation}}
	if got := claims(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	live.Unproven = true
	if got := claims(); len(got) != 0 {
		t.Errorf("by the page alone: %+v", got)
	}
	live.Unproven = false
	live.Arena.SetOwner(live.Incarnation, uint64(p.pid), p.start)
	d.restart()
	if got := claims(); !slices.Equal(got, want) {
		t.Errorf("after a restart: %+v, want %+v", got, want)
	}
	p.in.Close()
	p.cmd.Wait() //nolint:errcheck // it ended with its input
	if got := claims(); len(got) != 0 {
		t.Errorf("after its end: %+v", got)
	}
}

// TestAListOfAnotherBoot: a process number of before the host was started anew is any process now.
func TestAListOfAnotherBoot(t *testing.T) {
	d := newRig(t)
	p, _ := d.session(0)
	d.self.Boot = replica.BootID{1}
	d.config.Self.Boot = replica.BootID{2}
	d.lostKeeper(fixture.Job(), p)
	if d.adoption.Awaiting() || d.log.Count("arena_lost") != 2 {
		t.Errorf("awaits %+v", d.adoption.Awaited())
	}
}

// TestAProcessThatWasHandedNothing: a daemon dies as it hands an arena out, and the keeper with it. The process asks for one: its arena is not
// waited for as long as it lives.
func TestAProcessThatWasHandedNothing(t *testing.T) {
	d := newRig(t)
	p, _ := d.session(0)
	d.notify(d.adoption, adoption.Kept{Listed: []holding.Entry{
		{Key: "handed", Job: fixture.JobID, PID: p.PID(), Start: p.StartTime()},
		{Key: "other job's", Job: replica.JobID{9}, PID: p.PID(), Start: p.StartTime(), For: "other"},
		{Key: "not handed", Job: fixture.JobID, PID: p.PID(), Start: p.StartTime(), For: "job"}}})
	d.informed = false
	d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 8}, Hello: wire.Hello{ABI: wire.RankABI, World: 2, Rank: 0, Job: "job", Nonce: 5}})
	if list := d.adoption.Awaited(); len(list) != 2 || list[0].Key != "handed" || list[1].For != "other" {
		t.Errorf("awaits %+v", list)
	}
}
