package leader

import (
	"bytes"
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// lonely is the network of a cluster of one voter: nobody to dial, nobody who dials.
type lonely struct {
	closed chan struct{}
	once   sync.Once
}

func (l *lonely) Dial(context.Context, string, replica.NodeName) (net.Conn, error) {
	return nil, errors.New("nobody there")
}
func (l *lonely) Accept() (net.Conn, error) { <-l.closed; return nil, net.ErrClosed }
func (l *lonely) Close() error              { l.once.Do(func() { close(l.closed) }); return nil }
func (l *lonely) Addr() net.Addr            { return &net.UDPAddr{} }

// lonelyLog starts the log of a cluster of one voter; its caller closes it. There is nobody whose votes it waits for, so it elects itself sooner than a daemon's would.
func lonelyLog(t testing.TB) *consensus.Node {
	t.Helper()
	const soon = 50 * time.Millisecond
	cons, err := consensus.Start(consensus.Config{ID: "n1", Addr: "n1:7000", Dir: t.TempDir(), Voters: []consensus.Voter{{Name: "n1", Addr: "n1:7000"}}, Bootstrap: true,
		Layer: &lonely{closed: make(chan struct{})}, Cluster: fixture.Cluster, Heartbeat: soon, Election: soon, Lease: soon,
		WatchdogAfter: fixture.Patience}) // off: its disk is the machine's, which may have others to serve for seconds
	if err != nil {
		t.Fatal(err)
	}
	return cons
}

// A chair is a leader whose goroutine is the test. What it proposes goes to a log of its own, which knows none of the jobs
// and refuses: the proposals are what is looked at.
type chair struct {
	*Leader
	t       *testing.T
	log     *fixture.Lines
	refused string     // the end of the key of an object that it refuses to read
	disk    *tier.Tier // the durable tier of tests that have one
}

func newChair(t *testing.T) *chair {
	t.Helper()
	cons := lonelyLog(t)
	t.Cleanup(func() { cons.Close() })
	c := &chair{t: t, log: &fixture.Lines{}}
	c.Leader = New(Config{Log: cons, Cluster: fixture.Cluster, Timing: config.Default().Timing, Journal: journaltest.New(t, c.log)})
	c.active, c.term, c.kv = true, 7, rendezvous.New(7, 0)
	c.view = lock.View{Index: 10, Cluster: fixture.Cluster, Era: 1, Nodes: map[replica.NodeName]replica.Node{}, Jobs: map[replica.JobID]*replica.Job{}}
	return c
}

// node registers and links one; its link is read by says.
func (c *chair) node(name replica.NodeName, inc replica.NodeIncarnation) *nodeLink {
	n := replica.Node{Name: name, Incarnation: inc, Session: 1}
	c.view.Nodes[name] = n
	near, far := net.Pipe()
	c.t.Cleanup(func() { near.Close(); far.Close() })
	l := &nodeLink{Link: control.NewLink(near, control.ToNode), node: n}
	c.links.of[name] = l
	return l
}

// knows makes the leader know a job, as from its log.
func (c *chair) knows(job *replica.Job) *ledJob {
	led := c.jobs[job.ID]
	if led == nil {
		led = c.lead()
		led.recovery = recovery.NewLeader(job.ID, c.timing)
		c.jobs[job.ID] = led
	}
	led.job, c.view.Jobs[job.ID] = job, job
	led.durable.Learn(c.now(), durable.Changed{Job: job})
	c.recoverStep(c.t.Context(), job.ID, led, recovery.JobChanged{Job: job, Nodes: c.view.Nodes})
	return led
}

// said is what the leader answers to status about its jobs.
func (c *chair) said() []control.JobStatus {
	jobs, finish := c.status()
	finish()
	return jobs
}

// proposed waits for what was proposed since and returns it.
func (c *chair) proposed() (cmds []replica.Command) {
	c.work.Wait()
	for {
		var ev any
		select {
		case ev = <-c.in:
		case ev = <-c.first:
		default:
			return cmds
		}
		if o, ok := ev.(proposalOutcome); ok {
			cmds = append(cmds, o.cmd)
		}
	}
}

func proposalsOf[T replica.Command](c *chair) (out []T) {
	c.t.Helper()
	for _, cmd := range c.proposed() {
		if v, ok := cmd.(T); ok {
			out = append(out, v)
		}
	}
	return out
}

// dead lists the nodes that it proposes to declare dead.
func (c *chair) dead() (nodes []replica.Holder) {
	c.t.Helper()
	for _, f := range proposalsOf[replica.ReportFault](c) {
		if f.Fault.Kind == replica.NodeDead {
			nodes = append(nodes, replica.Holder{Node: f.Fault.Node, Incarnation: f.Fault.NodeIncarnation})
		}
	}
	return nodes
}

// told takes the messages sent to a node.
func told(t *testing.T, l *nodeLink) (msgs []any) {
	t.Helper()
	for frame := l.Take(); frame != nil; frame = l.Take() {
		k, b, err := wire.Read(bytes.NewReader(frame), control.MaxLinkFrame)
		var msg any
		if err == nil && k == control.KindWelcome {
			msg, err = control.DecodeAs[control.Welcome](b)
		} else if err == nil {
			msg, err = control.Decode(control.ToNode, k, b)
		}
		if err != nil {
			t.Fatalf("kind %d: %v", k, err)
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

// pass lets time go by.
func (c *chair) pass(d time.Duration) { c.start = c.start.Add(-d) }

// hears has a node say that another has been silent for two seconds, and that its own ranks, of steps of 50 ms, have stood still for so long.
func (c *chair) hears(from replica.NodeName, target replica.Holder, still time.Duration) {
	c.suspect(c.t.Context(), from, control.Suspect{Target: target, SilentMS: 2000, Steps: map[replica.JobID]control.StepMS{fixture.JobID: {Still: uint64(still.Milliseconds()), Pace: 50}}})
}

var silentNode = replica.Holder{Node: "n2", Incarnation: 22}

// four nodes are linked, and n2 holds rank 1 of the job.
func suspicious(t *testing.T) *chair {
	c := newChair(t)
	for i, n := range []replica.NodeName{"n1", "n2", "n3", "n4"} {
		c.node(n, replica.NodeIncarnation(11*(i+1)))
	}
	c.knows(fixture.Job())
	c.proposed()
	return c
}

func TestTwoWitnesses(t *testing.T) {
	c := suspicious(t)
	for range 3 { // one that insists is one
		c.hears("n1", silentNode, 2*time.Second)
		if dead := c.dead(); len(dead) != 0 {
			t.Fatalf("%v is dead on the word of one node of three", dead)
		}
	}
	c.hears("n3", silentNode, 2*time.Second)
	if dead := c.dead(); !slices.Equal(dead, []replica.Holder{silentNode}) {
		t.Errorf("on the word of two nodes %v are dead, want %v", dead, silentNode)
	}
	if n := c.log.Count(`"event":"node_state"`); n != 1 {
		t.Errorf("its state is logged %d times", n)
	}
}

// A witness's word expires.
func TestWitnessExpires(t *testing.T) {
	c := suspicious(t)
	c.hears("n1", silentNode, 2*time.Second)
	c.pass(witnessFresh + time.Millisecond)
	c.hears("n3", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 0 {
		t.Fatalf("%v is dead on one old word and one new", dead)
	}
	c.pass(witnessFresh / 2)
	c.hears("n4", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 1 {
		t.Errorf("%v are dead on two words that are fresh", dead)
	}
}

// Where there are fewer than two others, all of them are enough.
func TestWitnessesOfASmallCluster(t *testing.T) {
	c := newChair(t)
	c.node("n1", 11)
	c.node("n2", 22)
	c.knows(fixture.Job())
	c.proposed()
	c.hears("n1", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 1 {
		t.Errorf("%v are dead on the word of the only other node", dead)
	}
}

// Another life of the node, a node that nobody registered, and the node's own word count for nothing.
func TestSuspicionIsOfOneLife(t *testing.T) {
	c := suspicious(t)
	for _, target := range []replica.Holder{{Node: "n2", Incarnation: 23}, {Node: "n9", Incarnation: 22}, {Node: "n2"}} {
		c.hears("n1", target, 2*time.Second)
		c.hears("n3", target, 2*time.Second)
	}
	c.hears("n1", silentNode, 2*time.Second)
	c.hears("n2", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 0 {
		t.Errorf("%v are dead", dead)
	}
	if len(c.suspicions) != 1 {
		t.Errorf("%d suspicions are kept, want that of the registered life", len(c.suspicions))
	}
}

// Silence is no fault while the job passes steps: the node's ranks take part in each.
func TestStepsClearASuspicion(t *testing.T) {
	c := suspicious(t)
	for range 100 { // 20 s
		c.hears("n1", silentNode, 300*time.Millisecond)
		c.hears("n3", silentNode, 2*time.Second)
		c.pass(200 * time.Millisecond)
	}
	if dead := c.dead(); len(dead) != 0 {
		t.Fatalf("%v is dead though the job passes steps", dead)
	}
	if c.log.Count(`"unobserved"`) != 1 {
		t.Error("nobody is told that it is unobserved")
	}
	c.hears("n1", silentNode, 2*time.Second)
	c.hears("n3", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 1 {
		t.Errorf("%v are dead after the job stood still", dead)
	}
}

// A node that comes back from behind a partition says that all others are silent: the job holds it for dead, so its word moves nobody's rank.
func TestDeadIsNoWitness(t *testing.T) {
	c := suspicious(t)
	led := c.jobs[fixture.JobID]
	for _, from := range []replica.NodeName{"n3", "n4"} { // so that one word more would be enough
		led.job = fixture.Changed(led.job, func(j *replica.Job) {
			j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.NodeDead, Node: from, NodeIncarnation: c.view.Nodes[from].Incarnation})
		})
	}
	c.hears("n3", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 0 {
		t.Fatalf("%v is dead by the word of one that is held for dead itself", dead)
	}
	c.hears("n1", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 1 {
		t.Errorf("%v are dead by the word of the one node that could speak", dead)
	}
}

// Where jobs hold all other nodes for dead, their words are all there is: with none that counts, the recovery would wait for the silent
// node for ever. A job that has ended holds nobody for dead.
func TestDeadAreWitnessesWhereThereIsNoOther(t *testing.T) {
	for what, tc := range map[string]struct {
		dead  []replica.NodeName
		phase replica.JobPhase
		speak []replica.NodeName
	}{
		"all the others":     {[]replica.NodeName{"n1", "n3", "n4"}, replica.Closed, []replica.NodeName{"n3"}},
		"of a job that ends": {[]replica.NodeName{"n3"}, replica.Ended, []replica.NodeName{"n1", "n3"}},
	} {
		c := suspicious(t)
		other := fixture.Job()
		other.ID, other.Name, other.Phase = replica.JobID{0x0c}, "other", tc.phase
		for _, name := range tc.dead {
			other.Faults = append(other.Faults, replica.Fault{Epoch: other.Epoch, Kind: replica.NodeDead, Node: name, NodeIncarnation: c.view.Nodes[name].Incarnation})
		}
		c.knows(other)
		c.proposed()
		for _, from := range tc.speak {
			c.hears(from, silentNode, 2*time.Second)
		}
		if dead := c.dead(); !slices.Contains(dead, silentNode) {
			t.Errorf("%s: %v are dead, want %v by the words of %v", what, dead, silentNode, tc.speak)
		}
	}
}

// Only the steps of the node's own ranks speak for it: another job's say nothing, nor do those of a job that it only mirrors.
func TestStepsOfOthersClearNothing(t *testing.T) {
	for what, change := range map[string]func(*replica.Job){
		"it has no part":     func(j *replica.Job) { j.Mirrors = nil },
		"it mirrors":         func(j *replica.Job) { j.Mirrors = [][]replica.NodeName{{"n2"}, {"n2"}} },
		"of its former life": func(j *replica.Job) { j.Ranks[1] = replica.Claimed{Incarnation: 5, Node: "n2", NodeIncarnation: 21} },
	} {
		c := suspicious(t)
		other := fixture.Job()
		other.ID, other.Name = replica.JobID{0x0c}, "other"
		other.Ranks = []replica.Claimed{{Incarnation: 4, Node: "n3", NodeIncarnation: 33}, {Incarnation: 5, Node: "n4", NodeIncarnation: 44}}
		change(other)
		c.knows(other)
		c.proposed()
		for _, from := range []replica.NodeName{"n3", "n4"} {
			c.suspect(t.Context(), from, control.Suspect{Target: silentNode, SilentMS: 2000, Steps: map[replica.JobID]control.StepMS{fixture.JobID: {Still: 2000, Pace: 50}, other.ID: {Still: 10, Pace: 50}}})
		}
		if dead := c.dead(); !slices.Contains(dead, silentNode) {
			t.Errorf("n2 is not dead while another job, in which %s, passes steps", what)
		}
	}
}

// A node that links again is not suspected for what was said before.
func TestLinkClearsASuspicion(t *testing.T) {
	c := suspicious(t)
	c.hears("n1", silentNode, 2*time.Second)
	n := c.links.of["n2"]
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	c.linkUp(t.Context(), &nodeLink{Link: control.NewLink(near, control.ToNode), node: n.node})
	c.hears("n3", silentNode, 2*time.Second)
	if dead := c.dead(); len(dead) != 0 {
		t.Errorf("%v is dead on a word from before it linked", dead)
	}
}

// A new link of a node takes the place of the old one, is welcomed, and hears the state and the candidate.
func TestLinkUp(t *testing.T) {
	c := newChair(t)
	old := c.node("n2", 22)
	led := c.knows(fixture.Job())
	led.candidate = fixture.Candidate(1, 6)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	n := &nodeLink{Link: control.NewLink(near, control.ToNode), node: old.node}
	c.handle(t.Context(), leaderLinkUp{n})
	select {
	case <-old.Down:
	default:
		t.Error("the node's old link is kept open")
	}
	msgs := told(t, n)
	if len(msgs) != 4 {
		t.Fatalf("it is told %+v", msgs)
	}
	if ch, ok := msgs[2].(control.Change); !ok || ch.After != 10 || ch.Index != 10 {
		t.Errorf("after the view it is told %+v", msgs[2])
	}
	w, _ := msgs[0].(control.Welcome)
	v, _ := msgs[1].(control.View)
	if !w.OK || w.Term != 7 || w.Era != 1 || len(v.Jobs) != 1 || !reflect.DeepEqual(v.Jobs[0], led.job) || v.Index != 10 || v.Term != 7 || msgs[3] != fixture.Candidate(1, 6) {
		t.Errorf("it is told %+v", msgs)
	}
	c.handle(t.Context(), leaderLinkDown{nodeLink: old}) // late news
	if c.links.of["n2"] != n {
		t.Error("the end of the old link takes the new one away")
	}
	c.active = false
	c.handle(t.Context(), leaderLinkUp{&nodeLink{Link: control.NewLink(near, control.ToNode), node: old.node}})
	if c.links.of["n2"] != n {
		t.Error("who does not lead takes a link")
	}
}

// Only what the registered life and session of the linked node says counts.
func TestReportsOfOthersAreDropped(t *testing.T) {
	c := newChair(t)
	n := c.node("n2", 22)
	led := c.knows(fixture.Job())
	good := replica.NodeReport{Job: fixture.JobID, Holder: silentNode, Session: 1, Seq: 1}
	for what, r := range map[string]replica.NodeReport{
		"of another node":    {Job: fixture.JobID, Holder: replica.Holder{Node: "n3", Incarnation: 22}, Session: 1},
		"of another life":    {Job: fixture.JobID, Holder: replica.Holder{Node: "n2", Incarnation: 21}, Session: 1},
		"of another session": {Job: fixture.JobID, Holder: silentNode, Session: 2},
		"of no job":          {Job: replica.JobID{1}, Holder: silentNode, Session: 1},
	} {
		c.handle(t.Context(), nodeMessage{n, r})
		if len(led.reports) != 0 {
			t.Errorf("a report %s is taken", what)
		}
	}
	c.handle(t.Context(), nodeMessage{&nodeLink{Link: n.Link, node: n.node}, good})
	if len(led.reports) != 0 {
		t.Error("a report over a link that was superseded is taken")
	}
	c.handle(t.Context(), nodeMessage{n, good})
	if len(led.reports) != 1 {
		t.Error("a good report is not taken")
	}
}

func TestFencedIsLoggedOnce(t *testing.T) {
	c := newChair(t)
	led := c.knows(fixture.Job())
	say := func(name replica.NodeName, e replica.Epoch, settled bool) {
		led.reports[name] = replica.NodeReport{Job: fixture.JobID, Fenced: e, Settled: settled}
		c.fenced(led)
	}
	logged := func() int { return c.log.Count(`"event":"fenced"`) }
	say("n1", 3, true)
	say("n2", 3, true)
	if logged() != 0 {
		t.Error("an open epoch is fenced")
	}
	led.job = fixture.Closed(led.job)
	clear(led.reports)
	for i, s := range []struct {
		node    replica.NodeName
		fenced  replica.Epoch
		settled bool
	}{{"n1", 3, true}, {"n2", 2, true}, {"n2", 3, false}} {
		if say(s.node, s.fenced, s.settled); logged() != 0 {
			t.Fatalf("fenced after report %d", i)
		}
	}
	say("n2", 3, true)
	say("n2", 3, true)
	if logged() != 1 {
		t.Errorf("fenced is logged %d times", logged())
	}

	led.fenced = 0
	delete(led.reports, "n2")
	if c.fenced(led); logged() != 1 {
		t.Error("fenced without a word from n2")
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 21}}
	})
	if c.fenced(led); logged() != 1 {
		t.Error("fenced though another life of n2 is at fault")
	}
	led.job = fixture.Changed(led.job, func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22}}
	})
	if c.fenced(led); logged() != 2 {
		t.Error("a dead node holds the fence up")
	}
}

// reported has a node say how far its rank is, as message does.
func (c *chair) reported(led *ledJob, n replica.NodeName, rr replica.RankReport, parts ...replica.Held) {
	holder := replica.Holder{Node: n, Incarnation: map[replica.NodeName]replica.NodeIncarnation{"n1": 11, "n2": 22}[n]}
	c.message(c.t.Context(), &nodeLink{node: replica.Node{Name: n, Incarnation: holder.Incarnation}},
		replica.NodeReport{Job: led.job.ID, Holder: holder, Ranks: []replica.RankReport{rr}, Parts: parts, Seq: led.reports[n].Seq + 1})
}

func TestJobEndsWhenAllHaveLeft(t *testing.T) {
	c := newChair(t)
	led := c.knows(fixture.Job())
	c.proposed()
	left := func(rank replica.Rank, inc replica.Incarnation, left bool) {
		c.reported(led, map[replica.Rank]replica.NodeName{0: "n1", 1: "n2"}[rank], replica.RankReport{Rank: rank, Incarnation: inc, Alive: true, Live: replica.PackWord(3, 5, replica.Idle), Left: left})
	}
	left(0, 4, true)
	left(1, 5, false)
	left(1, 6, true) // another incarnation
	left(1, 3, true)
	if ends := proposalsOf[replica.EndJob](c); len(ends) != 0 {
		t.Fatalf("ended by %+v", ends)
	}
	c.knows(fixture.Closed(led.job))
	left(1, 5, true)
	if ends := proposalsOf[replica.EndJob](c); len(ends) != 0 {
		t.Fatalf("a closed epoch is ended by %+v", ends)
	}
	left(1, 5, false)
	c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Open, j.Epoch-1 }))
	left(1, 5, true)
	left(1, 5, true)
	if ends := proposalsOf[replica.EndJob](c); len(ends) != 1 || ends[0] != (replica.EndJob{Job: fixture.JobID, Reason: recovery.Finished, Epoch: led.job.Epoch}) {
		t.Errorf("ended by %+v, want once as finished", ends)
	}
}

