package host

import (
	"github.com/replicad/replicad/internal/host/rank"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// fencedAt is the daemon's account of a rank's fence, and the word that the rank reads.
func (d *rig) fencedAt(lr *rank.Rank) (account, word replica.Epoch) {
	return lr.Arena.Fence(), replica.Epoch(d.word(lr.Arena, atFence))
}

// Every fence word of the job is up before anyone is told.
func TestFenceRaisesWordsFirst(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	lj.Job.Ranks[1].Node, lj.Job.Ranks[1].NodeIncarnation = "n1", 11
	for r := range replica.Rank(2) {
		d.attach(lj, r)
	}
	d.fence(lj)
	for _, lr := range lj.Ranks {
		if account, word := d.fencedAt(lr); account != 3 || word != 3 {
			t.Errorf("rank %d's fence is at %d, its word at %d", lr.Rank, account, word)
		}
	}
	if said := d.says(); len(said) != 0 {
		t.Errorf("the leader was told %v before the fence was complete", said)
	}
	if lj.Fenced != 3 {
		t.Errorf("acknowledged for epoch %d", lj.Fenced)
	}
	if left := time.Until(lj.SettleBy); left <= d.cfg.Timing.Settle-time.Minute || left > d.cfg.Timing.Settle {
		t.Errorf("ranks have %v to settle, want %v", left, d.cfg.Timing.Settle)
	}
}

func TestFenceNeverFalls(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	lj := d.put(job)
	lr := d.attach(lj, 0)
	for _, c := range []struct{ closed, want replica.Epoch }{{2, 2}, {7, 7}, {3, 7}, {0, 7}, {6, 7}, {8, 8}} {
		lj.Job = fixture.Changed(job, func(j *replica.Job) { j.ClosedEpoch = c.closed })
		d.fence(lj)
		if account, word := d.fencedAt(lr); account != c.want || word != c.want || lj.Fenced != c.want {
			t.Errorf("after epoch %d was closed the fence is at %d, its word at %d, acknowledged %d; want %d", c.closed, account, word, lj.Fenced, c.want)
		}
	}
}

func TestFenceTellsRanks(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	waits, later := d.visitor(0), d.visitor(1)
	waits.asks(3, wire.MKVGet, wire.KV{Key: "k"})
	later.asks(4, wire.MKVGet, wire.KV{Key: "k"})
	peer, end := waits.peer, waits.end
	lr.Peer = peer
	lj.Job = fixture.Closed(lj.Job)
	d.fence(lj)
	if h, _ := end.reads(); h.Type != wire.MFence || h.Epoch != 3 || h.Incarnation != 4 {
		t.Errorf("the rank reads %+v, want the fence of epoch 3", h)
	}
	h, body := end.reads()
	v, err := wire.ParseKVValue(body)
	if h.Type != wire.MKVValue || h.Request != waits.last || err != nil || v.Code != wire.CodeFenced {
		t.Errorf("who waits at the rendezvous reads %+v, code %d: %v", h, v.Code, err)
	}
	if d.desk.Waits(fixture.JobID, 0) || !d.desk.Waits(fixture.JobID, 1) {
		t.Error("want the request of epoch 4 to be left, and it alone")
	}
	d.fence(lj)
	end.quiet(peer)
}

// The end of a job fences who still trains; a rank that left waits for BYE alone.
func TestFenceOfAnEndedJob(t *testing.T) {
	d := newRig(t)
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, recovery.Finished })
	job.Ranks[1].Node = "n1"
	lj := d.put(job)
	stays, left := d.attach(lj, 0), d.attach(lj, 1)
	left.Life = rank.Finished
	d.fence(lj)
	if account, word := d.fencedAt(stays); account != 3 || word != 3 {
		t.Errorf("a rank that trains has its fence at %d, word %d", account, word)
	}
	if account, word := d.fencedAt(left); account != 0 || word != 0 {
		t.Errorf("a rank that left has its fence at %d, word %d", account, word)
	}
}

