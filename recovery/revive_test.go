package recovery_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// closedBy is a job of two ranks of a group each, on nodes a and b, whose epoch a dead process of a's has just closed.
func closedBy(t *testing.T, then ...string) *world {
	t.Helper()
	w := newWorld()
	for _, line := range append([]string{"node a offers=2", "node b offers=2", "job groups=0,1 copies=1", "start 0 a", "start 1 b", "steps 3"}, then...) {
		if err := w.command(strings.Fields(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if w.leader == nil {
			continue
		}
		if err := w.settle(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	w.said = nil
	return w
}

func (w *world) proposes(text string) bool {
	return slices.ContainsFunc(w.said, func(s string) bool { return strings.HasPrefix(s, "propose "+text) })
}

// TestReturnHasItsTime: a node whose fault has ended, by its registration, has ack_timeout to answer from then on, however long it was away, and
// whether the leader hears of the registration or of the link first.
func TestReturnHasItsTime(t *testing.T) {
	w := closedBy(t)
	b := w.nodes["b"]
	w.stopDaemon("b")
	w.apply(replica.ReportFault{Job: w.job, Fault: replica.Fault{Epoch: 1, Kind: replica.NodeDead, Node: "b", NodeIncarnation: b.holder.Incarnation}})
	if err := w.wait(11 * time.Second); err != nil {
		t.Fatal(err)
	}
	w.said = nil
	w.apply(replica.RegisterNode{Node: w.st.View().Nodes["b"]})
	w.drain()
	if w.proposes("fault") {
		t.Fatalf("at its registration: %q", w.said)
	}
	w.connect("b")
	if err := w.settle(); err != nil {
		t.Fatal(err)
	}
	if w.proposes("fault") {
		t.Fatalf("at its link: %q", w.said)
	}
}

// TestAnswerBesideAnothersFault: a node that comes back while another one is lost is revived: the other's fault is no answer to its acknowledgement.
func TestAnswerBesideAnothersFault(t *testing.T) {
	w := closedBy(t, "cut b", "kill 0", "wait 5s")
	b := w.nodes["b"]
	w.apply(replica.ReportFault{Job: w.job, Fault: replica.Fault{Epoch: 1, Kind: replica.NodeDead, Node: "b", NodeIncarnation: b.holder.Incarnation}})
	if err := w.wait(time.Second); err != nil {
		t.Fatal(err)
	}
	w.said = nil
	w.apply(replica.ReportFault{Job: w.job, Fault: replica.Fault{Epoch: 1, Kind: replica.Exception, Rank: 0, Incarnation: w.state().Ranks[0].Incarnation, Detail: "another's"}})
	b.up, b.fenced = true, w.state().ClosedEpoch
	w.queue = append(w.queue, recovery.NodeUp{Holder: b.holder, Session: b.session}, recovery.Report{NodeReport: w.report("b")})
	w.drain()
	if !w.proposes("register b") {
		t.Errorf("it acknowledged in the moment of another's fault, and is not taken back: %q", w.said)
	}
}

// TestAnswerBesideAFault: a node that has acknowledged the fence is revived also where its one report came before the fault that says it had not.
func TestAnswerBesideAFault(t *testing.T) {
	w := closedBy(t, "cut b", "kill 0", "wait 5s")
	b := w.nodes["b"]
	b.up, b.fenced = true, w.state().ClosedEpoch
	w.queue = append(w.queue, recovery.NodeUp{Holder: b.holder, Session: b.session}, recovery.Report{NodeReport: w.report("b")})
	w.drain()
	w.said = nil
	w.apply(replica.ReportFault{Job: w.job, Fault: replica.Fault{Epoch: w.state().Epoch, Kind: replica.Silent, Node: "b", NodeIncarnation: b.holder.Incarnation}})
	w.drain()
	w.feed(recovery.Tick{})
	w.drain()
	if !w.proposes("register b") {
		t.Errorf("it has nothing more to say, and is not taken back: %q", w.said)
	}
}