// The last commit of a job that writes to disk is written before it ends, whatever its number.
func TestLastCommitIsWritten(t *testing.T) {
	c := newChair(t)
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Options.DurableEvery = 100 }))
	for i, n := range []replica.NodeName{"n1", "n2"} {
		c.durableTurn(t.Context(), led)
		if begun := proposalsOf[replica.BeginDurable](c); len(begun) != 0 {
			t.Fatalf("%d ranks have left, and step 5 of every 100 is written", i)
		}
		c.reported(led, n, replica.RankReport{Rank: replica.Rank(i), Incarnation: led.job.Ranks[i].Incarnation, Alive: true, Live: replica.PackWord(3, 5, replica.Idle), Left: true})
	}
	c.durableTurn(t.Context(), led)
	cmds := c.proposed()
	if len(cmds) != 1 || cmds[0].(replica.BeginDurable).Write.Generation != fixture.Gen(3, 5) {
		t.Errorf("proposed %+v, want to write (3,5) and no end", cmds)
	}
}

// Ranks that left with different last steps do them again.
func TestJobDoesNotEndInADispute(t *testing.T) {
	c := newChair(t)
	led := c.knows(fixture.Job())
	c.proposed()
	last := replica.Generation{Epoch: led.job.Epoch, Step: led.job.Position.Step + 1}
	left := func(roots ...byte) {
		for range 2 {
			for i, n := range []replica.NodeName{"n1", "n2"} {
				r := replica.Rank(i)
				c.reported(led, n, replica.RankReport{Rank: r, Incarnation: led.job.Ranks[r].Incarnation, Live: replica.PackWord(last.Epoch, last.Step, replica.Idle), Alive: true, Left: true},
					replica.Held{Part: replica.OfGroup(led.job.Layout.Groups[r]), Generation: last, Root: replica.Digest{roots[i]}, Rank: r}, replica.Held{Part: replica.OfRank(r), Generation: last, Rank: r})
			}
		}
	}
	left(1, 2)
	cmds := c.proposed()
	disputes := slices.DeleteFunc(slices.Clone(cmds), func(cmd replica.Command) bool { _, ok := cmd.(replica.ReportDispute); return !ok })
	if len(cmds) != 1 || len(disputes) != 1 || disputes[0].(replica.ReportDispute).Dispute.Generation != last || disputes[0].(replica.ReportDispute).Epoch != led.job.Epoch {
		t.Fatalf("proposed %+v, want one dispute of %v", cmds, last)
	}
	c.outcome(t.Context(), proposalOutcome{job: fixture.JobID, cmd: cmds[0]})
	left(2, 2)
	c.knows(fixture.Changed(led.job, func(j *replica.Job) { j.Position, j.Committed = replica.Position(last), last }))
	if ends := proposalsOf[replica.EndJob](c); len(ends) != 1 {
		t.Errorf("alike and committed they end the job %d times", len(ends))
	}
}

