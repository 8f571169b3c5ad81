package launchers

import (
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// The launcher's exit code tells a scheduler whether to start the job again.
func TestLauncherLearnsHowItsJobEnded(t *testing.T) {
	for reason, want := range map[string]int32{
		recovery.Finished:                 0,
		"ended by an operator":            1,
		"":                                1,
		"the site says: do not requeue: ": 1,
		recovery.DoNotRequeue + "recovered 8 times without a step beyond 5": wire.ExitDoNotRequeue,
	} {
		d := newRig(t)
		peer, end := d.session()
		l := &launcher{peer: peer, hello: wire.RunHello{Job: "job"}, accepted: true, job: fixture.JobID, starts: starts{}}
		d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, reason }))
		d.serve(l, time.Now())
		h, body := end.Reads()
		done, err := wire.ParseRefused(body)
		if err != nil || h.Type != wire.MRunDone || done.Code != want || done.Text != reason || !l.done {
			t.Errorf("%q: message %d, code %d, %q, %v; want code %d", reason, h.Type, done.Code, done.Text, err, want)
		}
	}
}

// A daemon may have died between a job's end and the word of it to the launcher, which comes back to the next one: it is told then, and
// makes no new job of the name, nor takes part in one that another launcher made.
func TestLauncherComesBackAfterTheEnd(t *testing.T) {
	ended := func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, recovery.Finished }
	other := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.ID = replica.JobID{0: 0xee} })
	for what, c := range map[string]struct {
		jobs []*replica.Job
		code int32
		text string
	}{
		"finished":                  {[]*replica.Job{fixture.Changed(fixture.Job(), ended)}, 0, recovery.Finished},
		"and made again":            {[]*replica.Job{fixture.Changed(fixture.Job(), ended), other}, 0, recovery.Finished},
		"forgotten":                 {nil, 1, "nobody knows any more how"},
		"forgotten, and made again": {[]*replica.Job{other}, 1, "nobody knows any more how"},
	} {
		d := newRig(t)
		peer, end := d.session()
		for _, j := range c.jobs {
			d.put(j)
		}
		d.informed = true
		d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 1, Joined: fixture.JobID}}, time.Now())
		if said := d.says(); len(said) != 0 {
			t.Errorf("%s: it asks for %+v", what, said)
		}
		if h, body := end.Reads(); h.Type != wire.MRunOK {
			t.Errorf("%s: message %d %q", what, h.Type, body)
		}
		h, body := end.Reads()
		done, err := wire.ParseRefused(body)
		if err != nil || h.Type != wire.MRunDone || done.Code != c.code || !strings.Contains(done.Text, c.text) || !d.all[peer.ID()].done {
			t.Errorf("%s: message %d, code %d, %q, %v", what, h.Type, done.Code, done.Text, err)
		}
	}
	d := newRig(t)
	peer, end := d.session()
	d.put(fixture.Job())
	d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: 2, Capacity: 1, Joined: fixture.JobID}}, time.Now())
	if h, _ := end.Reads(); h.Type != wire.MRunOK || d.all[peer.ID()].done {
		t.Errorf("of a job that runs: message %d", h.Type)
	}
}

// A launcher waits for the processes of a finished job; those that are no ranks of it would never end, so the daemon ends them. One that
// has ended by itself meanwhile keeps its own status.
func TestLeftoversOfAFinishedJobAreStopped(t *testing.T) {
	d := newRig(t)
	peer, end := d.session()
	l := &launcher{peer: peer, hello: wire.RunHello{Job: "job"}, accepted: true, job: fixture.JobID, starts: starts{0: {attached: true}, 1: {attached: true}, 3: {attached: true}}}
	for r := range replica.Rank(4) {
		l.starts.runs(r, 0, time.Now())
	}
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase, j.EndReason = replica.Ended, recovery.Finished+" at step 9, newest commit step 8"
	}))
	lj.ranks[0] = &Rank{Alive: true, Left: true}
	lj.ranks[1] = &Rank{Alive: true} // superseded by one elsewhere; 2 never attached, 3 has ended
	d.serve(l, time.Now())
	stopped := map[replica.Rank]bool{}
	h, body := end.Reads()
	for ; h.Type == wire.MRunStop; h, body = end.Reads() {
		s, err := wire.ParseRunStop(body)
		if err != nil {
			t.Fatal(err)
		}
		stopped[s.Rank] = true
	}
	if len(stopped) != 2 || !stopped[1] || !stopped[2] || h.Type != wire.MRunDone {
		t.Errorf("stopped are %v, want ranks 1 and 2, before message %d", stopped, h.Type)
	}
}