// A live rank settles when it waits with its captures joined; until settleBy nothing of it is torn.
func TestSettle(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Loaded = 3
	d.live(lr, 3, 6, replica.Updating)
	if d.settle(lj) {
		t.Error("an open epoch has nothing to settle")
	}
	lj.Job = fixture.Closed(lj.Job)
	if d.settle(lj) {
		t.Error("settles before the fence")
	}
	d.fence(lj)
	d.stage(lr.Arena, slot(0), fixture.Gen(3, 6), 1)
	d.seal(lr.Arena, slot(1), fixture.Gen(3, 5), 1)
	d.setState(lr.Arena, ring(0), replica.SlotCopied)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	for range 3 {
		if !d.settle(lj) {
			t.Error("a rank inside its step counts as settled")
		}
	}
	if got := lr.Arena.Word(slot(0)).State(); got != replica.SlotCopying || !session.Alive(p.pid, p.start) {
		t.Errorf("before its time is over: slot %v, process alive %v", got, session.Alive(p.pid, p.start))
	}

	lj.SettleBy = time.Now().Add(-time.Millisecond)
	if !d.settle(lj) {
		t.Error("settled before what is unfinished was torn")
	}
	if got := states(lr.Arena, shm.Slot); !slices.Equal(got[:2], []replica.SlotState{replica.SlotTorn, replica.SlotSealed}) || lr.Arena.Word(ring(0)).State() != replica.SlotTorn {
		t.Errorf("after its time: slots %v, ring place 0 %v; want what is unfinished TORN, what is sealed whole", got, lr.Arena.Word(ring(0)).State())
	}
	if d.settle(lj) || !session.Alive(p.pid, p.start) {
		t.Errorf("after its places were torn: want it settled and alive (%v): a slow step is no reason to kill", session.Alive(p.pid, p.start))
	}
	lr.Life = rank.Stopped
	if d.settle(lj) {
		t.Error("a rank that waits in join is not settled")
	}
}

// With collective_window a rank inside its step is torn at once, as soon as nothing of the step before is unsealed: it waits for
// ranks that will not come.
func TestSettleCollectiveWindow(t *testing.T) {
	d := newRig(t)
	job := fixture.Closed(fixture.Job())
	job.Options.CollectiveWindow = true
	lj := d.put(job)
	lr := d.attach(lj, 0)
	lr.Loaded = 3
	d.live(lr, 3, 6, replica.Updating)
	d.fence(lj)
	d.seal(lr.Arena, slot(1), fixture.Gen(3, 5), 1)
	d.setState(lr.Arena, slot(1), replica.SlotCopied)
	if !d.settle(lj) || lr.Settled() {
		t.Error("settled while the step before is still being sealed")
	}
	d.setState(lr.Arena, slot(1), replica.SlotSealed)
	d.settle(lj)
	if !lr.Settled() || lr.Arena.Word(slot(1)).State() != replica.SlotSealed {
		t.Errorf("settled: %t, slot %v", lr.Settled(), lr.Arena.Word(slot(1)).State())
	}
	if d.settle(lj) {
		t.Error("still waits")
	}
}

// What a dead rank was copying is torn and given back; what it had COPIED is sealed in its name, if its good word vouches for it.
func TestRankDied(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.live(lr, 3, 6, replica.Updating)
	a := lr.Arena
	d.stage(a, slot(0), fixture.Gen(3, 6), 1)
	whole := d.seal(a, slot(1), fixture.Gen(3, 6), 2)
	d.setState(a, slot(1), replica.SlotCopied)
	d.seal(a, slot(2), fixture.Gen(3, 7), 3)
	d.setState(a, slot(2), replica.SlotCopied) // beyond what the device is known to have completed
	d.setState(a, slot(3), replica.SlotTorn)
	d.seal(a, ring(0), fixture.Gen(3, 7), 4)
	d.setState(a, ring(0), replica.SlotCopied)
	lr.Peer, _ = d.session(0)

	d.rankDied(lj, lr)
	if lr.Alive() || lr.Peer != nil {
		t.Errorf("alive %v, attached %v", lr.Alive(), lr.Peer != nil)
	}
	if lr.Settled() {
		t.Error("settled while what was COPIED is being hashed")
	}
	said := d.says()
	ev := fixture.Only[control.Evidence](said)
	if len(ev) != 1 || ev[0].Job != fixture.JobID || ev[0].Fault.Kind != replica.ProcessDead || ev[0].Fault.Epoch != 3 || ev[0].Fault.Rank != 0 || ev[0].Fault.Incarnation != 4 {
		t.Errorf("evidence %+v", ev)
	}
	d.until("the seals in its name", func() bool { return lr.Finishing == 0 })
	if !lr.Settled() {
		t.Error("not settled after all was sealed")
	}
	if got := states(a, shm.Slot); !slices.Equal(got, []replica.SlotState{replica.SlotFree, replica.SlotSealed, replica.SlotFree, replica.SlotFree}) {
		t.Errorf("slots %v", got)
	}
	for _, i := range []int{0, 2, 3} {
		if a.Word(slot(i)).Count() != 1 {
			t.Errorf("slot %d is handed out again in use %d: a leftover thread could change it", i, a.Word(slot(i)).Count())
		}
	}
	info, err := a.Sealed(slot(1))
	if err != nil || info.Flags&replica.DaemonMade == 0 || info.Root != whole.Root {
		t.Errorf("sealed in its name: %+v, %v", info, err)
	}
	if info, err := a.Sealed(ring(0)); err != nil || info.Flags&replica.DaemonMade == 0 {
		t.Errorf("its private part: %+v, %v", info, err)
	}
	reports := fixture.Only[replica.NodeReport](d.says())
	if len(reports) == 0 || !reports[len(reports)-1].Settled || len(reports[len(reports)-1].Parts) != 2 {
		t.Errorf("the leader is told %+v", reports)
	}
	d.rankDied(lj, lr)
	if again := fixture.Only[control.Evidence](d.says()); len(again) != 0 {
		t.Errorf("a dead rank dies again: %+v", again)
	}
}

