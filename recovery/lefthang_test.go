package recovery

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// rank 0 has made its last step and left; rank 1's process is stopped (state T) in that step, or hangs in it. With rank 0 not
// yet gone the same reports make a Hang fault; once it has left nobody is ever named, and the job waits for ever.
func TestAHangBesideARankThatHasLeft(t *testing.T) { hangs(t, true) }

// A process that was stopped as its daemon was away never attaches to the next daemon, which sees its steps all the same.
func TestAHangOfARankThatNeverAttachesAgain(t *testing.T) { hangs(t, false) }

func hangs(t *testing.T, attached bool) {
	for _, left := range []bool{false, true} {
		g := func(s replica.Step) replica.Generation { return replica.Generation{Epoch: 3, Step: s} }
		j := &replica.Job{ID: replica.JobID{1}, Name: "job", Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, Phase: replica.Open, Epoch: 3, ClosedEpoch: 2, LastIndex: 9, Copies: 2, OpenedWith: 2,
			Options: replica.Options{Cadence: 1, MinCopies: 2}.WithDefaults(), Lineage: replica.Lineage{{Epoch: 3, Start: 0}}, Committed: g(99), Position: replica.Position{Epoch: 3, Step: 99},
			Ranks:   []replica.Claimed{{Incarnation: 1, Node: "a", NodeIncarnation: 1}, {Incarnation: 2, Node: "b", NodeIncarnation: 2}},
			Mirrors: [][]replica.NodeName{{"b"}, {"a"}}, GroupMirrors: [][]replica.NodeName{nil}, GroupGeometry: []replica.Digest{{1}}, Plan: &replica.Plan{Epoch: 3, Generation: g(0)}}
		nodes := map[replica.NodeName]replica.Node{"a": {Name: "a", Incarnation: 1, Session: 1}, "b": {Name: "b", Incarnation: 2, Session: 1}}
		l := NewLeader(j.ID, DefaultTiming())
		now, faults := time.Second, 0
		step := func(ev Event) {
			for _, e := range l.Step(now, ev) {
				if p, ok := e.(Propose); ok {
					if f, ok := p.Command.(replica.ReportFault); ok {
						faults++
						t.Logf("left %v: at %v fault %v of rank %d: %s", left, now, f.Fault.Kind, f.Fault.Rank, f.Fault.Detail)
					}
				}
			}
		}
		step(JobChanged{Job: j, Nodes: nodes})
		for _, n := range nodes {
			step(NodeUp{Holder: n.Holder(), Session: 1})
		}
		for i := range 3600 { // an hour
			now += time.Second
			for r, n := range []replica.NodeName{"a", "b"} {
				w := replica.PackWord(3, 100, replica.Idle)
				if r == 1 {
					w = replica.PackWord(3, 100, replica.Updating)
				}
				step(Report{NodeReport: replica.NodeReport{Job: j.ID, Holder: nodes[n].Holder(), Session: 1, Seq: uint64(i), Fenced: 2, Settled: true,
					Ranks: []replica.RankReport{{Rank: replica.Rank(r), Incarnation: j.Ranks[r].Incarnation, Alive: true, Attached: r == 0 || attached, Live: w, Good: replica.PackWord(3, 99, 0), Loaded: 3, Left: left && r == 0, Hung: r == 1, Halted: r == 1}}}})
			}
			step(Tick{})
			if faults > 0 {
				break
			}
		}
		if faults == 0 {
			t.Errorf("left %v: rank 1 stands still for an hour (hung, and stopped by a signal), and no fault is proposed", left)
		}
	}
}
