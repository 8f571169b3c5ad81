package lock

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// bench is a Committer over an open job whose ranks live on nodes a, b, c, ...: one group, unless groups says otherwise.
type bench struct {
	t *testing.T
	w *world
	c *Committer
}

func newBench(t *testing.T, groups string, options string) *bench {
	t.Helper()
	w := newWorld()
	run := func(line string) {
		if err := w.run(line, &strings.Builder{}); err != nil {
			t.Fatal(err)
		}
	}
	world := len(strings.Split(groups, ","))
	for i := range max(world, 2) + 1 {
		run("node " + string(rune('a'+i)))
	}
	run("job lm groups=" + groups + " " + options)
	run("begin 1")
	for r := range world {
		run(fmt.Sprintf("claim %d %c", r, 'a'+r))
	}
	for _, line := range []string{"loaded all 0", "seal all 0", "private all 0", "plan init", "resume copies=1"} {
		run(line)
	}
	if w.current().Phase != replica.Open {
		t.Fatal("the job did not open")
	}
	m := replica.SetMirrors{Job: w.job, Mirrors: make([][]replica.NodeName, world)}
	for r := range world { // each rank's private part on the next rank's node
		m.Mirrors[r] = []replica.NodeName{w.current().Ranks[(r+1)%world].Node}
	}
	w.apply("mirrors", m, &strings.Builder{})
	return &bench{t: t, w: w, c: NewCommitter(5, 0)}
}

// start lets the committer raise copies(p) to what the nodes allow, and returns the first candidate.
func (b *bench) start() replica.Candidate {
	b.t.Helper()
	effects := b.job()
	for range 3 {
		for _, e := range effects {
			switch e := e.(type) {
			case Announce:
				return e.Candidate
			case Propose:
				effects = b.applied(e.Command)
			}
		}
	}
	b.t.Fatalf("no candidate: %v", b.c.Waiting())
	return replica.Candidate{}
}

func (b *bench) job() []Effect { return b.c.Job(b.w.current(), b.w.state.View().Nodes) }

// applied puts a command into the log and tells the committer.
func (b *bench) applied(c replica.Command) []Effect {
	b.t.Helper()
	b.w.index++
	o := b.w.state.Apply(b.w.index, c)
	return append(b.c.Outcome(c, o.Err), b.job()...)
}

func (b *bench) run(line string) []Effect {
	b.t.Helper()
	if err := b.w.run(line, &strings.Builder{}); err != nil {
		b.t.Fatal(err)
	}
	return b.job()
}

// pin is an honest answer of a rank's node: its parts, and the private parts that it mirrors.
func (b *bench) pin(c replica.Candidate, r replica.Rank, change ...func(*replica.Pinned)) []Effect {
	j := b.w.current()
	n := j.Ranks[r].Node
	p := replica.Pinned{Job: c.Job, Term: c.Term, N: c.N, Generation: c.Generation, Holder: b.w.holder(n), Session: b.w.state.View().Nodes[n].Session}
	g := replica.OfGroup(j.Layout.Groups[r])
	p.Parts = []replica.Held{{Part: g, Generation: c.Generation, Root: rootOf(g, c.Generation.Step), Rank: r}, {Part: replica.OfRank(r), Generation: c.Generation, Root: rootOf(replica.OfRank(r), c.Generation.Step), Rank: r}}
	for o, mirrors := range j.Mirrors {
		if slices.Contains(mirrors, n) {
			p.Parts = append(p.Parts, replica.Held{Part: replica.OfRank(replica.Rank(o)), Generation: c.Generation, Root: rootOf(replica.OfRank(replica.Rank(o)), c.Generation.Step), Mirror: true, Rank: replica.Rank(o)})
		}
	}
	for _, f := range change {
		f(&p)
	}
	return b.c.Pinned(p)
}

func (b *bench) passed(c replica.Candidate, r replica.Rank, live replica.Step, holds ...replica.Step) []Effect {
	p := replica.Passed{Job: c.Job, Term: c.Term, N: c.N, Holder: b.w.holder(b.w.current().Ranks[r].Node), Session: 1, Rank: r, Live: replica.Generation{Epoch: c.Generation.Epoch, Step: live}}
	for _, s := range holds {
		p.Holds = append(p.Holds, replica.Generation{Epoch: c.Generation.Epoch, Step: s})
	}
	return b.c.Passed(p)
}

