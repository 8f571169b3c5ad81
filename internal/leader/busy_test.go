package leader

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// A throne is a leader that runs, of a cluster of one voter, with nodes linked to it over pipes. Tests have it in virtual time: on a machine without time
// a handshake or a frame takes longer than a link waits for it, and one step longer than a leader may be at.
type throne struct {
	*Leader
	t     testing.TB
	log   *fixture.Lines
	ctx   context.Context
	links sync.WaitGroup
}

func newThrone(t testing.TB) *throne {
	t.Helper()
	cons := lonelyLog(t)
	th := &throne{t: t, log: &fixture.Lines{}}
	ctx, cancel := context.WithCancel(context.Background())
	th.ctx = ctx
	th.Leader = New(Config{Log: cons, Cluster: fixture.Cluster, Timing: config.Default().Timing, Journal: journaltest.New(t, th.log)})
	for {
		if _, _, _, self := cons.Leadership(); self {
			break
		}
		<-cons.Changes()
	}
	var running sync.WaitGroup
	running.Go(func() { th.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		th.links.Wait()
		cons.Close()
	})
	return th
}

// seat is a node's end of a link, and its answers by kind.
type seat struct {
	net.Conn
	t testing.TB
}

// link links a node and waits until it is welcome.
func (th *throne) link(name replica.NodeName, inc replica.NodeIncarnation) *seat {
	th.t.Helper()
	near, far := net.Pipe()
	th.links.Go(func() { th.Serve(th.ctx, name, far) })
	s := &seat{near, th.t}
	th.t.Cleanup(func() { near.Close() })
	s.say(control.KindHello, control.Hello{Cluster: fixture.Cluster, Node: replica.Node{Name: name, Incarnation: inc, Session: 1, Addr: string(name) + ":7000"}})
	if k, _ := s.next(); k != control.KindWelcome {
		th.t.Fatalf("message %d instead of a welcome", k)
	}
	return s
}

func (s *seat) say(k wire.Kind, v any) {
	if err := wire.Write(s, k, v); err != nil {
		s.t.Errorf("the link is lost: %v", err)
	}
}

func (s *seat) next() (wire.Kind, []byte) {
	s.t.Helper()
	s.SetReadDeadline(time.Now().Add(fixture.Patience))
	k, b, err := wire.Read(s, control.MaxLinkFrame)
	if err != nil {
		s.t.Fatalf("the link is lost: %v", err)
	}
	return k, b
}

// until reads on to a message of a kind.
func (s *seat) until(kind wire.Kind) []byte {
	s.t.Helper()
	for {
		if k, b := s.next(); k == kind {
			return b
		}
	}
}

// busy has the leader do one thing until it is freed.
func (th *throne) busy() (free func()) {
	begun, gate := make(chan struct{}), make(chan struct{})
	th.post(proposalOutcome{done: func(lock.Outcome, error) { close(begun); <-gate }})
	<-begun
	free = sync.OnceFunc(func() { close(gate) })
	th.t.Cleanup(free)
	return free
}

func (th *throne) create(name string, id replica.JobID, l replica.Layout, o replica.Options) {
	th.t.Helper()
	if _, out, err := th.cons.Propose(th.ctx, replica.CreateJob{ID: id, Name: name, Layout: l, Options: o, Copies: 1, Creator: "n1"}); err != nil || out.Err != nil {
		th.t.Fatal(err, out.Err)
	}
}

