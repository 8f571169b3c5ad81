package recovery

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// a plan is applied; rank 1's process never loads (stopped by a signal after rp_join, or its arena has no place). The daemon is
// there and says so. Nothing bounds that: the job is "planned" for ever, all ranks stand still.
func TestARankThatNeverLoadsIsFaulted(t *testing.T) {
	g := func(s replica.Step) replica.Generation { return replica.Generation{Epoch: 3, Step: s} }
	ranks := []replica.Claimed{{Incarnation: 1, Node: "a", NodeIncarnation: 1}, {Incarnation: 3, Node: "b", NodeIncarnation: 2}}
	layout := replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}
	root := func(p replica.Part) replica.Digest { return replica.Digest{byte(p.Kind) + 1, byte(p.Index) + 1} }
	plan := &replica.Plan{Epoch: 4, Generation: g(99), Layout: layout, Ranks: ranks, Mirrors: [][]replica.NodeName{{"b"}, {"a"}}, GroupMirrors: [][]replica.NodeName{nil}}
	for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0), replica.OfRank(1)} {
		plan.Sources = append(plan.Sources, replica.Source{Part: p, Root: root(p), Tier: replica.PeerRAM, Holders: []replica.Holder{{Node: "a", Incarnation: 1}, {Node: "b", Incarnation: 2}}})
	}
	j := &replica.Job{ID: replica.JobID{1}, Name: "job", Layout: layout, Phase: replica.Planned, Epoch: 4, ClosedEpoch: 3, LastIndex: 9, Copies: 2, OpenedWith: 2, NextIncarnation: 3,
		Options: replica.Options{Cadence: 1, MinCopies: 2}.WithDefaults(), Lineage: replica.Lineage{{Epoch: 3, Start: 0}}, Committed: g(99), Position: replica.Position{Epoch: 3, Step: 99},
		Ranks: ranks, Mirrors: plan.Mirrors, GroupMirrors: plan.GroupMirrors, GroupGeometry: []replica.Digest{{1}}, Plan: plan}
	nodes := map[replica.NodeName]replica.Node{"a": {Name: "a", Incarnation: 1, Session: 1}, "b": {Name: "b", Incarnation: 2, Session: 1}}
	l := NewLeader(j.ID, DefaultTiming())
	now, did, note := time.Second, 0, ""
	step := func(ev Event) {
		for _, e := range l.Step(now, ev) {
			switch e := e.(type) {
			case Propose:
				did++
				t.Logf("at %v: %T", now, e.Command)
			case Note:
				note = e.Text
			}
		}
	}
	step(JobChanged{Job: j, Nodes: nodes})
	for _, n := range nodes {
		step(NodeUp{Holder: n.Holder(), Session: 1})
	}
	for i := range 24 * 3600 {
		now += time.Second
		for r, n := range []replica.NodeName{"a", "b"} {
			rep := replica.NodeReport{Job: j.ID, Holder: nodes[n].Holder(), Session: 1, Seq: uint64(i), Fenced: 3, Settled: true,
				Ranks: []replica.RankReport{{Rank: replica.Rank(r), Incarnation: j.Ranks[r].Incarnation, Alive: true, Attached: true, Settled: true, Stopped: true, Loaded: map[int]replica.Epoch{0: 4, 1: 0}[r], Halted: r == 1}}}
			for _, s := range plan.Sources {
				rep.Parts = append(rep.Parts, replica.Held{Part: s.Part, Generation: g(99), Root: s.Root, Mirror: true})
			}
			step(Report{NodeReport: rep})
		}
		step(Tick{})
		if did > 0 {
			break
		}
	}
	if did == 0 {
		t.Errorf("for a day rank 1 has not loaded what was planned (its process is stopped by a signal), its daemon says so each second, and the leader does nothing; it notes: %s; Awaited: %v", note, l.Awaited(now))
	}
}