func proposed[C replica.Command](effects []Effect) (c C, ok bool) {
	for _, e := range effects {
		if p, is := e.(Propose); is {
			if c, ok = p.Command.(C); ok {
				return c, true
			}
		}
	}
	return c, false
}

func announced(effects []Effect) (replica.Candidate, bool) {
	for _, e := range effects {
		if a, ok := e.(Announce); ok {
			return a.Candidate, true
		}
	}
	return replica.Candidate{}, false
}

func root(n byte) func(*replica.Pinned) {
	return func(p *replica.Pinned) { p.Parts[0].Root = replica.Digest{n} }
}

func TestCommitterCommits(t *testing.T) {
	b := newBench(t, "0,0,0", "min=2")
	c := b.start()
	if c.Generation != gen(1, 1) || c.Term != 5 || c.N != 1 {
		t.Fatalf("first candidate %+v, want the first step due after the position", c)
	}
	b.pin(c, 0)
	if e := b.pin(c, 1); len(e) != 0 {
		t.Fatalf("committed without rank 2: %v", e)
	}
	if w := b.c.Waiting(); len(w) == 0 || !strings.Contains(strings.Join(w, "; "), "rank 2 on node c") {
		t.Errorf("waiting for %v, want rank 2 on node c", w)
	}
	commit, ok := proposed[replica.Commit](b.pin(c, 2))
	if !ok || len(commit.Parts) != 4 {
		t.Fatalf("no commit: %v", b.c.Waiting())
	}
	if e := b.pin(c, 2); len(e) != 0 {
		t.Errorf("a repeated pin proposes again: %v", e)
	}
	next, ok := announced(b.applied(commit))
	if !ok || next.Generation != gen(1, 2) || next.N != 2 {
		t.Errorf("after the commit: %+v, %v, want the next candidate with it", next, ok)
	}
	if b.w.current().Committed != gen(1, 1) {
		t.Errorf("committed %v", b.w.current().Committed)
	}
}

// TestCommitterOnlyPinsOfNowCount: pins of another candidate, of an older session, of a restarted or faulty node don't.
func TestCommitterOnlyPinsOfNowCount(t *testing.T) {
	b := newBench(t, "0,0,0", "min=2")
	c := b.start()
	for name, change := range map[string]func(*replica.Pinned){
		"another term":       func(p *replica.Pinned) { p.Term-- },
		"another n":          func(p *replica.Pinned) { p.N-- },
		"another generation": func(p *replica.Pinned) { p.Generation = gen(1, 9) },
		"another job":        func(p *replica.Pinned) { p.Job[3]++ },
		"another life":       func(p *replica.Pinned) { p.Holder.Incarnation++ },
		"an older session":   func(p *replica.Pinned) { p.Session-- },
		"a later session":    func(p *replica.Pinned) { p.Session++ },
	} {
		b.pin(c, 0)
		b.pin(c, 1)
		if e := b.pin(c, 2, change); len(e) != 0 {
			t.Errorf("%s counted: %v", name, e)
		}
		for _, n := range []replica.NodeName{"a", "b", "c"} {
			b.c.Voided(n)
		}
	}

	b.pin(c, 0)
	b.pin(c, 1)
	b.run("node b session=2") // b's daemon restarted: what it answered before is void
	if e := b.pin(c, 2); len(e) != 0 {
		t.Fatalf("a pin of an earlier session counted: %v", e)
	}
	if _, ok := proposed[replica.Commit](b.pin(c, 1)); !ok {
		t.Fatalf("answered again, still waiting for %v", b.c.Waiting())
	}
}