// A job ends on an operator's word whatever the leader is busy with, by a node's link and on the leader itself.
func TestJobEndsThoughTheLeaderIsBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		th := newThrone(t)
		for i, name := range []string{"by-link", "here"} {
			th.create(name, replica.JobID{byte(i + 1)}, replica.Layout{World: 1, Groups: []replica.GroupID{0}}, replica.Options{})
		}
		n := th.link("n1", 11)
		n.until(control.KindView)
		free := th.busy()
		n.say(control.KindOperator, control.Order{ID: 9, Verb: control.EndJob, Job: "by-link", Why: "enough"})
		reply, err := control.DecodeAs[control.OperatorReply](n.until(control.KindOperatorReply))
		if err != nil || reply.ID != 9 || !strings.Contains(reply.Text, "job by-link has ended, newest commit step 0") {
			t.Errorf("answered %+v, %v", reply, err)
		}
		answer, leads := th.BesideHere(t.Context(), control.Order{Verb: control.EndJob, Job: "here", Why: "enough"})
		if !leads || answer.Refused != "" {
			t.Errorf("on the leader: %v, %+v", leads, answer)
		}
		for _, j := range th.cons.State().Jobs {
			if j.Phase != replica.Ended || j.EndReason != "enough" {
				t.Errorf("job %s is %v: %q", j.Name, j.Phase, j.EndReason)
			}
		}
		for range operatorsMost {
			th.ending <- struct{}{}
		}
		if answer := th.act(t.Context(), control.Order{Verb: control.EndJob, Job: "here"}); !strings.Contains(answer.Refused, "ask again") {
			t.Errorf("with as many under way as there may be: %+v", answer)
		}
		free()
	})
}

// What an operator asks goes before whatever jobs have brought.
func TestOperatorsGoFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		th := newThrone(t)
		free := th.busy()
		var order []string
		done := make(chan struct{})
		for i := range 100 {
			th.post(proposalOutcome{done: func(lock.Outcome, error) {
				if order = append(order, "job"); i == 99 {
					close(done)
				}
			}})
		}
		th.postFirst(proposalOutcome{done: func(lock.Outcome, error) { order = append(order, "operator") }})
		free()
		<-done
		if at := slices.Index(order, "operator"); at != 0 {
			t.Errorf("an operator's word is the %dth of %d", at+1, len(order))
		}
	})
}

// A step that takes long is no reason for nodes to link anew: they hear of the leader all the same, until it has been at one thing for so
// long that it counts as hung.
func TestBeatsGoOnWhileTheLeaderIsBusy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		th := newThrone(t)
		n := th.link("n2", 22)
		th.busy()
		for range 3 {
			n.until(control.KindBeat)
		}
		if th.hung() {
			t.Error("a leader that is busy counts as hung")
		}
		th.steps.since.Store(int64(th.now() - stepHung - time.Second))
		if !th.hung() {
			t.Error("a leader that has been at one step for longer than stepHung does not count as hung")
		}
	})
}

// A step that takes longer than its budget is logged with what it was, and counted in status.
func TestSlowStepsAreCounted(t *testing.T) {
	c := newChair(t)
	job := fixture.Job()
	c.step(nodeMessage{msg: replica.NodeReport{}}, func() {})
	if s := c.steps.status(); s.OverBudget != 0 || c.log.Count("slow_step") != 0 {
		t.Fatalf("a short step is counted: %+v", s)
	}
	c.step(nodeMessage{msg: replica.NodeReport{}}, func() {
		began := c.now()
		c.pass(2 * stepBudget)
		c.timed(job, recovery.Tick{}, began)
	})
	want := control.StepStatus{BudgetMS: 250, OverBudget: 1, Longest: "replica.NodeReport: recovery.Tick", LongestJob: "job"}
	said := c.steps.status()
	if said.LongestMS < 500 { // and what the machine took besides
		t.Errorf("the longest step took %d ms, want 500 or more", said.LongestMS)
	}
	want.LongestMS = said.LongestMS
	if said != want {
		t.Errorf("status %+v, want %+v", said, want)
	}
	if c.log.Count(`"event":"slow_step"`) != 1 {
		t.Error("it is not logged")
	}
	if st := (control.LeaderStatus{Steps: c.steps.status()}).Fit(); st.Steps != want {
		t.Errorf("in an answer to status: %+v", st.Steps)
	}
}

