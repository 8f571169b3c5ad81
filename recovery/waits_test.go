package recovery_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/transcript"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// docs/protocol.md has the table as the code has it.
func TestWaitsAreAsWritten(t *testing.T) {
	var want strings.Builder
	want.WriteString("| phase | awaited | judge | bound | since | then | said |\n|---|---|---|---|---|---|---|\n")
	for _, w := range recovery.Waits {
		var phases []string
		for _, p := range w.Phases {
			phases = append(phases, p.String())
		}
		fmt.Fprintf(&want, "| %s | %s | %s | %v | %s | %s | `%s` |\n", strings.Join(phases, ", "), w.For, w.Judge, w.Bound, w.Since, w.Then, w.Says)
	}
	const file, begin, end = "../docs/protocol.md", "<!-- waits -->\n", "<!-- /waits -->"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no table between %q and %q", file, begin, end)
	}
	transcript.Same(t, file, before+begin+want.String()+end+after)
}

// Every row says what is awaited, by whom it is judged and what comes of it, and has a bound unless only an operator can end it.
func TestEveryWaitHasAnOwner(t *testing.T) {
	for k, w := range recovery.Waits {
		if len(w.Phases) == 0 || w.For == "" || w.Judge == "" || w.Since == "" || w.Then == "" || w.Says == "" {
			t.Errorf("row %d has an empty cell: %+v", k, w)
		}
		if _, bounded := w.Bound.Of(recovery.DefaultTiming()); !bounded && w.Bound.Grows == "" && w.Judge != "the operator" {
			t.Errorf("row %d has no bound: %s", k, w.For)
		}
	}
}

// silentCase is one participant that says or does nothing more, in one phase.
type silentCase struct {
	name  string
	kind  recovery.WaitKind
	phase replica.JobPhase // in which it is waited for
	named string           // meanwhile
	over  func(recovery.Timing) time.Duration
	begin func(*testing.T, *world)
	fault string // that ends the wait; empty: a plan does
}

// planned has a job of two ranks on a and b, with a spare, planned after rank 0 was lost, where rank 1 does not load.
func planned(t *testing.T, w *world, silent func(*process)) {
	t.Helper()
	p := w.process("1")
	p.blocked = true
	silent(p)
	w.process("0").alive = false
	w.on(0).offers++
	w.must(t, w.wait(time.Second))
	if j := w.state(); j.Phase != replica.Planned {
		t.Fatalf("the job is %v:\n%s", j.Phase, strings.Join(w.said, "\n"))
	}
}

// In each phase one participant falls silent: it is named meanwhile, and a fault or a plan ends the wait within its bound, also where the leader
// changes in the middle.
func TestNobodyIsWaitedForForEver(t *testing.T) {
	for _, c := range silentCases() {
		t.Run(c.name, func(t *testing.T) { c.world(t).silences(t, c) })
	}
}

// world is a job of two ranks with a spare, in the wait.
func (c silentCase) world(t *testing.T) *world {
	t.Helper()
	w := newWorld()
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	w.must(t, w.start(0, "a"))
	w.must(t, w.start(1, "b"))
	w.must(t, w.wait(5*time.Second))
	w.addNode("s", 4, true, nil)
	w.must(t, w.wait(time.Second))
	for range 3 {
		w.must(t, w.step(true))
	}
	c.begin(t, w)
	if j := w.state(); j.Phase != c.phase {
		t.Fatalf("the job is %v:\n%s", j.Phase, strings.Join(w.said, "\n"))
	}
	return w
}