func TestCommitterVotes(t *testing.T) {
	daemonMade := func(p *replica.Pinned) { p.Parts[0].DaemonMade = true }
	t.Run("majority", func(t *testing.T) {
		b := newBench(t, "0,0,0", "min=2")
		c := b.start()
		b.pin(c, 0)
		if e := b.pin(c, 1, root(9)); len(e) != 0 {
			t.Fatalf("one against one of three is undecided: %v", e)
		}
		d, ok := proposed[replica.ReportDispute](b.pin(c, 2))
		if !ok || !slices.Equal(d.Dispute.Suspects, []replica.Rank{1}) {
			t.Fatalf("%+v, want rank 1 suspect", d)
		}
		if e := b.pin(c, 0); len(e) != 0 {
			t.Errorf("proposed twice: %v", e)
		}
		if b.applied(d); b.w.current().Phase != replica.Closed {
			t.Errorf("%v after a dispute", b.w.current().Phase)
		}
	})
	t.Run("no majority", func(t *testing.T) {
		b := newBench(t, "0,0", "min=2")
		c := b.start()
		b.pin(c, 0)
		d, ok := proposed[replica.ReportDispute](b.pin(c, 1, root(9)))
		if !ok || !slices.Equal(d.Dispute.Suspects, []replica.Rank{0, 1}) {
			t.Fatalf("%+v, want both suspect", d)
		}
	})
	t.Run("mirrors never vote", func(t *testing.T) {
		// A bad producer with two mirrors against two good twins.
		b := newBench(t, "0,0,0", "min=2")
		c := b.start()
		b.pin(c, 0, root(9))
		for _, n := range []replica.NodeName{"b", "d"} {
			b.c.Pinned(replica.Pinned{Job: c.Job, Term: c.Term, N: c.N, Generation: c.Generation, Holder: b.w.holder(n), Session: 1,
				Parts: []replica.Held{{Part: replica.OfGroup(0), Generation: c.Generation, Root: replica.Digest{9}, Mirror: true}}})
		}
		b.pin(c, 1)
		d, ok := proposed[replica.ReportDispute](b.pin(c, 2))
		if !ok || !slices.Equal(d.Dispute.Suspects, []replica.Rank{0}) {
			t.Fatalf("%+v, want rank 0 suspect", d)
		}
	})
	t.Run("a daemon's digest never outvotes", func(t *testing.T) {
		b := newBench(t, "0,0", "min=1")
		c := b.start()
		b.pin(c, 0)
		e := b.pin(c, 1, root(9), daemonMade)
		if len(e) != 0 || len(b.c.Waiting()) == 0 {
			t.Fatalf("%v, waiting %v: want neither a dispute nor a commit", e, b.c.Waiting())
		}
	})
	t.Run("non-deterministic", func(t *testing.T) {
		b := newBench(t, "0,0", "min=1")
		j := *b.w.current()
		j.Options.Nondeterministic = []bool{true}
		e := b.c.Job(&j, b.w.state.View().Nodes)
		c, ok := announced(e)
		if !ok {
			t.Fatal("no candidate")
		}
		b.pin(c, 1, root(9))
		commit, ok := proposed[replica.Commit](b.pin(c, 0))
		if !ok || commit.Parts[0].Root != rootOf(replica.OfGroup(0), 1) || len(commit.Parts[0].Holders) != 1 {
			t.Fatalf("%+v: want the lowest rank's root, held once", commit.Parts)
		}
	})
}

// The lead doubles with each failure and is forgotten with a commit: it went on to 2^21 steps.
func TestCommitterPassed(t *testing.T) {
	b := newBench(t, "0,0,0", "min=2")
	c := b.start()
	b.pin(c, 0)
	c2, ok := announced(b.passed(c, 1, 6, 2, 4, 6))
	if !ok || c2.Generation != gen(1, 6) || c2.N != 2 {
		t.Fatalf("%+v: want the newest that who passed holds", c2)
	}
	if e := b.passed(c, 2, 9, 2); len(e) != 0 {
		t.Fatalf("an answer to an earlier candidate did %v", e)
	}
	c3, ok := announced(b.passed(c2, 2, 7, 3, 5, 7)) // nothing in common: one rank skips odd, the other even steps
	if !ok || c3.Generation != gen(1, 12) {
		t.Fatalf("%+v: want step 7 + 4, the second failure, and the next one that is captured for freshness", c3)
	}
	c4, _ := announced(b.passed(c3, 1, 14))
	if c4.Generation != gen(1, 22) {
		t.Fatalf("%+v: want step 14 + 8, the third failure", c4)
	}
	for r := range replica.Rank(3) {
		if commit, ok := proposed[replica.Commit](b.pin(c4, r)); ok {
			b.applied(commit)
		}
	}
	if b.w.current().Position.Step != 22 {
		t.Fatalf("at %v, waiting for %v", b.w.current().Position, b.c.Waiting())
	}
	c5, _ := b.c.Candidate()
	c6, _ := announced(b.passed(c5, 0, 30))
	if c6.Generation != gen(1, 32) {
		t.Fatalf("%+v: want step 30 + 2: a commit resets k", c6)
	}
}