// A large job rests after a look at it: what happens meanwhile is learned, and looked at together. A small one never does.
func TestLargeJobRests(t *testing.T) {
	for ranks, rests := range map[int]bool{2: false, largeFrom: true} {
		c := newChair(t)
		n := c.node("n2", 22)
		job := fixture.Job()
		job.Phase, job.ClosedEpoch, job.Lineage, job.Committed = replica.Opening, job.Epoch-1, nil, replica.Generation{}
		job.Layout, job.Ranks = replica.Apart(uint32(ranks)), make([]replica.Claimed, ranks)
		job.Mirrors, job.GroupMirrors, job.GroupGeometry = make([][]replica.NodeName, ranks), make([][]replica.NodeName, ranks), make([]replica.Digest, ranks)
		led := c.knows(job)
		c.pass(time.Minute)
		led.restsUntil = 0
		if rests {
			led.restsUntil = c.now() + time.Hour
		}
		c.message(t.Context(), n, replica.NodeReport{Job: fixture.JobID, Holder: silentNode, Session: 1, Seq: 1, Settled: true, Offers: 1})
		if got := len(fixture.Only[control.Offers](told(t, n))); (got == 0) != rests || led.due != rests {
			t.Errorf("%d ranks: %d offers at once, due: %v", ranks, got, led.due)
		}
		if rests {
			led.restsUntil = 0
			c.tick(t.Context())
			if got := len(fixture.Only[control.Offers](told(t, n))); got != 1 || led.due {
				t.Errorf("%d ranks: %d offers after its rest", ranks, got)
			}
		}
	}
	c := newChair(t)
	if at := c.rest(largeFrom-1, time.Hour); at != 0 {
		t.Errorf("a small job rests until %v", at)
	}
	if at := c.rest(largeFrom, time.Hour); at <= 0 || at > c.now()+restMost {
		t.Errorf("a large one rests until %v", at)
	}
}

// A job for which there are too few seats says so: in status at once, to its launchers after claim_timeout.
func TestTooFewSeatsAreSaid(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	job := fixture.Job()
	job.Phase, job.ClosedEpoch, job.Lineage, job.Committed = replica.Opening, job.Epoch-1, nil, replica.Generation{}
	job.Layout, job.Ranks = replica.Apart(4096), make([]replica.Claimed, 4096)
	job.Mirrors, job.GroupMirrors, job.GroupGeometry = make([][]replica.NodeName, 4096), make([][]replica.NodeName, 4096), make([]replica.Digest, 4096)
	led := c.knows(job)
	c.message(t.Context(), n, replica.NodeReport{Job: fixture.JobID, Holder: silentNode, Session: 1, Seq: 1, Settled: true, Offers: 8, Launchers: 1})
	c.pass(2 * time.Second)
	led.restsUntil = 0
	c.recoverStep(t.Context(), fixture.JobID, led, recovery.Tick{})
	want := "job job waits for 4088 processes: offered 0 that it can use, for a world of 4096; start `replicad run --job job` on more nodes or with a larger --capacity, or end it (replicad job end job) and start it with a smaller --world"
	st := c.said()
	if len(st[0].Waiting) == 0 || st[0].Waiting[0] != want {
		t.Errorf("status says %q", st[0].Waiting)
	}
	for _, text := range st[0].Waiting {
		if len(text) > 300 {
			t.Errorf("status says %d bytes: %.80s", len(text), text)
		}
	}
	told(t, n)
	said := func() int {
		c.sayShort(led)
		return len(fixture.Only[control.Tell](told(t, n)))
	}
	if n := said(); n != 0 {
		t.Errorf("launchers are told %d times at once", n)
	}
	c.pass(c.timing.Claim)
	if n := said(); n != 1 {
		t.Errorf("after claim_timeout they are told %d times", n)
	}
	if n := said(); n != 0 {
		t.Errorf("they are told %d times more", n)
	}
}

// Somebody who was told to buy a node had one that was only drained.
func TestADrainedNodeIsARemedy(t *testing.T) {
	for _, disputed := range []bool{false, true} {
		c := newChair(t)
		n := c.node("n2", 22)
		job := fixture.Job()
		job.Phase, job.ClosedEpoch, job.Lineage, job.Committed = replica.Opening, job.Epoch-1, nil, replica.Generation{}
		job.Layout, job.Ranks = replica.Apart(2), make([]replica.Claimed, 2)
		job.Mirrors, job.GroupMirrors, job.GroupGeometry = make([][]replica.NodeName, 2), make([][]replica.NodeName, 2), make([]replica.Digest, 2)
		job.Quarantined = []replica.NodeName{"n2", "n9"}
		want := "node n2 offers 2 and was drained: `replicad node clear n2` lets the job use it; or start `replicad run --job job`"
		if disputed {
			job.Disputed = []replica.Dispute{{Votes: []replica.Vote{{Rank: 0, Node: "n2"}}}}
			want = "node n2 offers 2 and was excluded after ranks differed: `replicad node clear n2`"
		}
		led := c.knows(job)
		c.message(t.Context(), n, replica.NodeReport{Job: fixture.JobID, Holder: silentNode, Session: 1, Seq: 1, Settled: true, Offers: 2, Launchers: 1})
		c.pass(2 * time.Second)
		c.recoverStep(t.Context(), fixture.JobID, led, recovery.Tick{})
		if st := c.said(); len(st[0].Waiting) == 0 || !strings.Contains(st[0].Waiting[0], "waits for 2 processes: offered 0") || !strings.Contains(st[0].Waiting[0], want) || strings.Contains(st[0].Waiting[0], "n9") {
			t.Errorf("status says %q", st[0].Waiting)
		}
	}
}