// The launchers that one user may have are looked at one by one, not each beside all others.
func TestManyLaunchersAreLookedAtOnce(t *testing.T) {
	work := func(n int) float64 {
		d := newRig(t)
		d.put(fixture.Job())
		for id := range uint64(n) {
			d.all[id] = &launcher{hello: wire.RunHello{Job: "job"}, accepted: true, job: fixture.JobID, starts: starts{0: {running: true, since: time.Now()}}}
		}
		return testing.AllocsPerRun(3, func() { d.KillStuck(time.Now()) })
	}
	if few, many := work(50), work(200); many > 8*few {
		t.Errorf("four times the launchers take %.0f allocations instead of %.0f", many, few)
	}
}

// earlyEnd has a launcher report that its process of rank 0 ended, and returns the reasons for which the node asks to end the job.
func (d *rig) earlyEnd(peer session.Peer, status int32) (reasons []string) {
	d.t.Helper()
	d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: 0, Status: status, PID: 4711}}, time.Now())
	for _, m := range d.says() {
		if end, ok := m.(control.EndRequest); ok {
			reasons = append(reasons, end.Reason)
		}
	}
	return reasons
}

// A program that ends before it attaches (an import that fails, say) would be started again for ever: no recovery begins, so none
// is counted. In every phase of the job, startTries such ends in a row end it.
func TestProgramThatNeverAttaches(t *testing.T) {
	for _, phase := range []replica.JobPhase{replica.Opening, replica.Open, replica.Closed} {
		d := newRig(t)
		peer, _ := d.session()
		lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = phase }))
		d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: lj.job.Layout.World, Capacity: 1}}, time.Now())
		l := d.all[peer.ID()]
		d.says()
		early := func(n int) {
			t.Helper()
			for range n {
				if got := d.earlyEnd(peer, 3); len(got) > 0 {
					t.Fatalf("phase %v: the job is ended too early: %q", phase, got)
				}
			}
		}
		early(startTries - 1)
		d.Attached("another-job", 0)
		if got := d.earlyEnd(peer, 3); len(got) != 1 || !strings.HasPrefix(got[0], recovery.DoNotRequeue) || !strings.Contains(got[0], "rank 0 ended 5 times in a row on node n1 before it attached, the last time with status 3") {
			t.Errorf("phase %v: reasons %q", phase, got)
		}
		if d.log.Count(`"start_failed"`) != startTries || d.log.Count(`"in_a_row":5`) != 1 {
			t.Errorf("phase %v: a start in vain is not in the log", phase)
		}

		// One that attaches ends the row; while it is attached its end is recovery's, though it may be a child of the launcher's.
		d.Attached("job", 0)
		early(startTries + 1)
		l.start(lj.job, 0, time.Now())
		early(startTries - 1)
		// So does time.
		l.starts[0].retryAt = l.starts[0].retryAt.Add(-startWindow - d.cfg.Timing.Start - 2*time.Second)
		early(startTries - 1)
	}
}

// A launcher that is full with a rank of the leader's choice isn't asked for the one it prefers: its refusals would count as starts in vain.
func TestFullLauncherStartsNoMore(t *testing.T) {
	d := newRig(t)
	peer, _ := d.session()
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase = replica.Opening
		for r := range j.Ranks {
			j.Ranks[r] = replica.Claimed{}
		}
	}))
	d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: lj.job.Layout.World, Capacity: 1}}, time.Now())
	l := d.all[peer.ID()]
	l.start(lj.job, 1, time.Now())
	l.hello.Ranks = []replica.Rank{0}
	d.Serve(time.Now())
	if l.runs(0) {
		t.Error("it is to start rank 0 beside rank 1, with a capacity of one")
	}
	l.starts.over(1)
	d.Serve(time.Now())
	if !l.runs(0) {
		t.Error("it has room for rank 0, and is not asked")
	}
}

