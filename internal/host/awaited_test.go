package host

import (
	"errors"
	"fmt"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/rank"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// reported is what the node would tell the leader of the job now.
func (d *rig) reported(lj *job.Job) replica.NodeReport {
	d.t.Helper()
	lj.Reported = replica.NodeReport{}
	d.says()
	d.report(lj)
	for _, msg := range d.says() {
		if r, ok := msg.(replica.NodeReport); ok {
			return r
		}
	}
	d.t.Fatal("no report")
	return replica.NodeReport{}
}

// A process that has its arena and prefaults it has nothing to settle: its node's acknowledgement does not wait for it, in any phase, so that
// nobody takes the node for silent.
func TestARankThatPrefaultsHasNothingToSettle(t *testing.T) {
	d := newRig(t)
	for _, job := range []*replica.Job{
		fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.Epoch, j.ClosedEpoch = replica.Opening, 1, 0 }),
		fixture.Closed(fixture.Job()),
	} {
		lj := d.put(job)
		lr := d.attach(lj, 0)
		d.live(lr, 3, 6, replica.Updating) // the words of its predecessor
		d.fence(lj)
		if r := d.reported(lj); !r.Settled || !r.Ranks[0].Settled || r.Ranks[0].Stopped {
			t.Errorf("%v: %+v", job.Phase, r)
		}
	}
}

// A capture under way at a fence has as long as its bytes take, and the leader is told how long that is.
func TestLargeCopiesHaveLongerToSettle(t *testing.T) {
	d := newRig(t)
	d.cfg.Timing.Settle = time.Nanosecond
	lj := d.put(fixture.Closed(fixture.Job()))
	lr := d.attach(lj, 0)
	lr.Loaded = 3
	d.stage(lr.Arena, slot(0), fixture.Gen(3, 6), 1)
	d.fence(lj)
	bytes := lr.Arena.Geometry().ReplicatedBytes
	if want := time.Duration(float64(bytes) / job.CopyRate * float64(time.Second)); lj.SettleTime != want+time.Nanosecond || want == 0 {
		t.Errorf("%d bytes have %v to be copied, want %v", bytes, lj.SettleTime, want)
	}
	lj.SettleTime = time.Hour
	if r := d.reported(lj); r.SettleMS != 3600_000 {
		t.Errorf("told %d ms", r.SettleMS)
	}
}

// lasts fails the test unless a text is the one that is wanted, of what has lasted so long: a machine without time adds to that.
func lasts(t *testing.T, text, want string, least time.Duration) {
	t.Helper()
	before, after, _ := strings.Cut(want, "{so long}")
	long, starts := strings.CutPrefix(text, before)
	long, ends := strings.CutSuffix(long, after)
	if took, err := time.ParseDuration(long); !starts || !ends || err != nil || took < least || took > least+fixture.Patience {
		t.Fatalf("%q; want %q, of %v or more", text, want, least)
	}
}

// A rank that is stopped by a signal is said to be: what stands still with it only waits.
func TestHaltedRankIsSaid(t *testing.T) {
	d := newRig(t)
	d.cfg.Timing.HangFirst = time.Nanosecond
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Gone, lr.Loaded, lr.Pulse = 3, 3, recovery.Pulse{}
	d.live(lr, 3, 6, replica.Idle)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	look := func() (hung, halted bool) {
		d.pulses(lj)
		d.began = d.began.Add(-time.Second)
		d.pulses(lj)
		r := d.reported(lj).Ranks[0]
		return r.Hung, r.Halted
	}
	if hung, halted := look(); !hung || halted {
		t.Errorf("a process that runs: hung %t, halted %t", hung, halted)
	}
	t.Cleanup(func() { _ = syscall.Kill(p.pid, syscall.SIGCONT) }) // else its end is waited for in vain
	if err := errors.Join(syscall.Kill(p.pid, syscall.SIGSTOP), unix.Waitid(unix.P_PID, p.pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)); err != nil {
		t.Fatal(err)
	}
	if hung, halted := look(); !hung || !halted {
		t.Errorf("a stopped one: hung %t, halted %t", hung, halted)
	}
	d.cfg.Timing.HangFirst = time.Hour
	d.live(lr, 3, 7, replica.Idle)
	for range 4 { // long before that is a hang
		look()
	}
	if hung, halted := look(); hung || !halted {
		t.Errorf("a stopped one within its bound: hung %t, halted %t", hung, halted)
	}
	if session.Halted(p.pid, p.start+1) {
		t.Error("another process of that number is taken for it")
	}
	if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if _, halted := look(); halted {
		t.Error("it is still said to be stopped")
	}
}

