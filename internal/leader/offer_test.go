package leader

import (
	"net"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A rank offered to a node that was dead already, and not found so yet, used to wait for claim_timeout even when that node had
// come back and linked anew: its old link never went down by itself, it was superseded.
func TestANewLinkIsOfferedAgain(t *testing.T) {
	c := newChair(t)
	c.node("n1", 11)
	c.node("n2", 22)
	first := c.node("n4", 44)
	job := fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22}}
	})
	c.knows(job)
	offered := func(l *nodeLink) int {
		t.Helper()
		c.message(t.Context(), l, replica.NodeReport{Job: fixture.JobID, Holder: replica.Holder{Node: "n4", Incarnation: 44}, Session: 1, Seq: 1, Fenced: job.ClosedEpoch, Settled: true, Offers: 1, Spare: true})
		return len(fixture.Only[control.Offers](told(t, l)))
	}
	if n := offered(first); n != 1 {
		t.Fatalf("%d offers of the vacant rank, want 1", n)
	}
	if n := offered(first); n != 0 {
		t.Fatalf("%d more offers while the first is out, want none", n)
	}
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	second := &nodeLink{Link: control.NewLink(near, control.ToNode), node: first.node}
	c.linkUp(t.Context(), second)
	if n := offered(second); n != 1 {
		t.Errorf("%d offers on the new link, want 1", n)
	}
}