// A process that neither attaches nor asks for anything is stopped after Timing.Start, and said why. One that waits for others at the
// rendezvous, or for its claim, has until then once more.
func TestProcessThatHangsBeforeItAttaches(t *testing.T) {
	d := newRig(t)
	peer, end := d.session()
	lj := d.put(fixture.Job())
	d.Handle(session.RunHello{Peer: peer, RunHello: wire.RunHello{Job: "job", World: lj.job.Layout.World, Capacity: 1}}, time.Now())
	l := d.all[peer.ID()]
	l.start(lj.job, 0, time.Now())
	for h, _ := end.Reads(); h.Type != wire.MRunStart; h, _ = end.Reads() {
	}
	d.running(peer, 0, 4711)
	ago := func(since time.Duration) { l.starts.entry(0).running, l.starts[0].since = true, time.Now().Add(-since) }
	limit := d.cfg.Timing.Start

	ago(limit - time.Minute)
	d.KillStuck(time.Now())
	end.quiet()
	ago(limit + time.Minute)
	d.expects[0] = true
	d.KillStuck(time.Now())
	d.expects[0] = false
	d.KillStuck(time.Now())
	end.quiet()
	if t.Failed() {
		t.Fatal("a process that waits for its daemon was taken for one that hangs")
	}
	l.starts[0].attached = true
	ago(limit + time.Minute)
	d.KillStuck(time.Now())
	end.quiet()

	l.starts[0].attached = false
	d.KillStuck(time.Now())
	h, body := end.Reads()
	if note, err := wire.ParseRefused(body); err != nil || h.Type != wire.MRunNote || !strings.Contains(note.Text, "rank 0: killed, since it had not attached after 10m0s") {
		t.Errorf("message %d, %q, %v; want a note", h.Type, note.Text, err)
	}
	h, body = end.Reads()
	if stop, err := wire.ParseRunStop(body); err != nil || h.Type != wire.MRunStop || stop != (wire.RunStop{Rank: 0, Signal: uint32(syscall.SIGKILL)}) {
		t.Errorf("message %d, %+v, %v; want the stop of rank 0", h.Type, stop, err)
	}
	d.KillStuck(time.Now()) // its launcher has not told of its end yet
	end.quiet()
}

// A launcher's groups and the job's: by number, named by the ranks, or nothing said.
func TestLauncherGroups(t *testing.T) {
	numbered := func(groups ...replica.GroupID) control.CreateRequest {
		return (&launcher{hello: wire.RunHello{Job: "job", World: uint32(len(groups)), Groups: groups}}).create(1)
	}
	unsaid := func(world uint32) control.CreateRequest {
		return (&launcher{hello: wire.RunHello{Job: "job", World: world}}).create(1)
	}
	if all := unsaid(2); !reflect.DeepEqual(all.Layout.Groups, []replica.GroupID{0, 0}) {
		t.Errorf("a launcher that says nothing of groups asks for %+v", all)
	}
	named := (&launcher{hello: wire.RunHello{Job: "job", World: 2, Flags: wire.RunNameGroups}}).create(1)
	if !named.NameGroups || named.Layout.Groups != nil {
		t.Errorf("a launcher whose ranks name their groups asks for %+v", named)
	}
	settled := &replica.Job{Name: "job", Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 1}}}
	naming := fixture.Changed(settled, func(j *replica.Job) { j.Naming = []replica.GroupID{0, replica.NoGroup} })
	for _, c := range []struct {
		ask  control.CreateRequest
		job  *replica.Job
		text string
	}{
		{numbered(0, 1), settled, ""},
		{unsaid(2), settled, ""},
		{unsaid(2), naming, ""},
		{unsaid(3), settled, "runs with 2 ranks, not 3"},
		{named, settled, ""},
		{named, naming, ""},
		{numbered(0, 0), settled, "groups [0 1], not 2 in [0 0]"},
		{numbered(0, 1, 2), settled, "runs with 2 ranks in groups [0 1], not 3 in [0 1 2]"},
		{numbered(0, 1), naming, "leave --groups out"},
		{changedRequest(named, 3), naming, "runs with 2 ranks, not 3"},
	} {
		if got := c.ask.OtherLayout(c.job); !strings.Contains(got, c.text) || got != "" && c.text == "" {
			t.Errorf("%+v of a job with groups %v, naming %v: %q, want %q", c.ask.Layout, c.job.Layout.Groups, c.job.Naming, got, c.text)
		}
	}
	// Ranks that are started are told what is known.
	d := newRig(t)
	for _, job := range []*replica.Job{naming, settled} {
		peer, end := d.session()
		l := &launcher{peer: peer, starts: starts{1: {tries: 2}}}
		l.start(job, 1, time.Now())
		_, body := end.Reads()
		start, err := wire.ParseRunStart(body)
		want := wire.RunStart{Rank: 1, World: 2, Group: 1, Early: 2, Groups: []replica.GroupID{0, 1}}
		if job == naming {
			want = wire.RunStart{Rank: 1, World: 2, Group: replica.NoGroup, Early: 2}
		}
		if err != nil || !reflect.DeepEqual(start, want) {
			t.Errorf("started as %+v, %v; want %+v", start, err, want)
		}
	}
}

