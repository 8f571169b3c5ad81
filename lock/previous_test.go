package lock

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// degraded is a job of one rank on a, planned at (1,13) after (1,10) was committed on a and b.
func degraded() *State {
	nodes := map[replica.NodeName]replica.Node{}
	for _, n := range []replica.NodeName{"a", "b", "c"} {
		nodes[n] = replica.Node{Name: n, Incarnation: 1, Session: 1}
	}
	j := &replica.Job{ID: replica.JobID{1}, Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Options: replica.Options{MinCopies: 2}.WithDefaults(), Copies: 2,
		Phase: replica.Planned, Epoch: 2, ClosedEpoch: 1, Lineage: replica.Lineage{{Epoch: 1}}, Position: replica.Position{Epoch: 1, Step: 10}, Committed: gen(1, 10), GroupGeometry: make([]replica.Digest, 1),
		NextIncarnation: 1, Ranks: []replica.Claimed{{Incarnation: 1, Node: "a", NodeIncarnation: 1}}, Mirrors: [][]replica.NodeName{{"b"}}, GroupMirrors: [][]replica.NodeName{{"b"}}, Parts: partsOf(10, "a", "b"), LastIndex: 1}
	j.Plan = &replica.Plan{Epoch: 2, Generation: gen(1, 13), Layout: j.Layout, Ranks: j.Ranks}
	for _, p := range partsOf(13) {
		j.Plan.Sources = append(j.Plan.Sources, replica.Source{Part: p.Part, Root: p.Root, Tier: replica.OwnRAM, Holders: []replica.Holder{{Node: "a", Incarnation: 1}}})
	}
	return FromView(View{Index: 1, Era: 1, Nodes: nodes, Jobs: map[replica.JobID]*replica.Job{j.ID: j}})
}

func partsOf(step byte, nodes ...replica.NodeName) []replica.PartRoot {
	parts := []replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{1, step}}, {Part: replica.OfRank(0), Root: replica.Digest{2, step}}}
	for i := range parts {
		for _, n := range nodes {
			parts[i].Holders = append(parts[i].Holders, replica.Holder{Node: n, Incarnation: 1})
		}
	}
	return parts
}

func must(t *testing.T, s *State, c replica.Command) *replica.Job {
	t.Helper()
	out := s.Apply(s.View().Index+1, c)
	if out.Err != nil || !out.Changed {
		t.Fatalf("%T: changed %v, %v", c, out.Changed, out.Err)
	}
	return out.Job
}

var resumeOnA = replica.Resume{Job: replica.JobID{1}, Epoch: 2, Parts: partsOf(13, "a"), Copies: 1}

// TestPreviousCommitted: a Resume with fewer copies than what was committed before had keeps the record of that, until the new one
// has its copies, or a newer one is committed.
func TestPreviousCommitted(t *testing.T) {
	s := degraded()
	j := must(t, s, resumeOnA)
	if j.Previous == nil || j.Previous.Generation != gen(1, 10) || len(j.Previous.Parts[1].Holders) != 2 {
		t.Fatalf("previous: %+v", j.Previous)
	}
	if out := s.Apply(90, resumeOnA); out.Changed || out.Err != nil {
		t.Errorf("the same Resume again: %+v", out)
	}
	must(t, s, replica.SetCopies{Job: j.ID, Copies: 2})
	early := replica.Resume{Job: j.ID, Epoch: 2, Parts: partsOf(13, "a"), Copies: 1, Spread: true}
	if out := s.Apply(s.View().Index+1, early); out.Err == nil {
		t.Error("one copy passes for the two that a commit needs")
	}
	spread := replica.Resume{Job: j.ID, Epoch: 2, Parts: partsOf(13, "a", "b"), Copies: 2, Spread: true}
	if j := must(t, s, spread); j.Previous != nil || len(j.Parts[0].Holders) != 2 || j.Position.Step != 13 {
		t.Errorf("after it has spread: %+v", j)
	}
	if out := s.Apply(s.View().Index+1, spread); out.Changed || out.Err != nil {
		t.Errorf("the same again: %+v", out)
	}

	s = degraded()
	j = must(t, s, resumeOnA)
	commit := replica.Commit{Job: j.ID, Position: replica.Position{Epoch: 2, Step: 14}, Generation: gen(2, 14), Parts: partsOf(14, "a")}
	if j := must(t, s, commit); j.Previous != nil {
		t.Errorf("after a commit: %+v", j.Previous)
	}
}

// TestPreviousOnlyWhereItHelps: nothing is kept where the new generation has its copies, or lies on as many nodes as are left with
// the one before; of two degraded recoveries in a row the first one's stays.
func TestPreviousOnlyWhereItHelps(t *testing.T) {
	whole := resumeOnA
	whole.Parts, whole.Copies = partsOf(13, "a", "b"), 2
	if j := must(t, degraded(), whole); j.Previous != nil {
		t.Errorf("with all copies: %+v", j.Previous)
	}
	s := degraded()
	must(t, s, replica.ProveLost{Job: replica.JobID{1}, Holder: replica.Holder{Node: "b", Incarnation: 1}, Why: "test"})
	if j := must(t, s, resumeOnA); j.Previous != nil {
		t.Errorf("it lies on one node too: %+v", j.Previous)
	}
	s = degraded()
	j := must(t, s, resumeOnA)
	must(t, s, replica.ReportFault{Job: j.ID, Fault: replica.Fault{Epoch: 2, Kind: replica.Exception, Rank: 0, Incarnation: 1}})
	again := *j.Plan
	again.Epoch, again.Cites, again.Generation = 3, s.View().Index, gen(2, 15)
	must(t, s, replica.ApplyPlan{Job: j.ID, Plan: again})
	next := resumeOnA
	next.Epoch = 3
	if j := must(t, s, next); j.Previous == nil || j.Previous.Generation != gen(1, 10) {
		t.Errorf("after a second degraded Resume: %+v", j.Previous)
	}
}
