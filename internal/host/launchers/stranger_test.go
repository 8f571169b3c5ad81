package launchers

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// A program that ends well without a word to the daemon has no session, and would do the same each time: it is not started again, and its launcher
// prints what a program needs. The job ends, or is kept for the right program where it has a step.
func TestProgramWithoutASessionIsNotStartedAgain(t *testing.T) {
	for _, tc := range []struct {
		name      string
		committed replica.Step
		others    replica.Incarnation       // of the other rank
		before    func(d *rig, l *launcher) // the process ends
		status    int32
		counted   bool // as any process that fails while it starts
	}{
		{name: "a new job"},
		{name: "a job with a step", committed: 5},
		{name: "it failed", status: 1, counted: true},
		{name: "another rank has attached", others: 3, counted: true},
		{name: "it connected", counted: true, before: func(d *rig, _ *launcher) {
			d.Connected("job", 0)
		}},
		{name: "an earlier daemon started it", counted: true, before: func(d *rig, l *launcher) {
			l.starts = starts{}
			d.running(l.peer, 0, 4711)
		}},
	} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Position.Step, j.Ranks[1].Incarnation = tc.committed, tc.others
			j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.ProcessDead, Incarnation: j.Ranks[0].Incarnation})
		}))
		peer, end := d.listener()
		l := d.all[peer.ID()]
		l.start(lj.job, 0, time.Now())
		end.Reads() // the start
		d.running(peer, 0, 4711)
		d.says()
		if tc.before != nil {
			tc.before(d, l)
		}
		d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 0, Status: tc.status, PID: 4711}}, time.Now())
		ended := fixture.Only[control.EndRequest](d.says())
		if tc.counted {
			if len(ended) != 0 || l.done || l.starts.of(0).tries != 1 {
				t.Errorf("%s: the job ends with %+v, the launcher is done: %v, %+v", tc.name, ended, l.done, l.starts.of(0))
			}
			continue
		}
		for i, want := range sixLines {
			if said := end.note(); said != want {
				t.Errorf("%s: line %d says %q, want %q", tc.name, i, said, want)
			}
		}
		const never = "rank 0's process ended with status 0 on node n1 and never connected to the daemon"
		switch {
		case tc.committed == 0 && (len(ended) != 1 || !strings.HasPrefix(ended[0].Reason, recovery.DoNotRequeue+never)):
			t.Errorf("%s: the job ends with %+v", tc.name, ended)
		case tc.committed > 0:
			h, body := end.Reads()
			if done, err := wire.ParseRefused(body); err != nil || h.Type != wire.MRunDone || done.Code != wire.ExitRefused || !strings.HasPrefix(done.Text, never) || len(ended) > 0 {
				t.Errorf("%s: message %d, %d %q, %v; the job ends with %+v", tc.name, h.Type, done.Code, done.Text, err, ended)
			}
		}
	}
}

// While another process of a job that begins still runs, nobody knows yet whether the program makes sessions: one that ended well without a word is
// started again once another has attached, and only where all ended so is the job over. A signal that a script turns into a good end ended jobs.
func TestProcessThatEndsWellBesideOthers(t *testing.T) {
	for _, attaches := range []bool{true, false} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
			j.Phase, j.Position.Step = replica.Opening, 0
			clear(j.Ranks)
		}))
		peer, end := d.listener()
		l := d.all[peer.ID()]
		l.hello.Ranks, l.hello.Capacity = []replica.Rank{0, 1}, 2
		for r := range replica.Rank(2) {
			l.start(lj.job, r, time.Now())
			end.Reads() // the start
			d.running(peer, r, 4711+uint64(r))
		}
		d.says()
		d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 0, PID: 4711}}, time.Now())
		if said := end.note(); !strings.Contains(said, "rank 0's process ended with status 0 and never connected") {
			t.Errorf("it says %q", said)
		}
		d.serve(l, time.Now())
		if ended := fixture.Only[control.EndRequest](d.says()); len(ended) != 0 || l.starts.of(0).running {
			t.Fatalf("the job ends with %+v, or rank 0 is started again: %+v", ended, l.starts.of(0))
		}
		if attaches {
			lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Ranks[1].Incarnation, j.Ranks[1].Node = 4, "n1" })
			if d.serve(l, time.Now()); !l.starts.of(0).running {
				t.Errorf("rank 0 is not started again: %+v", l.starts.of(0))
			}
			continue
		}
		d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 1, PID: 4712}}, time.Now())
		if ended := fixture.Only[control.EndRequest](d.says()); len(ended) != 1 {
			t.Errorf("all ended well without a word, and the job goes on: %+v", ended)
		}
	}
}

// Where a job begins and no other rank has attached nobody waits for a process: its launcher is told that it has not connected, and it is not killed.
func TestProcessThatNobodyWaitsForIsNotKilled(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase = replica.Opening
		clear(j.Ranks)
	}))
	peer, end := d.listener()
	l := d.all[peer.ID()]
	l.start(lj.job, 0, time.Now())
	end.Reads() // the start
	d.running(peer, 0, 4711)
	ago := func(since time.Duration) { l.starts[0].since = time.Now().Add(-since) }

	ago(d.cfg.Timing.Start + time.Minute)
	d.KillStuck(time.Now())
	end.quiet()
	d.Of(lj).Await(time.Now())
	if said := end.note(); !strings.Contains(said, "has not even connected to the daemon; a program without a replicad session never does") {
		t.Errorf("it says %q", said)
	}
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Ranks[1].Incarnation, j.Ranks[1].Node = 4, "n2" })
	l.starts.quiet()
	d.Of(lj).Await(time.Now())
	if said := end.note(); !strings.Contains(said, "the job waits for it, and it is killed 10m0s after its start") {
		t.Errorf("it says %q", said)
	}
	d.KillStuck(time.Now())
	if said := end.note(); !strings.Contains(said, "killed, since it had not attached") {
		t.Errorf("it says %q", said)
	}
}