func changedRequest(c control.CreateRequest, world uint32) control.CreateRequest {
	c.Layout.World = world
	return c
}

// What a launcher asks for reaches the job it creates; on one that runs, flags that say something else are named with both values.
func TestLauncherOptions(t *testing.T) {
	h := wire.RunHello{Job: "job", World: 2, Groups: []replica.GroupID{0, 1}, PrivateCapMB: 3, Nondeterministic: []replica.GroupID{1}, Flags: wire.RunRequireVotes | wire.RunCollectiveWindow, Cadence: 2}
	o := (&launcher{hello: h}).create(1).Options
	if want := (replica.Options{Cadence: 2, PrivateCap: 3 << 20, RequireVotes: true, CollectiveWindow: true, Nondeterministic: []bool{false, true}}); !reflect.DeepEqual(o, want) {
		t.Errorf("options %+v, want %+v", o, want)
	}
	if differ := otherOptions(o, o.WithDefaults()); len(differ) != 0 {
		t.Errorf("its own job differs: %q", differ)
	}
	if differ := otherOptions(replica.Options{}, o.WithDefaults()); len(differ) != 0 {
		t.Errorf("without flags: %q", differ)
	}
	differ := strings.Join(otherOptions(o, replica.Options{Cadence: 1}.WithDefaults()), "; ")
	for _, want := range []string{"--cadence 2 (the job runs with 1)", "--private-cap-mb 3 (the job runs with 64)", "--require-votes true (the job runs with false)", "--nondeterministic [1] (the job runs with [])"} {
		if !strings.Contains(differ, want) {
			t.Errorf("%q is not in %q", want, differ)
		}
	}
}

// A rank whose process has attached and died is not starting, though its launcher has not reaped it yet; one whose former process is dead is.
func TestStarting(t *testing.T) {
	lives, died := &Rank{Alive: true}, &Rank{}
	l := &launcher{accepted: true, hello: wire.RunHello{Job: "j"}, starts: starts{0: {running: true, pid: 12}, 1: {running: true, pid: 13, attached: true}, 2: {running: true, attached: true}, 3: {running: true, pid: 14, halted: true}}}
	other := &launcher{accepted: true, hello: wire.RunHello{Job: "k"}, starts: starts{7: {running: true}}}
	d := newRig(t)
	d.all[1], d.all[2] = l, other
	lj := d.put(&replica.Job{Name: "j"})
	lj.ranks = map[replica.Rank]*Rank{1: died, 2: lives, 3: died}
	if got, pids, halted := d.starting(lj); !slices.Equal(got, []replica.Rank{0, 3}) || !slices.Equal(pids, []uint64{12, 14}) || !slices.Equal(halted, []replica.Rank{3}) {
		t.Errorf("starting %v, processes %v, stopped %v; want 0 and 3, 12 and 14, 3", got, pids, halted)
	}
}

