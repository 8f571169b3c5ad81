package host

import (
	"regexp"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// The launcher prints one line when an epoch is lost, which announces the tracebacks that follow, and one when the job goes on.
func TestLauncherIsToldOfARecovery(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.live(lr, 3, 8, replica.Updating)
	_, end := d.listener()
	see := func(job *replica.Job) {
		d.viewed(control.View{Index: job.LastIndex, Era: 1, Jobs: []*replica.Job{job}})
	}
	fault := replica.Fault{Epoch: 3, Kind: replica.ProcessDead, Rank: 1, Incarnation: 5, Detail: "process exited in IDLE"}
	shut := fixture.Changed(fixture.Closed(lj.Job), func(j *replica.Job) { j.Faults = []replica.Fault{fault} })
	see(shut)
	if text := end.note(); text != "epoch 3 is closed (rank 1: process-dead, process exited in IDLE); recovering. Tracebacks of collectives that break now are expected" {
		t.Errorf("of the loss: %q", text)
	}
	planned := fixture.Changed(shut, func(j *replica.Job) {
		j.Phase, j.Epoch, j.Plan = replica.Planned, 4, &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 6), Sources: []replica.Source{{Tier: replica.PeerRAM}}}
	})
	again := fixture.Changed(planned, func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Closed, 4 }) // a further fault is of the same loss
	see(planned)
	see(again)
	planned = fixture.Changed(again, func(j *replica.Job) {
		j.Phase, j.Epoch, j.Plan = replica.Planned, 5, &replica.Plan{Epoch: 5, Generation: fixture.Gen(3, 6), StepsLost: 1, Sources: []replica.Source{{Tier: replica.PeerRAM}}}
	})
	see(planned)
	see(fixture.Changed(planned, func(j *replica.Job) { j.Phase, j.Position = replica.Open, replica.Position{Epoch: 5, Step: 6} }))
	if text := end.note(); !regexp.MustCompile(`^recovered: step 6 from other nodes' memory, 1 step lost, \d+\.\d s$`).MatchString(text) {
		t.Errorf("of the recovery: %q", text)
	}
}

// A launcher says what the plan says, whatever its own ranks had made; and that committed steps are gone even where its daemon saw no loss.
func TestLauncherIsToldOfCommittedSteps(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	_, end := d.listener()
	see := func(job *replica.Job) {
		d.viewed(control.View{Index: job.LastIndex, Era: 1, Jobs: []*replica.Job{job}})
	}
	lj.Job = fixture.Closed(lj.Job) // by a daemon that ran here before
	planned := fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Phase, j.Epoch, j.Plan = replica.Planned, 4, &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 2), StepsLost: 14, CommittedLost: 12, Reason: "memory has nothing", Sources: []replica.Source{{Tier: replica.Disk}},
			Resumed: "step 2 of file:///b/job (2 min old, 35 MiB); passed over step 4: group-0.safetensors, chunk 9: digest differs"}
	})
	see(planned)
	see(fixture.Changed(planned, func(j *replica.Job) { j.Phase, j.Position = replica.Open, replica.Position{Epoch: 4, Step: 2} }))
	const want = "recovered: step 2 from disk, 14 steps lost; warning: the job went back over 12 committed steps, from step 14 to step 2: memory has nothing"
	if text := end.note(); text != want {
		t.Errorf("it says %q, want %q", text, want)
	}
	if text, want := end.note(), "resumed: step 2 of file:///b/job (2 min old, 35 MiB); passed over step 4: group-0.safetensors, chunk 9: digest differs"; text != want {
		t.Errorf("of the durable generation: %q, want %q", text, want)
	}
	if s := control.StatusOf(d.jobs.all[fixture.JobID].Job, nil); !strings.HasPrefix(s.Resumed, "step 2 of file:///b/job") {
		t.Errorf("status says it resumed from %q", s.Resumed)
	}
	if s := control.StatusOf(d.jobs.all[fixture.JobID].Job, nil); !strings.Contains(s.WentBack, "12 committed steps") {
		t.Errorf("status says %q", s.WentBack)
	}
	far := fixture.Changed(d.jobs.all[fixture.JobID].Job, func(j *replica.Job) { j.Position.Step = 14 })
	if s := control.StatusOf(far, nil); s.WentBack != "" {
		t.Errorf("at step 14 again status says %q", s.WentBack)
	}
}

// A rank asks what its launcher was told; one whose job went on from memory, or that nobody knows, is told nothing.
func TestRankIsToldWhatItResumedFrom(t *testing.T) {
	d, lj, lr, rank := growing(t)
	stranger, other := d.session(0)
	ask := func(p session.Peer, end *rankEnd) string {
		d.handleSession(session.Resumed{Peer: p, Header: wire.RankHeader{Type: wire.MResumed, Request: 9}})
		h, body := end.reads()
		if h.Type != wire.MResumedIs || h.Request != 9 {
			t.Errorf("it is answered with %+v", h)
		}
		return string(body)
	}
	if text := ask(lr.Peer, rank); text != "" {
		t.Errorf("it went on from memory, and is told %q", text)
	}
	const want = "step 2 of file:///b/job (2 min old, 35 MiB)"
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Plan = &replica.Plan{Resumed: want} })
	if text := ask(lr.Peer, rank); text != want {
		t.Errorf("it is told %q, want %q", text, want)
	}
	if text := ask(stranger, other); text != "" {
		t.Errorf("a stranger is told %q", text)
	}
}

// origin is a generation that jobs of tests begin with.
func origin() *replica.Origin {
	return &replica.Origin{Asked: "s3://b/ck/lm", URL: "s3://b/ck", Job: "lm", Run: replica.JobID{7}, Place: "lm/run/step", Generation: fixture.Gen(2, 2180), World: 8}
}

