package lock

import (
	"errors"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// A copy that is lost leaves the record at once, and comes back when its node has it again. Earlier views keep what they said.
func TestSetHolder(t *testing.T) {
	s := degraded()
	j := must(t, s, resumeOnA)
	group := j.Parts[0]
	on := func(n replica.NodeName, lost bool) replica.SetHolder {
		return replica.SetHolder{Job: j.ID, Generation: gen(1, 13), Part: group.Part, Root: group.Root, Holder: replica.Holder{Node: n, Incarnation: 1}, Lost: lost}
	}
	names := func(p replica.PartRoot) (out []replica.NodeName) {
		for _, h := range p.Holders {
			out = append(out, h.Node)
		}
		return out
	}
	apply := func(c replica.SetHolder, code Code, changed bool) *replica.Job {
		t.Helper()
		before := s.View()
		out := s.Apply(before.Index+1, c)
		var refused *Refused
		if errors.As(out.Err, &refused) != (code != 0) || refused != nil && refused.Code != code || out.Changed != changed {
			t.Fatalf("%+v: changed %v, %v; want changed %v, %v", c, out.Changed, out.Err, changed, code)
		}
		if err := Check(before, s.View()); err != nil {
			t.Fatal(err)
		}
		return s.View().Jobs[j.ID]
	}
	if j = apply(on("b", false), 0, true); !slices.Equal(names(j.Parts[0]), []replica.NodeName{"a", "b"}) || len(j.Parts[1].Holders) != 1 {
		t.Errorf("b has it: %v", j.Parts)
	}
	apply(on("b", false), 0, false)
	before := j
	if j = apply(on("a", true), 0, true); !slices.Equal(names(j.Parts[0]), []replica.NodeName{"b"}) || j.Held() != 1 || !slices.Equal(names(before.Parts[0]), []replica.NodeName{"a", "b"}) {
		t.Errorf("a has lost it: %v, before: %v", j.Parts, before.Parts)
	}
	apply(on("a", true), 0, false)
	if j = apply(on("b", true), 0, true); j.Held() != 0 || j.Copies != 1 || j.Degraded != before.Degraded {
		t.Errorf("nobody has it: held %d, copies %d, degraded %v", j.Held(), j.Copies, j.Degraded)
	}

	other := on("a", false)
	other.Root[3]++
	apply(other, Conflict, false)
	other = on("a", false)
	other.Generation = gen(1, 12)
	apply(other, Stale, false)
	apply(on("d", false), Unknown, false)
	former := on("a", false)
	former.Holder.Incarnation = 7
	apply(former, Stale, false)
	must(t, s, replica.Quarantine{Job: j.ID, Node: "c"})
	apply(on("c", false), Conflict, false)

	// What was committed before is counted on as well, while it stays.
	earlier := on("b", true)
	earlier.Generation, earlier.Root = gen(1, 10), j.Previous.Parts[0].Root
	if j = apply(earlier, 0, true); len(j.Previous.Parts[0].Holders) != 1 || len(before.Previous.Parts[0].Holders) != 2 {
		t.Errorf("previous: %v", j.Previous.Parts)
	}

	must(t, s, replica.ReportFault{Job: j.ID, Fault: replica.Fault{Epoch: 2, Kind: replica.Exception, Rank: 0, Incarnation: 1}})
	apply(on("a", false), NotYet, false)
}

// A commit that was made short on a record which changes before it is applied is refused, and proposed again at once: nobody else would move the job on.
func TestACommitOnAnotherRecordIsProposedAgain(t *testing.T) {
	s := degraded()
	j := must(t, s, resumeOnA)
	must(t, s, replica.SetCopies{Job: j.ID, Copies: 2})
	j = must(t, s, replica.SetHolder{Job: j.ID, Generation: gen(1, 13), Part: replica.OfGroup(0), Root: j.Parts[0].Root, Holder: replica.Holder{Node: "b", Incarnation: 1}})
	c := NewCommitter(1, 0)
	named := c.Job(j, s.View().Nodes)
	candidate := named[0].(Announce).Candidate
	var proposed []Effect
	for _, n := range []replica.NodeName{"a", "b"} {
		p := replica.Pinned{Job: j.ID, Term: 1, N: candidate.N, Generation: candidate.Generation, Holder: replica.Holder{Node: n, Incarnation: 1}, Session: 1}
		for _, part := range partsOf(14) {
			p.Parts = append(p.Parts, replica.Held{Part: part.Part, Generation: candidate.Generation, Root: part.Root, Mirror: n == "b", Producer: 1})
		}
		proposed = append(proposed, c.Pinned(p)...)
	}
	if len(proposed) != 1 {
		t.Fatalf("proposed: %v", proposed)
	}
	commit := proposed[0].(Propose).Command.(replica.Commit)
	short := ShortCommit(j, commit)
	now := must(t, s, replica.SetHolder{Job: j.ID, Generation: gen(1, 13), Part: replica.OfGroup(0), Root: j.Parts[0].Root, Holder: replica.Holder{Node: "b", Incarnation: 1}, Lost: true})
	out := s.Apply(s.View().Index+1, short)
	if out.Err == nil {
		t.Fatal("a commit made on another record is applied")
	}
	if more := c.Job(now, s.View().Nodes); len(more) != 0 {
		t.Fatalf("with the proposal under way: %v", more)
	}
	again := c.Outcome(commit, out.Err)
	if len(again) != 1 {
		t.Fatalf("after the refusal: %v, waits for %v", again, c.Waiting())
	}
	must(t, s, ShortCommit(now, again[0].(Propose).Command.(replica.Commit)))
}
