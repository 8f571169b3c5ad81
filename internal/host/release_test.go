package host

import (
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

func committed(s replica.Step) control.Progress {
	return control.Progress{Job: fixture.JobID, Index: 10 + uint64(s), Position: replica.Position{Epoch: 3, Step: s}, Generation: fixture.Gen(3, s)}
}

// TestFormerMirrorGivesItsMemoryBack: a node that mirrors a part no more keeps the arena while it holds what is committed, and no longer.
func TestFormerMirrorGivesItsMemoryBack(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	part := replica.OfRank(1)
	a := d.mirrorOf(lj, part, 1, false)
	d.seal(a, ring(0), fixture.Gen(3, 5), 50)
	job := fixture.Changed(lj.Job, func(j *replica.Job) { j.Mirrors = [][]replica.NodeName{{"n2"}, {"n3"}} })
	d.views(control.View{Index: job.LastIndex, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
	if lj.Mirrors.Arena(part) == nil {
		t.Fatal("it is given up while it holds a part of the committed generation")
	}
	d.leaderSays(committed(6))
	if lj.Mirrors.Arena(part) != nil || !a.Dropped() {
		t.Error("it holds nothing that is needed, and its arena stays reserved")
	}
	d.settled()
	if n := len(d.parked()); n != 0 {
		t.Errorf("the keeper still holds %d arenas", n)
	}
}

// TestMirrorWithoutPartsStays: one that is still to mirror keeps its arena however little lies there, and so does one that is written to.
func TestMirrorWithoutPartsStays(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	d.mirrorOf(lj, replica.OfRank(1), 1, false)
	writing := d.mirrorOf(lj, replica.OfGroup(0), 0, false)
	man, _ := manifestFor(writing, slot(2), fixture.Gen(3, 6), 6)
	if _, err := writing.Take(slot(2), man); err != nil {
		t.Fatal(err)
	}
	d.leaderSays(committed(6))
	if len(lj.Mirrors.All()) != 2 {
		t.Errorf("mirrors left: %v", lj.Mirrors.All())
	}
}

// TestRetiredArenaIsJudgedOnProgress: a moved rank's old arena goes with the commit that makes it useless; no view need come.
func TestRetiredArenaIsJudgedOnProgress(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 5))
	delete(lj.Ranks, 0)
	lj.Retired = append(lj.Retired, lr.Arena)
	d.leaderSays(committed(5))
	if len(lj.Retired) != 1 {
		t.Fatal("it is given up while it holds the committed generation")
	}
	d.leaderSays(committed(6))
	if len(lj.Retired) != 0 || !lr.Arena.Dropped() {
		t.Error("it is kept though nothing in it is as new as the committed generation")
	}
}

// TestDegradedResumeKeepsThePrevious: a view of a Resume with too few copies frees nothing of what was committed before, in a rank's
// arena, a mirror's and a retired one; the next commit does.
func TestDegradedResumeKeepsThePrevious(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(1, 3))
	d.both(lr.Arena, 1, fixture.Gen(1, 4))
	mirror := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	d.seal(mirror, ring(0), fixture.Gen(1, 3), 30)
	retired := d.attach(lj, 1).Arena
	d.both(retired, 0, fixture.Gen(1, 3))
	delete(lj.Ranks, 1)
	lj.Retired = append(lj.Retired, retired)
	job := fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Position, j.Committed, j.Copies = replica.Position{Epoch: 3, Step: 4}, fixture.Gen(1, 4), 1
		j.Previous = &replica.Earlier{Generation: fixture.Gen(1, 3)}
	})
	d.views(control.View{Index: job.LastIndex, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
	held := func() (steps []replica.Step) {
		for _, l := range lj.View().Copies() {
			steps = append(steps, l.Held.Generation.Step)
		}
		slices.Sort(steps)
		return steps
	}
	if got := held(); !slices.Equal(got, []replica.Step{3, 3, 3, 3, 3, 4, 4}) {
		t.Fatalf("after the view the node holds steps %v", got)
	}
	d.both(lr.Arena, 2, fixture.Gen(3, 5))
	d.leaderSays(control.Progress{Job: fixture.JobID, Index: 12, Position: replica.Position{Epoch: 3, Step: 5}, Generation: fixture.Gen(3, 5)})
	if got := held(); slices.ContainsFunc(got, func(s replica.Step) bool { return s < 4 && s != 3 }) || len(lj.Retired) != 0 {
		t.Errorf("after the next commit the node holds steps %v, %d retired arenas", got, len(lj.Retired))
	}
	if s := states(lr.Arena, slot(0).Kind); s[0] != replica.SlotFree {
		t.Errorf("slots after the next commit: %v", s)
	}
}
