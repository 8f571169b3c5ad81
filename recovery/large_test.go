package recovery_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
)

// crowd is a job of thousands of ranks on nodes that do at once what they are asked for: the real state machine, the real Leader, and
// one report a node for each thing that happens on it.
type crowd struct {
	st      *lock.State
	index   uint64
	now     time.Duration
	leader  *recovery.Leader
	job     replica.JobID
	nodes   []replica.NodeReport
	at      map[replica.NodeName]int
	offers  []recovery.Offer
	longest time.Duration // step, of a thread of its own: other work on the machine is not its doing
	what    string
	steps   int
	notes   int // bytes
}

// newCrowd registers nodes in racks of 16 with seats each, and creates a job of world ranks in groups of 4 of which no two begin in one
// place.
func newCrowd(world, nodes, seats int) *crowd {
	c := &crowd{st: lock.New(replica.ClusterID{1}), job: replica.JobID{7}, at: map[replica.NodeName]int{}}
	for i := range nodes {
		n := replica.Node{Name: replica.NodeName(fmt.Sprintf("node-%04d", i)), Incarnation: replica.NodeIncarnation(i + 1), Session: 1, Labels: map[string]string{"rack": fmt.Sprint(i / 16), "zone": fmt.Sprint(i % 3)}}
		c.st.Apply(c.next(), replica.RegisterNode{Node: n})
		c.at[n.Name] = i
		c.nodes = append(c.nodes, replica.NodeReport{Job: c.job, Holder: replica.Holder{Node: n.Name, Incarnation: n.Incarnation}, Session: 1, Settled: true, Offers: seats})
	}
	l := replica.Layout{World: uint32(world)}
	for r := range world {
		l.Groups = append(l.Groups, replica.GroupID(r%((world+3)/4)))
	}
	c.st.Apply(c.next(), replica.CreateJob{ID: c.job, Name: "j", Layout: l, Copies: 2})
	c.leader = recovery.NewLeader(c.job, recovery.DefaultTiming())
	c.changed()
	for i := range c.nodes {
		c.report(i)
	}
	return c
}

// threadTime is the processor time of this thread so far, which the caller has locked.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (c *crowd) next() uint64        { c.index++; return c.index }
func (c *crowd) state() *replica.Job { return c.st.View().Jobs[c.job] }

func (c *crowd) changed() { c.step(recovery.JobChanged{Job: c.state(), Nodes: c.st.View().Nodes}) }

func (c *crowd) report(i int) {
	c.nodes[i].Seq++
	r := c.nodes[i]
	r.Ranks, r.Starting, r.Parts = slices.Clone(r.Ranks), slices.Clone(r.Starting), slices.Clone(r.Parts)
	c.step(recovery.Report{NodeReport: r})
}

func (c *crowd) step(ev recovery.Event) {
	began := threadTime()
	effects := c.leader.Step(c.now, ev)
	if took := threadTime() - began; took > c.longest {
		c.longest, c.what = took, fmt.Sprintf("%T", ev)
	}
	c.steps++
	for _, e := range effects {
		switch e := e.(type) {
		case recovery.Offer:
			c.offers = append(c.offers, e)
		case recovery.Propose:
			out := c.st.Apply(c.next(), e.Command)
			if out.Changed {
				c.changed()
			}
			c.step(recovery.Outcome{Cmd: e.Command, Err: out.Err})
		case recovery.Note:
			c.notes += len(e.Text)
		}
	}
}

// pass lets the leader have its ticks for a while.
func (c *crowd) pass(d time.Duration) {
	for until := c.now + d; ; {
		at, ok := c.leader.Next()
		if !ok || at > until {
			c.now = until
			return
		}
		c.now = max(c.now, at)
		c.step(recovery.Tick{})
	}
}