// Where a launcher says nothing of durable writes, a configuration that names a durable_dir has jobs write by themselves.
func TestJobsWriteWhereADurableDirIsSet(t *testing.T) {
	for _, tc := range []struct {
		dir         string
		says, wants replica.Step
	}{{"/state/durable", 0, 0}, {"/mnt", 0, replica.DurableAuto}, {"/mnt", replica.DurableNever, 0}, {"/mnt", 500, 500}, {"/state/durable", 500, 500}, {"/state/durable", replica.DurableAuto, replica.DurableAuto}} {
		h := &Pool{cfg: &config.Config{StateDir: "/state", DurableDir: tc.dir}}
		l := &launcher{hello: wire.RunHello{Job: "job", World: 1, DurableEvery: uint32(tc.says)}}
		if got := h.request(l, 1).Options.DurableEvery; got != tc.wants {
			t.Errorf("durable_dir %s, launcher %s: %s, want %s", tc.dir, replica.DurableText(tc.says), replica.DurableText(got), replica.DurableText(tc.wants))
		}
		if differ := otherOptions(l.create(0).Options, replica.Options{DurableEvery: tc.wants}); len(differ) > 0 {
			t.Errorf("a launcher that asked for the same is told that it differs: %v", differ)
		}
	}
}

// Launchers of a job that was stopped are told so, and one that comes anew has it go on: the leader is asked. Nobody goes on with a job that is
// being ended, and with another user's nobody else does.
func TestLaunchersOfAStoppedJob(t *testing.T) {
	stopped := func(end bool) *replica.Job {
		return fixture.Closed(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Stop = &replica.Stop{Reason: "stopped by an operator", End: end} }))
	}
	for what, c := range map[string]struct {
		job    *replica.Job
		joined replica.JobID
		owner  uint32
		asks   bool // the leader
		code   int32
		text   string
	}{
		"it was there":                 {job: stopped(false), joined: fixture.JobID, code: wire.DoneStopped, text: "stopped by an operator; step 5 stays in memory"},
		"it was there, the job ends":   {job: stopped(true), joined: fixture.JobID, code: 1, text: "step 5 is being written to the durable tier first"},
		"it goes on":                   {job: stopped(false), asks: true},
		"it would go on, the job ends": {job: stopped(true), code: wire.CodeAgain, text: "is being ended"},
		"another user's":               {job: stopped(false), owner: 1, code: wire.CodeRefused, text: "4713"},
	} {
		d := newRig(t)
		peer, end := d.session()
		c.job.Owner = 4712 + c.owner
		d.put(c.job)
		d.informed = true
		l := &launcher{peer: peer, user: 4712, hello: wire.RunHello{Job: "job", World: 2, Capacity: 1, Joined: c.joined}, starts: starts{}}
		d.all[peer.ID()] = l
		d.serve(l, time.Now())
		asked := fixture.Only[control.CreateRequest](d.says())
		if c.asks != (len(asked) == 1) {
			t.Errorf("%s: the leader is asked for %+v", what, asked)
		}
		if c.asks {
			continue
		}
		h, body := end.Reads()
		if h.Type == wire.MRunOK {
			h, body = end.Reads()
		}
		if said, err := wire.ParseRefused(body); err != nil || said.Code != c.code || !strings.Contains(said.Text, c.text) {
			t.Errorf("%s: message %d, code %d, %q, %v", what, h.Type, said.Code, said.Text, err)
		}
	}
}

// A launcher is any user's process: a rank that is none neither ends the daemon nor is remembered.
func TestALauncherNamesARankThatIsNone(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase = replica.Opening }))
	peer, _ := d.listener()
	for _, r := range []replica.Rank{2, 4_000_000_000} {
		d.Handle(session.RunRunning{Peer: peer, RunExited: wire.RunExited{Rank: r, PID: 4711}}, time.Now())
		d.Handle(session.RunExited{Peer: peer, RunExited: wire.RunExited{Rank: r, PID: 4711, Status: 1}}, time.Now())
	}
	if l := d.all[peer.ID()]; len(l.starts) != 0 {
		t.Errorf("it remembers %v", l.starts)
	}
}
