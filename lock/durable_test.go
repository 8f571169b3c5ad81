package lock

import (
	"reflect"
	"testing"

	"github.com/replicad/replicad/replica"
)

func TestPlanShards(t *testing.T) {
	h := func(n replica.NodeName, i replica.NodeIncarnation) replica.Holder {
		return replica.Holder{Node: n, Incarnation: i}
	}
	job := &replica.Job{Committed: replica.Generation{Epoch: 3, Step: 5}, Position: replica.Position{Epoch: 3, Step: 5}, Layout: replica.Layout{World: 3, Groups: []replica.GroupID{0, 1, 1}}}
	for r, n := range []replica.NodeName{"n1", "n2", "n3"} {
		job.Ranks = append(job.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 4), Node: n, NodeIncarnation: replica.NodeIncarnation(11 * (r + 1))})
	}
	job.Parts = []replica.PartRoot{
		{Part: replica.OfGroup(0), Root: replica.Digest{1}, Holders: []replica.Holder{h("n3", 33), h("n1", 11)}},             // its producer holds it
		{Part: replica.OfGroup(1), Root: replica.Digest{2}, Holders: []replica.Holder{h("n1", 11), h("n3", 33)}},             // its second producer does
		{Part: replica.OfRank(0), Root: replica.Digest{3}, Holders: []replica.Holder{h("n2", 22), h("n1", 10)}},              // a former life of its producer did
		{Part: replica.OfRank(1), Root: replica.Digest{4}, Holders: []replica.Holder{h("n1", 11), h("n3", 33), h("n2", 22)}}, // the others mirror it
		{Part: replica.OfRank(2), Root: replica.Digest{5}, Holders: []replica.Holder{h("n3", 33)}},                           // it alone
	}
	want := replica.DurableWrite{Generation: job.Committed, Position: job.Position, Writer: "n1", Shards: []replica.Shard{
		{Part: replica.OfGroup(0), Node: "n1", Root: replica.Digest{1}}, {Part: replica.OfGroup(1), Node: "n3", Root: replica.Digest{2}}, {Part: replica.OfRank(0), Node: "n2", Root: replica.Digest{3}},
		{Part: replica.OfRank(1), Node: "n2", Root: replica.Digest{4}}, {Part: replica.OfRank(2), Node: "n3", Root: replica.Digest{5}}}}
	if w := PlanShards(job, func(replica.NodeName) bool { return true }); !reflect.DeepEqual(w, want) {
		t.Errorf("planned %+v, want %+v", w, want)
	}
	for i, n := range []replica.NodeName{"n1", "n1", "n1", "n1", "n3"} { // its last holder is named though it is away: nobody else has the part
		want.Shards[i].Node = n
	}
	want.Shards[2].Node = "n1"
	if w := PlanShards(job, func(n replica.NodeName) bool { return n == "n1" }); !reflect.DeepEqual(w, want) {
		t.Errorf("where n1 alone is there it planned %+v, want %+v", w, want)
	}
}

// A multiple of durable_every is named as the candidate where the commit after the next would be beyond it, and only if ranks reach it.
func TestMultiplesAreCommittedToBeWritten(t *testing.T) {
	for _, c := range []struct{ every, cadence, at, step, stride, want replica.Step }{
		{0, 1, 40, 48, 9, 48},   // nothing is written
		{50, 1, 40, 48, 9, 50},  // the commit after 48 would be 57
		{50, 1, 40, 48, 3, 50},  // 51
		{50, 1, 40, 48, 2, 48},  // 50 comes by itself
		{50, 1, 40, 48, 1, 48},  // and so does it here
		{50, 1, 49, 50, 9, 50},  // it is next anyway
		{50, 1, 49, 51, 9, 51},  // ranks have passed it
		{50, 1, 50, 51, 9, 51},  // it is committed
		{50, 7, 40, 42, 14, 42}, // ranks capture 49 and 56
		{49, 7, 35, 42, 14, 49},
	} {
		job := &replica.Job{Options: replica.Options{DurableEvery: c.every, Cadence: c.cadence}, Position: replica.Position{Epoch: 1, Step: c.at}}
		if got := forWrite(job, c.step, c.stride); got != c.want {
			t.Errorf("every %d, cadence %d, committed %d, commits each %d steps: candidate %d instead of %d, want %d", c.every, c.cadence, c.at, c.stride, got, c.step, c.want)
		}
	}
}

// The commit of a multiple begins its write, before anything newer is committed.
func TestCommitOfAMultipleBeginsItsWrite(t *testing.T) {
	b := newBench(t, "0,0", "every=2")
	cand := b.start()
	for step := replica.Step(1); step <= 4; step++ {
		if cand.Position.Step != step {
			t.Fatalf("candidate %v, want step %d", cand, step)
		}
		b.pin(cand, 0)
		effects := b.pin(cand, 1)
		if len(effects) != 1 {
			t.Fatalf("step %d: %v", step, effects)
		}
		commit := effects[0].(Propose).Command.(replica.Commit)
		short := ShortCommit(b.w.current(), commit)
		effects = b.applied(short)
		j := b.w.current()
		if want := step%2 == 0; commit.Write != want || (j.Writer != nil) != want || want && (j.Writer.Generation != j.Committed || len(j.Writer.Shards) != len(j.Parts)) {
			t.Fatalf("step %d: write %v, writer %+v", step, commit.Write, j.Writer)
		}
		if j.Writer != nil {
			b.applied(replica.EndDurable{Job: j.ID, Generation: j.Committed, Done: true})
		}
		for _, e := range effects {
			if a, ok := e.(Announce); ok {
				cand = a.Candidate
			}
		}
	}
}