// start has the nodes start the processes that they were asked for; each claims its rank, and seals its initial state.
func (c *crowd) start() {
	offers := c.offers
	c.offers = nil
	touched := map[int]bool{}
	for _, o := range offers {
		i := c.at[o.Node]
		c.nodes[i].Offers--
		c.nodes[i].Starting = append(c.nodes[i].Starting, o.Rank)
		touched[i] = true
	}
	for i := range touched {
		c.report(i)
	}
	for _, o := range offers {
		i := c.at[o.Node]
		out := c.st.Apply(c.next(), replica.Claim{Job: c.job, Rank: o.Rank, Expect: o.Expect, Holder: c.nodes[i].Holder, Group: c.state().Layout.Groups[o.Rank], Geometry: replica.Digest{1}, Nonce: c.index})
		if out.Err != nil {
			panic(out.Err)
		}
		n := &c.nodes[i]
		n.Starting = slices.DeleteFunc(n.Starting, func(r replica.Rank) bool { return r == o.Rank })
		init := replica.Generation{Epoch: c.state().Epoch}
		n.Ranks = append(n.Ranks, replica.RankReport{Rank: o.Rank, Incarnation: out.Incarnation, Alive: true, Attached: true, PID: 1, Settled: true, Initial: c.state().Epoch})
		for _, p := range []replica.Part{replica.OfGroup(c.state().Layout.Groups[o.Rank]), replica.OfRank(o.Rank)} {
			n.Parts = append(n.Parts, replica.Held{Part: p, Generation: init, Root: root(p, init), Rank: o.Rank, Producer: out.Incarnation})
		}
	}
	c.changed()
	for i := range touched {
		c.report(i)
	}
}

// load has every rank load the plan, and the mirrors hold their parts.
func (c *crowd) load() {
	p := c.state().Plan
	for _, src := range p.Sources {
		mirrors := p.GroupMirrors
		if src.Part.Kind == replica.PrivatePart {
			mirrors = p.Mirrors
		}
		for _, n := range mirrors[src.Part.Index] {
			i := c.at[n]
			c.nodes[i].Parts = append(c.nodes[i].Parts, replica.Held{Part: src.Part, Generation: p.Generation, Root: src.Root, Mirror: true})
		}
	}
	for i := range c.nodes {
		for r := range c.nodes[i].Ranks {
			c.nodes[i].Ranks[r].Loaded, c.nodes[i].Ranks[r].Live = p.Epoch, replica.PackWord(p.Epoch, 0, replica.Idle)
		}
	}
	for i := range c.nodes {
		c.report(i)
	}
}

// A job opens, whatever its size: every rank is offered once and claimed, and it goes through its phases.
func TestLargeJobOpens(t *testing.T) {
	c := newCrowd(2_000, 250, 8)
	openCrowd(t, c)
	t.Logf("longest of %d steps: %v (%s); %d bytes of notes", c.steps, c.longest, c.what, c.notes)
}

func openCrowd(t testing.TB, c *crowd) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	world := len(c.state().Ranks)
	taken := map[replica.Rank]bool{}
	for round := 0; len(taken) < world; round++ {
		if round > 10 {
			t.Fatalf("after %d rounds %d of %d ranks have been offered", round, len(taken), world)
		}
		c.pass(2 * time.Second)
		for _, o := range c.offers {
			if taken[o.Rank] {
				t.Fatalf("rank %d is offered twice", o.Rank)
			}
			taken[o.Rank] = true
		}
		c.start()
	}
	if c.pass(time.Second); c.state().Phase != replica.Planned {
		t.Fatalf("all ranks are claimed, and the job is %v", c.state().Phase)
	}
	c.load()
	if c.pass(time.Second); c.state().Phase != replica.Open {
		t.Fatalf("all ranks have loaded, and the job is %v", c.state().Phase)
	}
	members := c.state().Layout.Members()
	for g, ranks := range members {
		nodes := map[replica.NodeName]bool{}
		for _, r := range ranks {
			nodes[c.state().Ranks[r].Node] = true
		}
		if len(nodes) < len(ranks) {
			t.Fatalf("the %d ranks of group %d run on %d nodes", len(ranks), g, len(nodes))
		}
	}
}

// BenchmarkOpening10000 opens a job of ten thousand ranks on 1,250 nodes. What counts is the longest step, for which all other jobs of
// the leader wait.
func BenchmarkOpening10000(b *testing.B) {
	for b.Loop() {
		c := newCrowd(10_000, 1_250, 8)
		openCrowd(b, c)
		b.ReportMetric(float64(c.longest.Milliseconds()), "longest-step-ms")
		b.ReportMetric(float64(c.steps), "steps")
		b.Logf("longest of %d steps: %v (%s); %d bytes of notes", c.steps, c.longest, c.what, c.notes)
	}
}