// The marker is ordered when the last shard is fsynced, from the writer, with all of them in the order of the plan, and with what ranks say that it lacks; a shard
// that failed ends the write.
func TestMarkerFollowsTheLastShard(t *testing.T) {
	c := newChair(t)
	n1, n2 := c.node("n1", 11), c.node("n2", 22)
	parts := []replica.Part{replica.OfGroup(0), replica.OfRank(0), replica.OfRank(1)}
	led := c.knows(fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 5), Writer: "n2"}
		for _, p := range parts {
			j.Writer.Shards = append(j.Writer.Shards, replica.Shard{Part: p, Node: "n1"})
		}
	}))
	c.proposed()
	say := func(p replica.Part, g replica.Generation) {
		c.message(t.Context(), n1, control.ShardReport{Job: fixture.JobID, Generation: g, Part: p, Info: replica.Stored{Key: p.String()}})
	}
	lacks := []replica.Lacks{{Rank: 1, Incarnation: 5, Text: "critic", Earlier: "teacher", Until: fixture.Gen(3, 5)}}
	c.message(t.Context(), n2, replica.NodeReport{Job: fixture.JobID, Holder: n2.node.Holder(), Session: 1, Seq: 1, Epoch: 3, Lacks: lacks})
	if st := c.said(); len(st[0].Lacks) != 1 || st[0].Lacks[0] != (replica.Lacking{Rank: 1, Text: "critic"}) {
		t.Errorf("status says that it lacks %+v", st[0].Lacks)
	}
	say(parts[2], fixture.Gen(3, 5))
	say(parts[0], fixture.Gen(3, 5))
	say(parts[1], fixture.Gen(3, 4)) // of an earlier write
	say(parts[0], fixture.Gen(3, 5))
	if orders := told(t, n2); len(orders) != 0 {
		t.Fatalf("ordered %+v before all shards are written", orders)
	}
	say(parts[1], fixture.Gen(3, 5))
	orders := fixture.Only[control.MarkerOrder](told(t, n2))
	if len(orders) != 1 || orders[0].Generation != fixture.Gen(3, 5) || len(orders[0].Shards) != 3 || len(orders[0].Lacks) != 1 || orders[0].Lacks[0].Text != "critic, teacher" {
		t.Fatalf("ordered %+v", orders)
	}
	for i, s := range orders[0].Shards {
		if s.Part != parts[i] {
			t.Errorf("shard %d is %v, want %v", i, s.Part, parts[i])
		}
	}
	if orders := told(t, n1); len(orders) != 0 {
		t.Errorf("who is not the writer is told %+v", orders)
	}
	if ends := proposalsOf[replica.EndDurable](c); len(ends) != 0 {
		t.Errorf("proposed %+v", ends)
	}
	c.message(t.Context(), n1, control.ShardReport{Job: fixture.JobID, Generation: fixture.Gen(3, 5), Part: parts[0], Failed: "disk full"})
	if ends := proposalsOf[replica.EndDurable](c); len(ends) != 1 || ends[0].Done || ends[0].Generation != fixture.Gen(3, 5) {
		t.Errorf("after a shard failed it proposes %+v", ends)
	}
	if st := c.said(); !strings.Contains(st[0].DurableError, "node n1, group 0 of generation (3,5): disk full") {
		t.Errorf("status says %q of the write that failed", st[0].DurableError)
	}
	for _, m := range []control.MarkedReport{{Job: fixture.JobID, Generation: fixture.Gen(3, 5)}, {Job: fixture.JobID, Generation: fixture.Gen(3, 5), Failed: "disk full"}, {Job: fixture.JobID, Generation: fixture.Gen(3, 4)}} {
		c.message(t.Context(), n2, m)
		ends := proposalsOf[replica.EndDurable](c)
		if m.Generation != led.job.Writer.Generation {
			if len(ends) != 0 {
				t.Errorf("the marker of an earlier write is answered by %+v", ends)
			}
		} else if len(ends) != 1 || ends[0].Done != (m.Failed == "") {
			t.Errorf("%+v is answered by %+v", m, ends)
		}
	}
}