// TestCommitterStands: a candidate that no rank will come to, since all stand below it on purpose, is given up for the step that
// all of them hold, once.
func TestCommitterStands(t *testing.T) {
	b := newBench(t, "0,0,0", "min=2")
	c, _ := announced(b.passed(b.start(), 0, 6)) // step 8
	for _, r := range []replica.Rank{0, 1} {
		if e := b.passed(c, r, 7, 4, 7); len(e) != 0 {
			t.Fatalf("rank %d of three stands at 7, and at once %v", r, e)
		}
	}
	if e := b.passed(c, 2, 6, 4, 6); len(e) != 0 {
		t.Fatalf("one stands at 6, the others at 7, and %v", e)
	}
	if e := b.passed(c, 2, 7, 5); len(e) != 0 {
		t.Fatalf("they hold nothing in common, and %v", e)
	}
	deep := newBench(t, "0,0,0", "min=2") // with more than one step in common it falls back once, to the newest
	down, _ := announced(deep.passed(deep.start(), 0, 6))
	for r := range replica.Rank(2) {
		deep.passed(down, r, 7, 4, 7)
	}
	down, _ = announced(deep.passed(down, 2, 7, 4, 7))
	if e := deep.pin(down, 0); down.Generation != gen(1, 7) || len(e) != 0 {
		t.Fatalf("fell back to %v, and at the first pin of it: %v", down.Generation, e)
	}
	b.c.Voided("a")
	if e := b.passed(c, 2, 7, 7); len(e) != 0 {
		t.Fatalf("what a voided node said counts: %v", e)
	}
	early, ok := announced(b.passed(c, 0, 7, 4))
	if ok {
		t.Fatalf("named %+v", early)
	}
	back, ok := announced(b.passed(c, 0, 7, 4, 7))
	if !ok || back.Generation != gen(1, 7) || back.N != c.N+1 {
		t.Fatalf("%+v, %v: want step 7, which all hold", back, ok)
	}
	var next replica.Candidate
	for r := range replica.Rank(3) {
		if commit, ok := proposed[replica.Commit](b.pin(back, r)); ok {
			next, _ = announced(b.applied(commit))
		}
	}
	if b.w.current().Position.Step != 7 || next.Generation != gen(1, 8) {
		t.Fatalf("at %v, next %+v", b.w.current().Position, next)
	}
	for r := range replica.Rank(3) {
		if e := b.passed(next, r, 7, 7); len(e) != 0 {
			t.Fatalf("they stand at what is committed, and %v", e)
		}
	}
	if far, ok := announced(b.passed(next, 1, 9)); !ok || far.Generation != gen(1, 12) {
		t.Fatalf("rank 1 went on to 9 and passed: %+v, want 9 + 2, and the next one that is captured for freshness", far)
	}
}

func TestCommitterProposals(t *testing.T) {
	b := newBench(t, "0,0", "min=2")
	c := b.start()
	b.pin(c, 0)
	commit, ok := proposed[replica.Commit](b.pin(c, 1))
	if !ok {
		t.Fatal("no commit")
	}
	if e := b.passed(c, 1, 4); len(e) != 0 {
		t.Fatalf("named a candidate while a proposal is unresolved: %v", e)
	}
	// Unknown is not refused: nothing is decided until it is read back; then the same command again.
	if e := b.c.Outcome(commit, errors.New("leadership lost")); len(e) != 0 {
		t.Fatalf("unknown outcome did %v", e)
	}
	again, ok := proposed[replica.Commit](b.job())
	if !ok || !reflect.DeepEqual(again, commit) {
		t.Fatalf("%+v: want the same command once more", again)
	}
	// Refused is resolved.
	e := b.c.Outcome(commit, &Refused{Code: Conflict})
	if len(e) != 0 {
		t.Fatalf("refused, and at once %v", e)
	}
	if next, ok := announced(b.job()); !ok || next.Generation.Step < 6 {
		t.Errorf("after the refusal: %+v %v, want a later candidate: rank 1 had passed", next, ok)
	}
}