// A job that has no launcher is told of the one that has started its processes before.
func TestAJobWithoutALauncherLacksProcesses(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	job := fixture.Job()
	job.Phase, job.ClosedEpoch, job.Lineage, job.Committed = replica.Opening, job.Epoch-1, nil, replica.Generation{}
	job.Layout, job.Ranks = replica.Apart(2), make([]replica.Claimed, 2)
	job.Mirrors, job.GroupMirrors, job.GroupGeometry = make([][]replica.NodeName, 2), make([][]replica.NodeName, 2), make([]replica.Digest, 2)
	led := c.knows(job)
	c.message(t.Context(), n, replica.NodeReport{Job: fixture.JobID, Holder: silentNode, Session: 1, Seq: 1, Settled: true})
	c.pass(2 * time.Second)
	c.recoverStep(t.Context(), fixture.JobID, led, recovery.Tick{})
	want := "job job waits for 2 processes, for a world of 2, and has no launcher: what has started them before (torchrun, Ray) has to start them, or `replicad run --job job`; or end it (replicad job end job)"
	if st := c.said(); len(st[0].Waiting) == 0 || st[0].Waiting[0] != want {
		t.Errorf("status says %q", st[0].Waiting)
	}
}

// staff is a node whose launcher starts what it is offered: each process claims its rank and seals its initial state.
type staff struct {
	*seat
	report replica.NodeReport
	job    *replica.Job
	claims map[uint64]replica.Claim
	// changed is called when the node hears of a change; nil: it does not look.
	changed func()
}

// work does what the leader asks until the link goes down or stop is closed.
func (s *staff) work(stop <-chan struct{}) error {
	frames, lost := make(chan func(), 1024), error(nil)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer s.Close()
	pass := func(do func()) {
		select {
		case frames <- do:
		case <-stop:
		}
	}
	reading.Go(func() {
		defer close(frames)
		for {
			k, b, err := wire.Read(s, control.MaxLinkFrame)
			if err != nil {
				lost = err
				return
			}
			switch k {
			case control.KindOffer:
				o, _ := control.DecodeAs[control.Offers](b)
				pass(func() { s.offered(o) })
			case control.KindClaimReply:
				r, _ := control.DecodeAs[control.ClaimReply](b)
				pass(func() { s.claimed(r) })
			case control.KindView, control.KindChange, control.KindPiece: // the plan of a large job comes in pieces
				if s.changed != nil {
					s.changed()
				}
			}
		}
	})
	s.tell()
	for {
		select {
		case <-stop:
			return nil
		case do, up := <-frames:
			if !up {
				return lost
			}
			do()
			for more := true; more; { // one report for what has happened at once
				select {
				case do, up := <-frames:
					if !up {
						return lost
					}
					do()
				default:
					more = false
				}
			}
			s.tell()
		}
	}
}

func (s *staff) tell() {
	s.report.Seq++
	wire.Write(s, control.KindReport, s.report) // a link that is down is noticed by its reader
}

func (s *staff) offered(o control.Offers) {
	for r, expect := range o.In(len(s.job.Ranks)) {
		s.claim(r, expect)
	}
}

func (s *staff) claim(rank replica.Rank, expect replica.Incarnation) {
	s.report.Offers--
	s.report.Starting = append(s.report.Starting, rank)
	c := replica.Claim{Job: s.job.ID, Rank: rank, Expect: expect, Holder: s.report.Holder, Group: s.job.Layout.Groups[rank], Geometry: replica.Digest{1}, Nonce: uint64(rank) + 1}
	s.claims[c.Nonce] = c
	wire.Write(s, control.KindClaim, control.ClaimRequest{ID: c.Nonce, Claim: c})
}