func silentCases() []silentCase {
	bound := func(k recovery.WaitKind, more time.Duration) func(recovery.Timing) time.Duration {
		return func(t recovery.Timing) time.Duration {
			d, _ := recovery.Waits[k].Bound.Of(t)
			return d + more
		}
	}
	return []silentCase{
		{kind: recovery.AwaitLoad, name: "planned, rank hangs in rp_load", phase: replica.Planned, named: "rank 1: process 2 on node b was told ", fault: "hang of rank 1", over: bound(recovery.AwaitLoad, 0),
			begin: func(t *testing.T, w *world) { planned(t, w, func(*process) {}) }},
		{kind: recovery.AwaitLoad, name: "planned, a large rank hangs in rp_load", phase: replica.Planned, named: "rank 1: process 2 on node b was told ", fault: "hang of rank 1", over: bound(recovery.AwaitLoad, 20*time.Minute),
			begin: func(t *testing.T, w *world) { planned(t, w, func(p *process) { p.loadMS = 20 * 60 * 1000 }) }},
		{kind: recovery.AwaitLoad, name: "planned, rank is stopped by a signal", phase: replica.Planned, named: "rank 1: process 2 on node b is stopped by a signal (kill -CONT 2)", fault: "hang of rank 1", over: bound(recovery.AwaitLoad, 0),
			begin: func(t *testing.T, w *world) {
				planned(t, w, func(p *process) { p.halted, p.loadMS = true, 20*60*1000 })
			}},
		{kind: recovery.AwaitParts, name: "planned, parts don't come", phase: replica.Planned, named: "rank 1: node b has not got its parts of ", fault: "health of rank 1", over: bound(recovery.AwaitParts, 0),
			begin: func(t *testing.T, w *world) { planned(t, w, func(p *process) { p.starved = true }) }},
		{kind: recovery.AwaitDaemon, name: "planned, daemon away", phase: replica.Planned, named: "node b: its daemon has been away for ", fault: "silent of node b", over: bound(recovery.AwaitDaemon, 0),
			begin: func(t *testing.T, w *world) { planned(t, w, func(*process) {}); w.stopDaemon("b") }},
		{kind: recovery.AwaitMirror, name: "planned, mirrors silent", phase: replica.Planned, named: "has no copy of private ", over: bound(recovery.AwaitMirror, 0),
			begin: func(t *testing.T, w *world) {
				for _, n := range w.names() {
					w.nodes[n].full = true
				}
				for _, d := range w.nodes {
					d.parts = slices.DeleteFunc(d.parts, func(h replica.Held) bool { return h.Mirror })
				}
				planned(t, w, func(p *process) { p.blocked = false })
			}},
		{kind: recovery.AwaitStart, name: "closed, a node that was offered a rank starts nothing", phase: replica.Closed, named: "rank 0: offered to node a ", over: bound(recovery.AwaitStart, 0),
			begin: func(t *testing.T, w *world) {
				w.on(0).deaf = true
				w.process("0").alive = false
				w.on(0).offers++
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitAck, name: "closed, node silent", phase: replica.Closed, named: "node s: no acknowledgement of the fence of epoch 1 for ", fault: "silent of node s", over: bound(recovery.AwaitAck, 0),
			begin: func(t *testing.T, w *world) {
				w.stopDaemon("s")
				w.process("0").alive = false
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitSurvivor, name: "closed, survivor hangs", phase: replica.Closed, named: "rank 1: process 2 on node b runs on, ", fault: "hang of rank 1", over: bound(recovery.AwaitSurvivor, 0),
			begin: func(t *testing.T, w *world) {
				w.process("1").stuck = true
				w.process("0").alive = false
				w.on(0).offers++
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitSurvivor, name: "closed, survivor's session is gone", phase: replica.Closed, named: "rank 1: process 2 on node b runs on, ", fault: "hang of rank 1", over: bound(recovery.AwaitSurvivor, 0),
			begin: func(t *testing.T, w *world) {
				w.process("1").detached = true
				w.process("0").alive = false
				w.on(0).offers++
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitEnd, name: "closed, survivor is on its way out", phase: replica.Closed, named: "rank 1: process 2 on node b has been on its way out for ", fault: "hang of rank 1", over: bound(recovery.AwaitEnd, 3*time.Minute),
			begin: func(t *testing.T, w *world) {
				w.process("1").stuck, w.process("1").endingMS = true, 3*60*1000
				w.process("0").alive = false
				w.on(0).offers++
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitSurvivor, name: "closed, survivor on its way out is stopped by a signal", phase: replica.Closed, named: "rank 1: process 2 on node b is stopped by a signal (kill -CONT 2)", fault: "hang of rank 1", over: bound(recovery.AwaitSurvivor, 0),
			begin: func(t *testing.T, w *world) {
				w.process("1").stuck, w.process("1").endingMS, w.process("1").halted = true, 3*60*1000, true
				w.process("0").alive = false
				w.on(0).offers++
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitJoin, name: "closed, newcomer hangs", phase: replica.Closed, named: "rank 0: process 3 on node a has attached and has been on its way to rp_join", fault: "hang of rank 0", over: bound(recovery.AwaitJoin, 0),
			begin: func(t *testing.T, w *world) {
				d := w.lose(t, 0)
				w.attach(t, d, 0)
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitGrown, name: "opening, a rank does not seal what it has grown to", phase: replica.Opening, named: "rank 1: process 2 on node b has not sealed step 3 with its new regions for ", fault: "hang of rank 1", over: bound(recovery.AwaitGrown, 0),
			begin: func(t *testing.T, w *world) {
				w.process("1").unsealing = true
				w.ask([]replica.Rank{0, 1}, replica.RankGrowth{Geometry: replica.Digest{5}, Prepared: true})
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitNode, name: "open, daemon away while its host is up", phase: replica.Open, named: "node b: its daemon has been away for ", fault: "silent of node b", over: bound(recovery.AwaitNode, 0),
			begin: func(t *testing.T, w *world) { w.stopDaemon("b"); w.must(t, w.wait(time.Second)) }},
		{kind: recovery.AwaitStep, name: "open, a rank hangs beside one that has left", phase: replica.Open, named: "rank 1: process 2 on node b stands still in step ", fault: "hang of rank 1", over: func(recovery.Timing) time.Duration { return 20 * time.Second },
			begin: func(t *testing.T, w *world) {
				w.process("0").left = true
				w.must(t, w.wait(time.Second))
			}},
		{kind: recovery.AwaitBring, name: "open, put off at the rendezvous", phase: replica.Open, named: "node b: has not brought what its ranks left at the rendezvous", fault: "silent of node b", over: bound(recovery.AwaitBring, 0),
			begin: func(*testing.T, *world) {}},
	}
}

// again is what happens meanwhile.
func (c silentCase) again(w *world, since time.Duration) {
	if strings.Contains(c.name, "rendezvous") {
		w.queue = append(w.queue, recovery.PutOff{Rank: 0, Missing: "b"})
	}
	if strings.Contains(c.name, "has left") && since >= c.over(w.timing)-2*time.Second {
		w.process("1").hung = true
	}
}

// silences lets time pass until the wait has ended, and holds it against the table.
func (w *world) silences(t *testing.T, c silentCase) {
	t.Helper()
	from, said, named := w.now, len(w.said), false
	over := c.over(w.timing)
	limit := over + 2*time.Second
	for w.now-from <= limit {
		c.again(w, w.now-from)
		w.must(t, w.wait(time.Second))
		for _, s := range w.said[said:] {
			if c.fault != "" && strings.Contains(s, "propose fault in epoch ") && strings.Contains(s, c.fault) || c.fault == "" && strings.HasPrefix(s, "propose resume") {
				if took := w.now - from; took < over-5*time.Second {
					t.Errorf("too early, after %v of %v: %s", took, over, s)
				}
				if !named {
					t.Errorf("it was not named meanwhile, as %q", c.named)
				}
				return
			}
		}
		said = len(w.said)
		named = named || slices.ContainsFunc(w.leader.Awaited(w.now), func(s string) bool { return strings.Contains(s, c.named) })
	}
	t.Errorf("nothing has ended the wait after %v, the job is %v; awaited: %v\n%s", w.now-from, w.state().Phase, w.leader.Awaited(w.now), strings.Join(w.said, "\n"))
}

// What memory lacks may lie on a node that is away: it is named, and waited for no longer than holder_grace. So is a search of the durable tier
// that does not end: it is asked for again.
func TestHolderAndDiskAreWaitedFor(t *testing.T) {
	w := newWorld()
	w.unanswered = true
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{DurableEvery: 1})
	w.must(t, w.wait(5*time.Second))
	w.writes(t)
	w.addNode("s", 4, true, nil)
	w.dieNode("a")
	w.boot("a") // with empty memory
	w.stopDaemon("b")
	holder, disk := time.Duration(-1), time.Duration(-1)
	for range 600 {
		w.must(t, w.wait(time.Second))
		for _, s := range w.leader.Awaited(w.now) {
			if holder < 0 && strings.Contains(s, "node b: recorded as a holder of what memory lacks, not proved lost, and away for ") {
				holder = w.now
			}
			if disk < 0 && strings.Contains(s, "the durable tier: it is being searched") {
				disk = w.now
			}
		}
		if disk >= 0 && w.now-disk > 2*w.timing.HolderGrace {
			break
		}
	}
	if holder < 0 || disk < 0 || disk-holder > w.timing.HolderGrace+5*time.Second {
		t.Errorf("the holder was named at %v, the durable tier at %v\n%s", holder, disk, strings.Join(w.said, "\n"))
	}
	if w.scans < 2 {
		t.Errorf("a search that does not end was asked for %d times", w.scans)
	}
	w.unanswered = false
	w.must(t, w.wait(time.Minute))
	if j := w.state(); j.Plan == nil || j.Plan.Tier() != replica.Disk {
		t.Errorf("with a search that ends the job is %v, plan %+v\n%s", j.Phase, j.Plan, strings.Join(w.said, "\n"))
	}
}

// A durable write that moves and holds the slot which the next commit lacks is named with how late that is, until the commit, until its node says
// no more of it, or until the write is over.
func TestADurableWriteThatHoldsACommitUpIsNamed(t *testing.T) {
	for _, end := range []string{"silence", "the write", "another write"} {
		w := newWorld()
		w.addNode("a", 1, false, nil)
		w.create([]replica.GroupID{0}, replica.Options{})
		w.must(t, w.start(0, "a"))
		w.must(t, w.wait(5*time.Second))
		for range 3 {
			w.must(t, w.step(true))
		}
		is := w.state()
		writes := func(g replica.Generation) {
			j := *w.state()
			j.LastIndex++
			j.Writer = &replica.DurableWrite{Generation: g}
			if g.IsZero() {
				j.Writer = nil
			}
			w.leader.Learn(w.now, recovery.JobChanged{Job: &j, Nodes: w.st.View().Nodes})
		}
		writes(is.Committed)
		named := func() string { return strings.Join(w.leader.Awaited(w.now), "; ") }
		if got := named(); got != "" {
			t.Fatalf("before its node said so: %q", got)
		}
		w.now += 10 * time.Second
		w.leader.Learn(w.now, recovery.Writing{Node: "a", Part: replica.OfGroup(0), Generation: is.Committed, Bytes: 96 << 20, Late: 7 * time.Second})
		w.now += 2 * time.Second
		want := fmt.Sprintf("node a: its durable write of step %d, group 0 holds the slot that the next commit lacks: commits are 9s late, 0 steps; 96 MiB of it are written", is.Committed.Step)
		if got := named(); got != want {
			t.Errorf("named %q, want %q", got, want)
		}
		switch end {
		case "silence":
			w.now += 6 * time.Second
			w.leader.Learn(w.now, recovery.Tick{})
		case "the write":
			writes(replica.Generation{})
		case "another write":
			writes(replica.Generation{Epoch: is.Epoch, Step: is.Committed.Step + 1})
		}
		if got := named(); got != "" {
			t.Errorf("after %s: %q", end, got)
		}
	}
}

// A rank that reads another run's generation into memory which it has had in reach shows no progress: it has the time that its bytes take besides.
func TestAnOriginTakesItsTime(t *testing.T) {
	for _, from := range []*replica.Origin{nil, begun(2180)} {
		w := newWorld()
		w.addNode("a", 1, false, nil)
		w.addNode("b", 1, false, nil)
		w.from = from
		w.create([]replica.GroupID{0, 0}, replica.Options{})
		for i, n := range []replica.NodeName{"a", "b"} {
			w.must(t, w.start(replica.Rank(i), n))
			p := w.process(fmt.Sprint(i))
			p.unsealing, p.loadMS = true, 20*60*1000
		}
		bound, _ := recovery.Waits[recovery.AwaitSeal].Bound.Of(w.timing)
		hung := func() bool {
			return slices.ContainsFunc(w.said, func(s string) bool {
				return strings.Contains(s, "propose fault") && strings.Contains(s, "hang of rank")
			})
		}
		w.must(t, w.wait(bound+30*time.Second))
		if hung() != (from == nil) {
			t.Errorf("from %v: after %v a hang is %v", from, bound, hung())
		}
		w.must(t, w.wait(20*time.Minute))
		if !hung() {
			t.Errorf("from %v: nobody is taken for a hang:\n%s", from, strings.Join(w.said, "\n"))
		}
	}
}