// A world larger than the seats that there are waits, whatever its size, and says so in few words.
func TestWorldBeyondTheSeats(t *testing.T) {
	c := newCrowd(4_096, 4, 2)
	c.pass(5 * time.Second)
	if len(c.offers) != 8 {
		t.Fatalf("%d ranks are offered to 8 seats", len(c.offers))
	}
	if short, offered := c.leader.Short(); short != 4_088 || offered != 0 {
		t.Errorf("it is short of %d processes with %d on offer, want 4088 and none", short, offered)
	}
	c.start()
	if short, _ := c.leader.Short(); short != 4_088 {
		t.Errorf("with 8 ranks claimed it is short of %d processes, want 4088", short)
	}
	if c.notes > 4<<10 {
		t.Errorf("it says so in %d bytes of notes", c.notes)
	}
	for _, text := range c.leader.Awaited(c.now) {
		if len(text) > 200 {
			t.Errorf("it waits for %q", text)
		}
	}
	c.nodes[0].Offers += 4_088
	c.report(0)
	c.pass(5 * time.Second)
	if len(c.offers) != 4_088 {
		t.Errorf("%d ranks are offered to as many new seats, want 4088", len(c.offers))
	}
}

// BenchmarkPlaceMirrors10000 places the mirrors of ten thousand ranks on 1,250 nodes in racks.
func BenchmarkPlaceMirrors10000(b *testing.B) {
	in := place.Placement{Job: replica.JobID{3}, Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}, Copies: 2, Misfit: func(from, to replica.NodeName) bool { return false }}
	for r := range 10_000 {
		n := replica.NodeName(fmt.Sprintf("node-%04d", r/8))
		in.Nodes[n] = replica.Node{Name: n, Labels: map[string]string{"rack": fmt.Sprint(r / 128)}}
		in.Usable[n] = true
		in.Ranks = append(in.Ranks, replica.Claimed{Incarnation: 1, Node: n})
		in.Layout.Groups = append(in.Layout.Groups, replica.GroupID(r%2_500))
	}
	in.Layout.World = 10_000
	for b.Loop() {
		place.Mirrors(in)
	}
}

// A job that was never opened ends some time after its last launcher has gone, by a command with the reason. One that has a launcher
// waits, however long.
func TestAbandonedJobEnds(t *testing.T) {
	c := newCrowd(4, 2, 0)
	c.nodes[1].Launchers = 1
	c.report(1)
	c.pass(time.Hour)
	if c.state().Phase != replica.Opening {
		t.Fatalf("with a launcher it is %v after an hour: %s", c.state().Phase, c.state().EndReason)
	}
	c.nodes[1].Launchers = 0
	c.report(1)
	c.pass(9 * time.Minute)
	if c.state().Phase != replica.Opening {
		t.Fatalf("nine minutes after its launcher has gone it is %v: %s", c.state().Phase, c.state().EndReason)
	}
	c.step(recovery.NodeGone{Node: c.nodes[1].Holder.Node}) // a link that is lost is no launcher that comes back
	if c.pass(2 * time.Minute); c.state().Phase != replica.Ended || !strings.HasPrefix(c.state().EndReason, "abandoned: ") {
		t.Errorf("after eleven it is %v: %q", c.state().Phase, c.state().EndReason)
	}
}

// A job that has been opened is not abandoned: what it has learned is worth waiting for.
func TestOpenedJobIsNotAbandoned(t *testing.T) {
	c := newCrowd(4, 4, 1)
	openCrowd(t, c)
	for i := range c.nodes {
		c.nodes[i].Ranks[0].Alive = false
		c.report(i)
	}
	if c.pass(time.Hour); c.state().Phase != replica.Closed {
		t.Errorf("an hour after all its processes have died it is %v: %s", c.state().Phase, c.state().EndReason)
	}
}

// BenchmarkSurvives10000 asks of each of 1,250 nodes what its loss would come to for a job of ten thousand ranks, as a status does.
func BenchmarkSurvives10000(b *testing.B) {
	c := newCrowd(10_000, 1_250, 9)
	openCrowd(b, c)
	var losses []odds.Loss
	for n := range c.at {
		losses = append(losses, odds.Loss{Nodes: []replica.NodeName{n}})
	}
	for b.Loop() {
		in, _ := c.leader.Known()
		for _, s := range odds.Survives(in, losses...) {
			if why := s.Why(); len(why) > 0 {
				b.Fatal(why)
			}
		}
	}
}
