package recovery_test

import (
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// twoRanks is what the planner sees of a job of one group whose two ranks stand at rest on two nodes, each with all it made.
func twoRanks() plan.Input {
	at := replica.Generation{Epoch: 1, Step: 7}
	in := plan.Input{Nodes: map[replica.NodeName]replica.Node{}, Reports: map[replica.NodeName]replica.NodeReport{}, Connected: map[replica.NodeName]bool{"a": true, "b": true}, Grace: time.Minute}
	j := &replica.Job{ID: replica.JobID{1}, Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, Phase: replica.Closed, Epoch: 1, ClosedEpoch: 1, LastIndex: 9, Copies: 1,
		Lineage: replica.Lineage{{Epoch: 1}}, Committed: at, Position: replica.Position(at), Mirrors: make([][]replica.NodeName, 2)}
	in.Job = j
	for r, n := range []replica.NodeName{"a", "b"} {
		rank := replica.Rank(r)
		h := replica.Holder{Node: n, Incarnation: replica.NodeIncarnation(r + 1)}
		in.Nodes[n] = replica.Node{Name: n, Incarnation: h.Incarnation, Session: 1}
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 5), Node: n, NodeIncarnation: h.Incarnation})
		rep := replica.NodeReport{Job: j.ID, Holder: h, Session: 1, Fenced: 1, Settled: true,
			Ranks: []replica.RankReport{{Rank: rank, Incarnation: replica.Incarnation(r + 5), Alive: true, Attached: true, Stopped: true, Settled: true, Whole: true, Live: at.Word(), Good: at.Word(), Loaded: 1}}}
		for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(rank)} {
			rep.Parts = append(rep.Parts, replica.Held{Part: p, Generation: at, Root: root(p, at), Rank: rank})
			if s := slices.IndexFunc(j.Parts, func(c replica.PartRoot) bool { return c.Part == p }); s < 0 {
				j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: root(p, at), Holders: []replica.Holder{h}})
			}
		}
		in.Reports[n] = rep
	}
	return in
}

// A plan is for the processes that hold the ranks, at rest: what the daemon says of a process that was superseded, or of one that
// still runs, is no reason to make it.
func TestPlanWaitsForTheProcessesThatHoldTheRanks(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*replica.RankReport)
		ready  bool
	}{
		{"at rest", func(*replica.RankReport) {}, true},
		{"superseded", func(r *replica.RankReport) { r.Incarnation-- }, false},
		{"runs", func(r *replica.RankReport) { r.Stopped = false }, false},
		{"dead", func(r *replica.RankReport) { r.Alive = false }, false},
		{"not attached", func(r *replica.RankReport) { r.Attached = false }, false},
	} {
		in := twoRanks()
		tc.change(&in.Reports["b"].Ranks[0])
		_, v := plan.Make(in)
		if tc.ready != (v.Kind == plan.Ready) {
			t.Errorf("%s: %v, %s", tc.name, v.Kind, v.Reason)
		}
		if !tc.ready && (v.Why != plan.ForRanks || !slices.Equal(v.Ranks, []replica.Rank{1})) {
			t.Errorf("%s: it waits for %v %v, want rank 1", tc.name, v.Why, v.Ranks)
		}
	}
}

// A node that is found dead after it has acknowledged the fence comes back with the next word of its own, not with that old one.
func TestDeadNodeIsNotRevivedByAnOldAcknowledgement(t *testing.T) {
	w := newWorld()
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	if err := w.wait(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.hold["a"], w.hold["b"] = true, true // nobody takes the rank that is lost: the epoch stays closed
	w.process("0").alive = false
	if err := w.wait(time.Second); err != nil {
		t.Fatal(err)
	}
	home := w.state().Ranks[1].Node
	b := w.nodes[home]
	dead := func() bool {
		return slices.ContainsFunc(w.state().Faults, func(f replica.Fault) bool { return f.Kind == replica.NodeDead && f.Node == home })
	}
	if j := w.state(); j.Phase != replica.Closed || b.fenced < j.ClosedEpoch {
		t.Fatalf("%v, node %s has fenced epoch %d of %d: it has not acknowledged", j.Phase, home, b.fenced, j.ClosedEpoch)
	}
	w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Epoch: w.state().Epoch, Kind: replica.NodeDead, Node: home, NodeIncarnation: b.holder.Incarnation}})
	w.drain()
	if !dead() {
		t.Fatal("its fault has ended, or was never recorded, and it has said nothing since")
	}
	if err := w.wait(time.Second); err != nil { // it speaks
		t.Fatal(err)
	}
	if dead() {
		t.Error("it has acknowledged since, and is still taken for dead")
	}
}
