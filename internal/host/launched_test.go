package host

import (
	"github.com/replicad/replicad/internal/host/rank"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// comes has a launcher of the job come, and be accepted.
func (d *rig) comes(hello wire.RunHello) (session.Peer, *rankEnd) {
	d.t.Helper()
	peer, end := d.session(0)
	hello.Job, hello.World = "job", 2
	d.handleSession(session.RunHello{Peer: peer, RunHello: hello})
	if h, _ := end.reads(); h.Type != wire.MRunOK {
		d.t.Fatalf("a launcher is sent message %d as it comes", h.Type)
	}
	return peer, end
}

// listener is a launcher of the job whose notes the test reads.
func (d *rig) listener() (session.Peer, *rankEnd) { return d.comes(wire.RunHello{}) }

func (r *rankEnd) note() string {
	r.t.Helper()
	h, body := r.reads()
	v, err := wire.ParseRefused(body)
	if h.Type != wire.MRunNote || err != nil {
		r.t.Fatalf("the launcher reads message %d (%v), want a note", h.Type, err)
	}
	return v.Text
}

// runs has a launcher report that a process runs for a rank.
func (d *rig) runs(peer session.Peer, r replica.Rank, pid uint64) {
	d.handleSession(session.RunRunning{Peer: peer, RunExited: wire.RunExited{Rank: r, PID: pid}})
}

// Whoever looks at the launcher's output learns why its process was killed.
func TestLauncherIsToldOfAHang(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.Hang, Rank: 1, Incarnation: 5, Detail: "stands still in step 6"}}
	}))
	peer, end := d.listener()
	d.runs(peer, 1, 1<<30)
	lj.Ranks[1] = rank.New(1, 5, nil, rank.Process{PID: 1 << 30, Start: 1}) // nobody's
	d.killHung(lj)
	clear(lj.Ranks) // it has no arena
	h, body := end.reads()
	if note, err := wire.ParseRefused(body); err != nil || h.Type != wire.MRunNote || note.Text != "rank 1: killed, hang: stands still in step 6" {
		t.Errorf("message %d, %q, %v; want a note", h.Type, note.Text, err)
	}
}

// What the leader has to say of a job reaches the launchers of that job, and no others.
func TestLaunchersAreToldOfTheirJob(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Job())
	_, end := d.listener()
	d.leaderSays(control.Tell{Job: replica.JobID{0: 0xee}, Text: "of another job"})
	d.leaderSays(control.Tell{Job: fixture.JobID, Text: "news"})
	h, body := end.reads()
	if note, err := wire.ParseRefused(body); err != nil || h.Type != wire.MRunNote || note.Text != "news" {
		t.Errorf("message %d, %q, %v; want the news", h.Type, note.Text, err)
	}
}

// A process waits for its daemon at the rendezvous, and while it has asked for its rank or its arena and has no answer.
func TestProcessesThatWaitForTheirDaemon(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	peer, _ := d.session(0)
	expected := func() bool { return launcherOwner{d.Host}.Expects(lj.Job, 0) }
	if expected() {
		t.Error("nobody has come")
	}
	d.desk.Admit(peer, desk.Caller{Job: lj.Job.ID})
	d.desk.Ask(peer, wire.RankHeader{Epoch: 3}, wire.MKVGet, wire.KV{Key: "k"})
	if !expected() {
		t.Error("it waits at the rendezvous")
	}
	d.desk.Leave(peer)
	if expected() {
		t.Error("it has left the rendezvous")
	}
	d.informed = false // nothing can be judged
	d.handleSession(session.Hello{Peer: peer, Hello: wire.Hello{ABI: wire.RankABI, World: 2, Job: "job"}})
	if !expected() {
		t.Error("it has asked for its rank")
	}
	d.handleSession(session.Gone{Peer: peer})
	if expected() {
		t.Error("it has gone")
	}
}

// What launchers are judged by is the rank as it is here.
func TestRanksAsLaunchersSeeThem(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.live(lr, 3, 6, replica.Updating)
	lr.PID, lr.Initial, lr.Loaded = 4711, 2, 3
	for life, want := range map[rank.Life]launchers.Rank{
		rank.Attached: {Alive: true}, rank.Stopped: {Alive: true, Stopped: true}, rank.Training: {Alive: true, Trains: true, Word: replica.PackWord(3, 6, replica.Updating)},
		rank.Finished: {Alive: true, Left: true}, rank.Dead: {}, rank.Departed: {Left: true},
	} {
		lr.Life, lr.Halted, lr.Ending = life, life == rank.Stopped, map[bool]uint64{true: 5}[life == rank.Attached]
		want.PID, want.Initial, want.Loaded, want.Halted, want.Ending = 4711, 2, 3, lr.Halted, life == rank.Attached
		if got, known := lj.Rank(0); !known || got != want {
			t.Errorf("%v: %+v, want %+v", life, got, want)
		}
	}
	lr.Life = rank.Dead // it has no process
	if _, known := lj.Rank(1); known {
		t.Error("a rank elsewhere is here")
	}
	lj.SettleBy, lj.SettleTime = time.Unix(1040, 0), 40*time.Second
	if at := lj.ClosedAt(); !at.Equal(time.Unix(1000, 0)) {
		t.Errorf("its epoch was closed at %v", at)
	}
	if job := (launcherOwner{d.Host}).Known(replica.JobID{9}); job != nil {
		t.Errorf("a job that nobody knows is %v", job)
	}
	if job := (launcherOwner{d.Host}).Named("nobody's"); job != nil {
		t.Errorf("a job that nobody knows is %v", job)
	}
}