func (s *staff) claimed(r control.ClaimReply) {
	c := s.claims[r.ID]
	if r.Retry {
		wire.Write(s, control.KindClaim, control.ClaimRequest{ID: r.ID, Claim: c})
		return
	}
	s.report.Starting = slices.DeleteFunc(s.report.Starting, func(r replica.Rank) bool { return r == c.Rank })
	if r.Refused != "" { // it took so long that the rank was offered to another node: the process ends
		s.report.Offers++
		return
	}
	init := replica.Generation{Epoch: 1}
	s.report.Ranks = append(s.report.Ranks, replica.RankReport{Rank: c.Rank, Incarnation: r.Incarnation, Alive: true, Attached: true, Settled: true, Initial: 1})
	for _, p := range []replica.Part{replica.OfGroup(c.Group), replica.OfRank(c.Rank)} {
		s.report.Parts = append(s.report.Parts, replica.Held{Part: p, Generation: init, Root: replica.Digest{byte(p.Kind) + 1}, Rank: c.Rank, Producer: r.Incarnation})
	}
}

// claimed has a job of nodes times seats ranks claimed by as many processes over real links, with the real log, and waits for its plan.
func (th *throne) claimed(nodes, seats int) (took time.Duration) {
	t, began := th.t, time.Now()
	t.Helper()
	l := replica.Layout{World: uint32(nodes * seats)}
	for r := range nodes * seats {
		l.Groups = append(l.Groups, replica.GroupID(r/4))
	}
	th.create("large", fixture.JobID, l, replica.Options{MinCopies: 1})
	job := th.cons.State().Jobs[fixture.JobID]
	stop, planned := make(chan struct{}), make(chan struct{})
	var working sync.WaitGroup
	for i := range nodes {
		s := &staff{job: job, claims: map[uint64]replica.Claim{}}
		inc := replica.NodeIncarnation(i + 100)
		name := replica.NodeName(fmt.Sprintf("node-%d", i))
		s.seat = th.link(name, inc)
		s.SetReadDeadline(time.Time{})
		s.report = replica.NodeReport{Job: fixture.JobID, Holder: replica.Holder{Node: name, Incarnation: inc}, Session: 1, Settled: true, Offers: seats, Launchers: 1}
		if i == 0 {
			said := sync.OnceFunc(func() { close(planned) })
			s.changed = func() {
				if th.cons.State().Jobs[fixture.JobID].Phase != replica.Opening {
					said()
				}
			}
		}
		working.Go(func() {
			if err := s.work(stop); err != nil {
				t.Errorf("the link of node %s is lost: %v", name, err)
			}
		})
	}
	defer working.Wait()
	defer close(stop)
	select {
	case <-planned:
	case <-time.After(5 * time.Minute): // only a failing test waits it out
		t.Error("the node did not hear of the plan")
	}
	took = time.Since(began)
	job = th.cons.State().Jobs[fixture.JobID]
	free := 0
	for _, c := range job.Ranks {
		if c.Incarnation == 0 {
			free++
		}
	}
	if job.Phase != replica.Planned || free > 0 {
		t.Fatalf("the job is %v, and %d ranks are not claimed: %s; steps %+v", job.Phase, free, job.EndReason, th.steps.status())
	}
	return took
}

// A large job is claimed and planned over links as they are, and none is lost.
func TestLargeJobIsClaimedWithEveryLinkUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		th := newThrone(t)
		th.claimed(20, 50)
		t.Logf("1,000 ranks; steps %+v", th.steps.status())
	})
}

// BenchmarkClaims10000 has ten thousand ranks claimed on a hundred nodes.
func BenchmarkClaims10000(b *testing.B) {
	for b.Loop() {
		th := newThrone(b)
		took := th.claimed(100, 100)
		s := th.steps.status()
		b.ReportMetric(took.Seconds(), "s-to-plan")
		b.ReportMetric(float64(s.LongestMS), "longest-step-ms")
		b.ReportMetric(float64(s.OverBudget), "steps-over-budget")
		b.Logf("%+v", s)
	}
}