// The leader asks the nodes of two ranks that sealed different initial states for their regions, hears each of its own rank
// alone, and ends the job with the region's name.
func TestLeaderNamesRegions(t *testing.T) {
	c := newChair(t)
	links := map[replica.NodeName]*nodeLink{"n1": c.node("n1", 11), "n2": c.node("n2", 22)}
	job := fixture.Job()
	job.Phase, job.Epoch, job.ClosedEpoch, job.Lineage, job.Plan, job.Position, job.Committed = replica.Opening, 1, 0, nil, nil, replica.Position{}, replica.Generation{}
	c.knows(job)
	roots := []replica.Digest{{1}, {2}}
	for r, name := range []replica.NodeName{"n1", "n2"} {
		rank := replica.Rank(r)
		c.message(t.Context(), links[name], replica.NodeReport{Job: fixture.JobID, Holder: links[name].node.Holder(), Session: 1, Seq: 1, Settled: true,
			Ranks: []replica.RankReport{{Rank: rank, Incarnation: job.Ranks[r].Incarnation, Alive: true, Attached: true, Initial: 1}},
			Parts: []replica.Held{{Part: replica.OfGroup(0), Generation: fixture.Gen(1, 0), Root: roots[r], Rank: rank}, {Part: replica.OfRank(rank), Generation: fixture.Gen(1, 0), Root: replica.Digest{3}, Rank: rank}}})
	}
	answer := func(r replica.Rank, digest byte) replica.RegionReport {
		return replica.RegionReport{Job: fixture.JobID, Generation: fixture.Gen(1, 0), Part: replica.OfGroup(0), Rank: r, Root: roots[r],
			Regions: []replica.RegionDigest{{Name: "same", Digest: replica.Digest{5}}, {Name: "other", Digest: replica.Digest{digest}}}}
	}
	for r, name := range []replica.NodeName{"n1", "n2"} {
		want := control.RegionsOrder{Job: fixture.JobID, Generation: fixture.Gen(1, 0), Part: replica.OfGroup(0), Rank: replica.Rank(r), Root: roots[r]}
		if asked := fixture.Only[control.RegionsOrder](told(t, links[name])); len(asked) != 1 || asked[0] != want {
			t.Fatalf("%s was asked %+v, want %+v", name, asked, want)
		}
	}
	c.message(t.Context(), links["n1"], answer(0, 6))
	c.message(t.Context(), links["n1"], answer(1, 6)) // not its rank
	if cmds := c.proposed(); len(cmds) != 0 {
		t.Fatalf("proposed %v on one node's word", cmds)
	}
	c.message(t.Context(), links["n2"], answer(1, 7))
	cmds := c.proposed()
	if len(cmds) != 1 {
		t.Fatalf("proposed %v, want the end of the job", cmds)
	}
	const says = `initial state of group 0 differs between rank 0 (n1) and rank 1 (n2): region "other"; remedy: broadcast the state of one rank of the group to the others before seal_initial; roots: rank 0 on n1: `
	if end, ok := cmds[0].(replica.EndJob); !ok || len(end.Reason) < len(says) || end.Reason[:len(says)] != says {
		t.Errorf("proposed %+v", cmds[0])
	}
}

// A leader looks often while a job waits for times, and seldom otherwise: an idle cluster costs next to nothing.
func TestClockFollows(t *testing.T) {
	c, tick := newChair(t), newClock()
	defer tick.Stop()
	want := func(what string, every time.Duration) {
		t.Helper()
		if tick.follow(c.Leader); tick.every != every {
			t.Errorf("%s: %v, want %v", what, tick.every, every)
		}
	}
	want("without jobs", idleTick)
	c.active = false
	want("while another leads", restTick)
	c.active = true
	c.brought["n1"] = &nodeLink{} // as each node that has linked
	want("with nodes", idleTick)
	job := fixture.Job()
	led := c.knows(job)
	want("with a job", busyTick)
	led.job = fixture.Changed(job, func(j *replica.Job) { j.Phase = replica.Ended })
	c.proposals.ahead, c.proposals.waiting = nil, nil
	want("with one that has ended", idleTick)
	c.leaving["n1"] = &leaving{}
	want("while a daemon is to end", busyTick)
}