// A rank that has said that it finished may exit.
func TestRankThatLeftIsNoFault(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Life = rank.Finished
	d.rankDied(lj, lr)
	if ev := fixture.Only[control.Evidence](d.says()); len(ev) != 0 || lr.Alive() {
		t.Errorf("evidence %+v, alive %v", ev, lr.Alive())
	}
}

// One process may hold several ranks, of one job or of two: its one exit ends them all.
func TestExitEndsEveryRankOfTheProcess(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	lj := d.put(job)
	for r := range replica.Rank(2) {
		lr := d.attach(lj, r)
		lr.PID, lr.Start = 4711, 12
	}
	old := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.ID, j.Phase = replica.JobID{9}, replica.Ended })
	ended := d.put(old)
	was := d.attach(ended, 0)
	was.PID, was.Start = 4711, 12
	bystander := d.attach(ended, 1)
	bystander.PID, bystander.Start = 4711, 13

	d.handleSession(session.Exited{PID: 4711, StartTime: 12})
	for r, lr := range lj.Ranks {
		if lr.Alive() {
			t.Errorf("rank %d lives on after its process", r)
		}
	}
	if was.Alive() {
		t.Error("the ended job's rank lives on after its process")
	}
	if !bystander.Alive() {
		t.Error("a rank of another process that had the pid died")
	}
}

func TestSupersededRankIsStoppedAndItsArenaKept(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	lr := d.attach(lj, 0)
	d.fence(lj)
	p := d.process()
	lr.PID, lr.Start = p.pid, p.start
	var end *rankEnd
	lr.Peer, end = d.session(0)
	peer := lr.Peer
	d.both(lr.Arena, 0, fixture.Gen(3, 5))
	d.supersede(lj)
	end.quiet(peer)
	if lj.Ranks[0] != lr {
		t.Fatal("retired though nobody took the rank over")
	}

	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Ranks = slices.Clone(j.Ranks)
		j.Ranks[0] = replica.Claimed{Incarnation: 6, Node: "n3", NodeIncarnation: 33}
	})
	d.supersede(lj)
	if _, o := end.ordered(); o.Action != wire.OrderStop || o.Code != wire.CodeStopped {
		t.Errorf("the superseded rank is ordered %+v", o)
	}
	if err := p.cmd.Wait(); err == nil || p.cmd.ProcessState.Exited() {
		t.Errorf("its process ended with %v, want it killed", err)
	}
	d.supersede(lj)
	end.quiet(peer)
	if lj.Ranks[0] != lr || len(lj.Retired) != 0 {
		t.Error("its arena is retired while the process is not known to be gone")
	}
	d.handleSession(session.Exited{PID: p.pid, StartTime: p.start})
	if lj.Ranks[0] != nil || len(lj.Retired) != 1 || lj.Retired[0] != lr.Arena {
		t.Fatalf("rank %v, retired %v: want the arena retired", lj.Ranks[0], lj.Retired)
	}
	if parts := lj.View().Copies(); len(parts) != 2 {
		t.Errorf("a retired arena holds %d parts, want 2", len(parts))
	}

	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Phase, j.Epoch, j.Lineage = replica.Open, 4, append(slices.Clone(j.Lineage), replica.Opened{Epoch: 4, Start: 5})
	})
	d.supersede(lj)
	if len(lj.Retired) != 1 {
		t.Fatal("an arena that holds the committed generation is given up")
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Position, j.Committed = replica.Position{Epoch: 4, Step: 6}, fixture.Gen(4, 6) })
	d.supersede(lj)
	if len(lj.Retired) != 0 {
		t.Error("an arena with nothing as new as the committed generation is kept")
	}
	if n := len(d.parked()); n != 0 {
		t.Errorf("the keeper still holds %d arenas", n)
	}
}