// So is a process that was started and has not attached: it has no words yet to tell anything by. Its launcher and the leader are told.
func TestAHaltedStartIsSaid(t *testing.T) {
	d := newRig(t)
	d.cfg.Timing.Claim = time.Nanosecond
	lj := d.put(fixture.Closed(fixture.Job()))
	peer, end := d.comes(wire.RunHello{Capacity: 2}) // of this process, whose child the rank's is
	p := d.process()
	d.runs(peer, 1, uint64(p.pid))
	halted := func() []replica.Rank {
		d.pollProgress(lj)
		r := d.reported(lj)
		if len(r.StartingPIDs) != 1 || r.StartingPIDs[0] != uint64(p.pid) {
			t.Fatalf("starting %v, processes %v", r.Starting, r.StartingPIDs)
		}
		return r.StartingHalted
	}
	if got := halted(); len(got) != 0 {
		t.Errorf("while it runs: %v", got)
	}
	t.Cleanup(func() { _ = syscall.Kill(p.pid, syscall.SIGCONT) }) // else its end is waited for in vain
	if err := errors.Join(syscall.Kill(p.pid, syscall.SIGSTOP), unix.Waitid(unix.P_PID, p.pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)); err != nil {
		t.Fatal(err)
	}
	if got := halted(); !slices.Equal(got, []replica.Rank{1}) {
		t.Errorf("stopped: %v", got)
	}
	if session.HaltedChild(p.pid, 1) {
		t.Error("it is taken for another process's child")
	}
	d.launchers.Of(lj).Await(time.Now().Add(5 * time.Second))
	_, body := end.reads()
	note, err := wire.ParseRefused(body)
	if err != nil {
		t.Fatal(err)
	}
	lasts(t, note.Text, fmt.Sprintf("rank 1: process %d is stopped by a signal (kill -CONT %d), and all ranks wait for it: {so long}", p.pid, p.pid), 5*time.Second)
	if err := syscall.Kill(p.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := halted(); len(got) != 0 {
		t.Errorf("it goes on: %v", got)
	}
}

// A rank that is stopped as its daemon starts again never attaches again. Its node looks at its steps all the same: else it would be no hang.
func TestARankThatNeverAttachesAgainHangs(t *testing.T) {
	d := newRig(t)
	d.cfg.Timing.HangFirst = time.Nanosecond
	lr := d.attach(d.put(fixture.Job()), 0)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	lr.Arena.SetOwner(4, uint64(p.pid), p.start)
	d.live(lr, 3, 6, replica.Idle)
	d.restart()
	d.tell(fixture.Job())
	lj := d.jobs.all[fixture.JobID]
	d.pulses(lj)
	d.began = d.began.Add(-time.Second)
	d.pulses(lj)
	if r := d.reported(lj).Ranks[0]; !r.Hung || r.Attached {
		t.Errorf("reported: %+v", r)
	}
	if _, ok := d.stepsOf(lj); !ok {
		t.Error("its node says nothing of its steps")
	}
}

// What a witness says of its own ranks: how they get on, and that one has lost its peers.
func TestHowRanksGetOn(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	if s, ok := d.stepsOf(lj); ok {
		t.Errorf("without ranks: %+v", s)
	}
	lr := d.attach(lj, 0)
	if s, ok := d.stepsOf(lj); ok {
		t.Errorf("a rank that was not let go: %+v", s)
	}
	lr.Gone, lr.Loaded = 3, 3
	for step := range replica.Step(4) {
		d.live(lr, 3, 6+step, replica.Idle)
		d.pulses(lj)
		d.began = d.began.Add(-2 * time.Second)
	}
	if s, ok := d.stepsOf(lj); !ok || s.Broken || s.Pace < 2000 || s.Pace > 9000 || s.Still < 2000 || s.Still > 9000 {
		t.Errorf("steps of 2 s: %+v", s)
	}
	lr.Pulse.Pause(time.Since(d.began), time.Minute)
	if s, _ := d.stepsOf(lj); s.Still != 0 {
		t.Errorf("a pause: %+v", s)
	}
	lr.Life = rank.Stopped
	if s, ok := d.stepsOf(lj); !ok || !s.Broken {
		t.Errorf("stopped under an open epoch: %+v", s)
	}
	lr.Life = rank.Finished
	if s, ok := d.stepsOf(lj); ok {
		t.Errorf("a rank that has left: %+v", s)
	}
}