func TestCommitterCopies(t *testing.T) {
	b := newBench(t, "0,1", "min=3")
	set, ok := proposed[replica.SetCopies](b.job())
	if ok {
		t.Fatalf("%+v: each group has one node: copies(p) is 1", set)
	}
	mirrors := replica.SetMirrors{Job: b.w.job, Mirrors: [][]replica.NodeName{{"b"}, {"a"}}, GroupMirrors: [][]replica.NodeName{{"b"}, {"a", "c"}}}
	set, ok = proposed[replica.SetCopies](b.applied(mirrors))
	if !ok || set.Copies != 2 {
		t.Fatalf("%+v: want 2, the smallest over all parts", set)
	}
	if _, ok := announced(b.applied(set)); ok || b.w.current().Copies != 2 {
		t.Fatalf("copies %d; the candidate that stands needs no other", b.w.current().Copies)
	}
	c, _ := b.c.Candidate()
	b.pin(c, 0)
	if e := b.pin(c, 1); len(e) != 0 {
		t.Fatalf("committed without mirrors of the groups: %v", e)
	}
	set, ok = proposed[replica.SetCopies](b.run("quarantine b"))
	if !ok || set.Copies != 1 {
		t.Fatalf("%+v: want it lowered as a node is lost", set)
	}
}

func TestCommitterFaultEndsCandidate(t *testing.T) {
	b := newBench(t, "0,0", "min=2")
	c := b.start()
	b.pin(c, 0)
	if e := b.run("fault exception rank=0"); len(e) != 0 {
		t.Fatalf("closed, yet %v", e)
	}
	if _, live := b.c.Candidate(); live {
		t.Fatal("the candidate survived its epoch")
	}
	if e := b.pin(c, 1); len(e) != 0 {
		t.Fatalf("a pin of the closed epoch did %v", e)
	}
	b.run("plan")
	next, ok := announced(b.run("resume"))
	if !ok || next.Generation != gen(2, 1) || next.N <= c.N {
		t.Errorf("%+v %v: want (2,1) with a higher n", next, ok)
	}
}

func TestCommitterCadence(t *testing.T) {
	b := newBench(t, "0,0", "min=1 cadence=3")
	if c := b.start(); c.Generation != gen(1, 3) {
		t.Fatalf("%+v: want the first multiple of 3", c)
	}
	j := *b.w.current()
	for after, want := range map[replica.Step]replica.Step{0: 3, 2: 3, 3: 6, 8: 9, 9: 12} {
		if got := NextDue(&j, after); got != want {
			t.Errorf("after %d: %d, want %d", after, got, want)
		}
	}
	for upTo, want := range map[replica.Step]replica.Step{7: 7, 8: 7, 9: 9, 13: 12} {
		if j.Position.Step = 7; LastDue(&j, upTo) != want {
			t.Errorf("the last step due up to %d: %d, want %d", upTo, LastDue(&j, upTo), want)
		}
	}
	if got := Cadence(&replica.Job{}); got != 1 {
		t.Errorf("a job that names none has cadence %d", got)
	}
}

// TestCommitterEveryMember: enough copies are not enough: every live member of a group has to have pinned its replicated
// part, or its vote would be missing.
func TestCommitterEveryMember(t *testing.T) {
	b := newBench(t, "0,0,0", "min=2")
	c := b.start()
	b.pin(c, 0)
	b.pin(c, 1)
	if e := b.pin(c, 2, func(p *replica.Pinned) { p.Parts = p.Parts[1:] }); len(e) != 0 {
		t.Fatalf("committed though rank 2 pinned only its private part: %v", e)
	}
	if _, ok := proposed[replica.Commit](b.pin(c, 2)); !ok {
		t.Fatalf("parts add up; waiting for %v", b.c.Waiting())
	}
}