// The end of a job says BYE to who left, as often as they ask, stops who did not, and gives everything up once the processes are gone.
func TestEndedJobIsGivenUp(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	lj := d.put(job)
	left, trains := d.attach(lj, 0), d.attach(lj, 1)
	d.mirrorOf(lj, replica.OfRank(1), 1, false)
	var ends [2]*rankEnd
	left.Peer, ends[0] = d.session(0)
	trains.Peer, ends[1] = d.session(1)
	left.Life, left.LeaveTo = rank.Finished, 42
	lj.Job = fixture.Changed(job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, recovery.Finished })
	d.reconcile(lj)
	if h, _ := ends[0].reads(); h.Type != wire.MBye || h.Request != 42 {
		t.Errorf("who left reads %+v, want BYE", h)
	}
	d.reconcile(lj)
	ends[0].quiet(left.Peer)
	d.handleSession(session.Leave{Peer: left.Peer, Header: wire.RankHeader{Request: 43}}) // BYE came between two slices of its wait
	if h, _ := ends[0].reads(); h.Type != wire.MBye || h.Request != 43 {
		t.Errorf("who asks again reads %+v, want BYE", h)
	}
	if h, _ := ends[1].reads(); h.Type != wire.MFence {
		t.Errorf("who trains reads %+v, want the fence", h)
	}
	if _, o := ends[1].ordered(); o.Action != wire.OrderStop {
		t.Errorf("who trains is ordered %+v, want to stop", o)
	}
	if len(lj.Mirrors.All()) != 0 || len(lj.Ranks) != 2 {
		t.Errorf("%d mirrors, %d ranks: want none, and both until their processes end", len(lj.Mirrors.All()), len(lj.Ranks))
	}
	d.rankDied(lj, left)
	d.rankDied(lj, trains)
	if len(lj.Ranks) != 0 || len(fixture.Only[control.Evidence](d.says())) != 0 {
		t.Errorf("%d ranks are left", len(lj.Ranks))
	}
}

// A job ends while a process of it waits for the plan of its next epoch, and nobody writes a durable generation of it: the view then has none
// of its ranks any more. The process is stopped, and the daemon outlives it.
func TestEndWhileARankWaits(t *testing.T) {
	d := newRig(t)
	job := fixture.Closed(fixture.Job())
	lj := d.put(job)
	waits := d.attach(lj, 0)
	var end *rankEnd
	waits.Peer, end = d.session(0)
	waits.Life = rank.Stopped
	d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{fixture.Ended(job, "ended by an operator")}})
	if h, _ := end.reads(); h.Type != wire.MFence {
		t.Errorf("it reads %+v, want the fence", h)
	}
	if _, o := end.ordered(); o.Action != wire.OrderStop {
		t.Errorf("it is ordered %+v, want to stop", o)
	}
	if v := lj.View(); len(v.Ranks) != 1 || v.Ranks[0].Waits {
		t.Errorf("%+v: want one rank, which waits for nothing", v.Ranks)
	}
}

// A rank that stopped under an open epoch is evidence, where no fault explains it in time, once in that time.
func TestPeersLost(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	long := time.Now().Add(-recovery.PeersLost - time.Second)
	for what, c := range map[string]struct {
		set  func()
		want int
	}{
		"trains":              {func() { lr.Life = rank.Training }, 0},
		"stopped just now":    {func() { lr.Life, lr.StoppedAt = rank.Stopped, time.Now() }, 0},
		"stopped, not loaded": {func() { lr.Loaded = 2 }, 0},
		"dead":                {func() { lr.Life = rank.Dead }, 0},
		"closed":              {func() { lj.Job = fixture.Closed(lj.Job) }, 0},
		"stopped":             {func() {}, 1},
	} {
		lj.Job = fixture.Job()
		lr.Life, lr.StoppedAt, lr.Loaded = rank.Stopped, long, 3
		c.set()
		d.peersLost(lj)
		d.peersLost(lj)
		if ev := fixture.Only[control.Evidence](d.says()); len(ev) != c.want || c.want > 0 && (ev[0].Fault.Kind != replica.Exception || ev[0].Fault.Rank != 0 || ev[0].Fault.Epoch != 3) {
			t.Errorf("%s: evidence %+v, want %d", what, ev, c.want)
		}
	}
}

// A rank hears why its job is over, or where to ask: a reason that does not fit is never cut in two.
func TestARankIsToldWhyItHasToStop(t *testing.T) {
	long := "do not requeue: recovered 17 times without a step beyond 0; the last cause was exception of rank 0"
	for _, c := range []struct{ reason, want string }{
		{"finished", "the job has ended: finished"},
		{long, "the job has ended: `replicad status` says why"},
	} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, c.reason }))
		lr := d.attach(lj, 0)
		var end *rankEnd
		lr.Peer, end = d.session(0)
		d.supersede(lj)
		if _, o := end.ordered(); o.Action != wire.OrderStop || o.Text != c.want {
			t.Errorf("ended by %q: the rank is ordered %+v", c.reason, o)
		}
	}
}