// A process asks what its job began with, before it has attached too.
func TestRankIsToldWhatItsJobBeganWith(t *testing.T) {
	d, lj, lr, rank := growing(t)
	early, other := d.session(0)
	ask := func(p session.Peer, end *rankEnd) (wire.RankHeader, string) {
		d.handleSession(session.From{Peer: p, Header: wire.RankHeader{Type: wire.MFrom, Request: 9}})
		h, body := end.reads()
		return h, string(body)
	}
	if h, _ := ask(early, other); h.Type != wire.MRefused || h.Request != 9 {
		t.Errorf("before its hello it is answered with %+v", h)
	}
	if h, text := ask(lr.Peer, rank); h.Type != wire.MFromIs || text != "" {
		t.Errorf("of a job that began by itself: %+v %q", h, text)
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.From = origin() })
	d.informed = false // so that it is not judged
	d.handleSession(session.Hello{Peer: early, Hello: wire.Hello{ABI: wire.RankABI, Job: lj.Job.Name}})
	leads := replica.Rank(0)
	for _, c := range []struct {
		peer  session.Peer
		end   *rankEnd
		seals *replica.Rank
	}{{lr.Peer, rank, &leads}, {early, other, nil}} {
		if h, text := ask(c.peer, c.end); h.Type != wire.MFromIs || h.Request != 9 || text != string(origin().JSON(c.seals)) {
			t.Errorf("answered with %+v %q", h, text)
		}
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Layout.Groups = nil })
	if h, _ := ask(lr.Peer, rank); h.Type != wire.MRefused {
		t.Errorf("while ranks name their groups it is answered with %+v", h)
	}
}

// What a rank says that its copies lack is reported, and said by the launcher at the first commit after it, once. The leader hears it again
// from a daemon's next report, the rank's next process says it anew.
func TestWhatCopiesLackIsSaid(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Peer, _ = d.session(0)
	d.live(lr, 3, 7, replica.Idle)
	launcher, end := d.listener()
	commit := func(s replica.Step) {
		d.viewed(control.View{Index: lj.Job.LastIndex + 1, Era: 1, Jobs: []*replica.Job{fixture.Changed(lj.Job, func(j *replica.Job) {
			j.Position.Step, j.Committed = s, fixture.Gen(3, s)
		})}})
	}
	d.says()
	d.handleSession(session.Lacks{Peer: lr.Peer, Text: "model.teacher.0.weight"})
	want := replica.Lacks{Rank: 0, Incarnation: 4, Text: "model.teacher.0.weight"}
	if r := fixture.Only[replica.NodeReport](d.says()); len(r) != 1 || len(r[0].Lacks) != 1 || r[0].Lacks[0] != want {
		t.Fatalf("reported %+v, want one with %+v", r, want)
	}
	commit(6)
	end.quiet(launcher) // of before
	commit(7)
	if text := end.note(); text != "step 7 lacks model.teacher.0.weight (rank 0): a restart from it is not the same run; session.noticed says what to do" {
		t.Errorf("it says %q", text)
	}
	d.handleSession(session.Lacks{Peer: lr.Peer, Text: "model.teacher.0.weight"}) // after a reconnect
	commit(8)
	end.quiet(launcher)
	d.handleSession(session.Lacks{Peer: lr.Peer, Text: ""})
	if r := d.reported(lj); len(r.Lacks) != 1 || r.Lacks[0].Text != "" || r.Lacks[0].Until != fixture.Gen(3, 7) {
		t.Errorf("taken back: %+v", r.Lacks)
	}
	commit(9)
	if r := d.reported(lj); r.Lacks != nil {
		t.Errorf("nothing lacks it any more: %+v", r.Lacks)
	}
	end.quiet(launcher)
}

// An exception that comes again at its step after a restart is no accident, and the launcher says so the second time, not the seventeenth.
func TestSameExceptionIsSaidAtOnce(t *testing.T) {
	const text = "in the optimizer step 9: ValueError: bad value in <Tensor at 0x7f01>\nand more"
	for what, c := range map[string]struct {
		epoch replica.Epoch
		step  replica.Step
		phase replica.Phase
		text  string
		again bool
	}{
		"again":            {5, 9, replica.Updating, strings.Replace(text, "0x7f01", "0x55ee", 1), true},
		"before the step":  {5, 8, replica.Idle, text, true},
		"another step":     {5, 10, replica.Updating, text, false},
		"another one":      {5, 9, replica.Updating, "in the optimizer step 9: KeyError: 'x'", false},
		"in the same life": {3, 9, replica.Updating, text, false},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		lr := d.attach(lj, 0)
		_, end := d.listener()
		d.live(lr, 3, 9, replica.Updating)
		d.failed(lj, lr, session.Fail{Header: wire.RankHeader{Epoch: 3}, Text: text})
		d.failed(lj, lr, session.Fail{Header: wire.RankHeader{Epoch: 3}, Text: "what the wrapper says of it"})
		d.live(lr, c.epoch, c.step, c.phase)
		d.failed(lj, lr, session.Fail{Header: wire.RankHeader{Epoch: c.epoch}, Text: c.text})
		d.launchers.Of(lj).Note("that is all")
		said := end.note()
		if again := strings.HasPrefix(said, "rank 0: the same exception at step 9 as before the last restart: in the optimizer step 9: ValueError: "); again != c.again {
			t.Errorf("%s: says %q", what, said)
		}
		if n := len(fixture.Only[control.Evidence](d.says())); n != 3 {
			t.Errorf("%s: %d faults are reported, want all 3", what, n)
		}
	}
}
