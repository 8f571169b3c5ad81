package lock

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/replicad/replicad/replica"
)

// openAt is a job of so many ranks, two to a group on two nodes of their own, whose private parts a neighbour mirrors, committed at step.
func openAt(world int, step byte) *State {
	nodes := map[replica.NodeName]replica.Node{}
	j := &replica.Job{ID: replica.JobID{1}, Name: "job", Options: replica.Options{MinCopies: 2}.WithDefaults(), Copies: 2, Phase: replica.Open, Epoch: 1, Lineage: replica.Lineage{{Epoch: 1}},
		Position: replica.Position{Epoch: 1, Step: replica.Step(step)}, Committed: gen(1, replica.Step(step)), GroupGeometry: make([]replica.Digest, world/2)}
	j.Layout.World = uint32(world)
	for r := range world {
		n := replica.NodeName(fmt.Sprintf("node-%04d", r))
		nodes[n] = replica.Node{Name: n, Incarnation: replica.NodeIncarnation(1<<60 + r), Session: 1}
		j.Layout.Groups = append(j.Layout.Groups, replica.GroupID(r%(world/2)))
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 1), Node: n, NodeIncarnation: nodes[n].Incarnation})
	}
	j.Parts = commitAt(j, step).Parts
	return FromView(View{Index: 1, Era: 1, Nodes: nodes, Jobs: map[replica.JobID]*replica.Job{j.ID: j}})
}

// commitAt is a commit whose parts lie on their ranks' nodes, private ones also on the next rank's.
func commitAt(j *replica.Job, step byte) replica.Commit {
	c := replica.Commit{Job: j.ID, Position: replica.Position{Epoch: 1, Step: replica.Step(step)}, Generation: gen(1, replica.Step(step))}
	world := len(j.Ranks)
	holder := func(r int) replica.Holder {
		at := j.Ranks[r%world]
		return replica.Holder{Node: at.Node, Incarnation: at.NodeIncarnation}
	}
	for g := range world / 2 {
		c.Parts = append(c.Parts, replica.PartRoot{Part: replica.OfGroup(replica.GroupID(g)), Root: replica.Digest{1, step, byte(g), byte(g >> 8)}, Holders: []replica.Holder{holder(g), holder(g + world/2)}})
	}
	for r := range world {
		held := []replica.Holder{holder(r), holder(r + 1)}
		if r == world-1 {
			held = []replica.Holder{holder(0), holder(r)}
		}
		c.Parts = append(c.Parts, replica.PartRoot{Part: replica.OfRank(replica.Rank(r)), Root: replica.Digest{2, step, byte(r), byte(r >> 8)}, Holders: held})
	}
	return c
}

// TestShortCommitIsTheCommit: whatever holders change, the short entry leads to the state that the whole one leads to, or is refused
// where that is.
func TestShortCommitIsTheCommit(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	refused := 0
	for range 500 {
		s, twin := openAt(8, 1), openAt(8, 1)
		for step := byte(2); step < 6; step++ {
			c := commitAt(s.View().Jobs[replica.JobID{1}], step)
			for range rng.IntN(4) {
				p := &c.Parts[rng.IntN(len(c.Parts))]
				switch n := replica.NodeName(fmt.Sprintf("node-%04d", rng.IntN(9))); rng.IntN(3) {
				case 0:
					p.Holders = p.Holders[:1]
				default:
					p.Holders = append(p.Holders[:len(p.Holders):len(p.Holders)], replica.Holder{Node: n, Incarnation: s.View().Nodes[n].Incarnation})
				}
			}
			rng.Shuffle(len(c.Parts), func(i, k int) { c.Parts[i], c.Parts[k] = c.Parts[k], c.Parts[i] })
			short := ShortCommit(s.View().Jobs[c.Job], c)
			if _, ok := short.(replica.CommitRoots); !ok {
				t.Fatalf("made %T", short)
			}
			a, b := s.Apply(uint64(step), short), twin.Apply(uint64(step), c)
			if (a.Err == nil) != (b.Err == nil) || a.Changed != b.Changed {
				t.Fatalf("short: %+v, whole: %+v", a, b)
			}
			if a.Err != nil {
				refused++
			}
			if !reflect.DeepEqual(s.View(), twin.View()) {
				t.Fatalf("states differ after step %d", step)
			}
		}
	}
	if refused < 50 || refused > 1950 {
		t.Errorf("%d of 2000 commits were refused: the cases have grown too tame", refused)
	}
}

// TestShortCommitOnAnotherRecord: an entry that was made on other holders than are recorded changes nothing, and a repeated one neither.
func TestShortCommitOnAnotherRecord(t *testing.T) {
	s := openAt(4, 1)
	j := s.View().Jobs[replica.JobID{1}]
	second, third := ShortCommit(j, commitAt(j, 2)), commitAt(j, 3)
	moved := third
	moved.Parts = append([]replica.PartRoot(nil), third.Parts...)
	moved.Parts[0].Holders = moved.Parts[0].Holders[:1:1]
	moved.Parts[0].Holders = append(moved.Parts[0].Holders, replica.Holder{Node: "node-0003", Incarnation: s.View().Nodes["node-0003"].Incarnation})
	late := ShortCommit(j, third)
	if out := s.Apply(2, second); !out.Changed {
		t.Fatal(out.Err)
	}
	if out := s.Apply(3, second); out.Changed || out.Err != nil {
		t.Errorf("repeated: %+v", out)
	}
	if out := s.Apply(4, moved); !out.Changed {
		t.Fatal(out.Err)
	}
	four := commitAt(j, 4)
	stale := late.(replica.CommitRoots)
	stale.Position, stale.Generation = four.Position, four.Generation
	if out := s.Apply(5, stale); out.Changed || out.Err == nil {
		t.Errorf("on another record: %+v", out)
	}
	stale.Roots = stale.Roots[:20]
	if out := s.Apply(6, stale); out.Changed || out.Err == nil {
		t.Errorf("roots of one part and a quarter: %+v", out)
	}
	if _, whole := ShortCommit(&replica.Job{}, four).(replica.Commit); !whole {
		t.Error("a job without a record has nothing to leave out")
	}
}