// While a durable write is under way candidates that lapse are not named far ahead: the slot that they lack is free soon.
func TestCandidatesStayCloseDuringAWrite(t *testing.T) {
	b := newBench(t, "0,0", "every=1")
	cand := b.start()
	b.pin(cand, 0)
	c, ok := proposed[replica.Commit](b.pin(cand, 1))
	if !ok || !c.Write {
		t.Fatalf("step 1 is not committed to be written: %+v", c)
	}
	b.applied(ShortCommit(b.w.current(), c))
	cand, _ = b.c.Candidate()
	const near = writeBackOff + 1 // to one that is captured for freshness
	for range 6 {
		live := cand.Position.Step + 1
		if cand, ok = announced(b.passed(cand, 0, live)); !ok || cand.Position.Step > live+near {
			t.Fatalf("ranks are at step %d, the candidate is %v", live, cand)
		}
	}
	j := b.w.current()
	b.applied(replica.EndDurable{Job: j.ID, Generation: j.Writer.Generation, Number: j.Writer.Number})
	for _, most := range []replica.Step{4, 8, 16, 32, 32} { // a rank passes the last one once the slot is free; from then on something else is wrong
		live := cand.Position.Step + 2
		if cand, ok = announced(b.passed(cand, 0, live)); !ok || cand.Position.Step != live+most {
			t.Errorf("without one, ranks are at step %d, the candidate is %v, want it %d ahead", live, cand, most)
		}
	}
}

// Commits that were held up once come as close again as before. Each used to be named at the next multiple, since the one before it had come after as
// many steps: with durable_every 10 only every tenth step was committed for as long as the job ran.
func TestCommitsComeCloseAgainAfterTheyWereHeldUp(t *testing.T) {
	b := newBench(t, "0,0", "every=10")
	cand := b.start()
	commit := func() (at replica.Step) {
		t.Helper()
		at = cand.Position.Step
		b.pin(cand, 0)
		c, ok := proposed[replica.Commit](b.pin(cand, 1))
		if !ok {
			t.Fatalf("step %d waits for %v", at, b.c.Waiting())
		}
		c.Write = false // the durable tier takes nothing
		b.applied(ShortCommit(b.w.current(), c))
		cand, _ = b.c.Candidate()
		return at
	}
	commit()
	for cand.Position.Step < 20 { // a slot is held that they need
		cand, _ = announced(b.passed(cand, 0, cand.Position.Step+1))
	}
	held, second := commit(), commit()
	if next := commit(); held < 21 || second != held+1 || next != held+2 {
		t.Errorf("after step %d steps %d and %d are committed", held, second, next)
	}
}

// Commits may skip the multiples of durable_every; under load they often do.
func TestDurableDueAfterAMultipleWasPassed(t *testing.T) {
	for _, c := range []struct {
		every, committed, durable replica.Step
		want                      bool
	}{{0, 100, 0, false}, {50, 49, 0, false}, {50, 50, 0, true}, {50, 53, 0, true}, {50, 99, 53, false}, {50, 101, 53, true}, {50, 100, 100, false}} {
		job := &replica.Job{Options: replica.Options{DurableEvery: c.every}, Committed: replica.Generation{Epoch: 1, Step: c.committed}, Durable: replica.Generation{Step: c.durable}}
		if got := DurableDue(job, job.Durable); got != c.want {
			t.Errorf("every %d, committed %d, durable %d: due %v, want %v", c.every, c.committed, c.durable, got, c.want)
		}
	}
}

// Each durable write has a number of its own, also one of the same generation; the end of another one ends nothing.
func TestDurableWritesAreNumbered(t *testing.T) {
	j := &replica.Job{Committed: replica.Generation{Epoch: 1, Step: 5}}
	write(j, replica.DurableWrite{Generation: j.Committed})
	if j.Writer.Number != 1 {
		t.Fatalf("the first is number %d", j.Writer.Number)
	}
	if done, err := endDurable(j, replica.EndDurable{Generation: j.Committed, Number: 1}); !done || err != nil {
		t.Fatal(done, err)
	}
	write(j, replica.DurableWrite{Generation: j.Committed})
	if done, err := endDurable(j, replica.EndDurable{Generation: j.Committed, Number: 1, Done: true}); done || err == nil {
		t.Errorf("the end of the first ends the second, number %d", j.Writer.Number)
	}
	if done, err := endDurable(j, replica.EndDurable{Generation: j.Committed, Number: 2, Done: true}); !done || err != nil || j.Durable != j.Committed || j.Writes != 2 {
		t.Errorf("%v, %v; durable %v after %d writes", done, err, j.Durable, j.Writes)
	}
}

// A log names its fleet after the first life of a node that it records, and jobs that it creates have that name.
func TestFleetIsNamed(t *testing.T) {
	s := New(replica.ClusterID{1})
	for i, n := range []replica.Node{{Name: "n2", Incarnation: 0xab, Session: 1}, {Name: "n1", Incarnation: 7, Session: 1}} {
		if out := s.Apply(uint64(i+1), replica.RegisterNode{Node: n}); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	out := s.Apply(3, replica.CreateJob{ID: replica.JobID{1}, Name: "lm", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Began: 17, Writes: 4})
	if out.Err != nil || out.Job.Fleet != "n2-ab" || s.View().Fleet != "n2-ab" || out.Job.Began != 17 || out.Job.Writes != 4 {
		t.Errorf("%+v, %v", out.Job, out.Err)
	}
}
