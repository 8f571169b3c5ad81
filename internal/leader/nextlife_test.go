package leader

import (
	"net"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// TestANextLifeAndItsClaims: a node links with another memory. What it says it runs goes on in that life, and may meet the others; the rest is at
// fault: no rank of its waits at the rendezvous for a fault that nobody reports.
func TestANextLifeAndItsClaims(t *testing.T) {
	c := newChair(t)
	c.elected()
	propose := func(cmd replica.Command) lock.Outcome {
		t.Helper()
		_, out, err := c.cons.Propose(t.Context(), cmd)
		if err != nil || out.Err != nil {
			t.Fatalf("%T: %v, %v", cmd, out.Err, err)
		}
		return out
	}
	job := fixture.JobID
	life := func(inc replica.NodeIncarnation) replica.Node {
		return replica.Node{Name: "n2", Incarnation: inc, Session: 1, Addr: "n2:7000"}
	}
	propose(replica.RegisterNode{Node: life(5)})
	propose(replica.CreateJob{ID: job, Name: "job", Layout: replica.Layout{World: 2, Groups: []replica.GroupID{0, 0}}, Copies: 1})
	propose(replica.Begin{Job: job, Epoch: 1})
	var claims []replica.Running
	for r := range replica.Rank(2) {
		out := propose(replica.Claim{Job: job, Rank: r, Holder: life(5).Holder(), Geometry: replica.Digest{1}, Nonce: uint64(r) + 1})
		claims = append(claims, replica.Running{Job: job, Rank: r, Incarnation: out.Incarnation})
	}
	says := func(inc replica.NodeIncarnation, running ...replica.Running) *replica.Job {
		t.Helper()
		w, err := c.serves("n2", func(conn net.Conn) {
			control.WriteHello(conn, control.Hello{Cluster: fixture.Cluster, Node: life(inc), Running: running})
		})
		if err != nil || !w.OK {
			t.Fatalf("hello: %+v, %v", w, err)
		}
		return c.cons.State().Jobs[job]
	}
	meets := func(j *replica.Job, r replica.Rank) standing {
		led := &ledJob{job: j}
		return c.standing(led, &nodeLink{node: c.cons.State().Nodes["n2"]}, r)
	}

	j := says(6, claims...)
	if len(j.Faults) != 0 || j.ClosedEpoch != 0 || meets(j, 0) != own || meets(j, 1) != own {
		t.Errorf("it runs both: faults %v, closed %d, standing %d and %d", j.Faults, j.ClosedEpoch, meets(j, 0), meets(j, 1))
	}
	j = says(7, claims[1])
	if len(j.Faults) != 1 || j.Faults[0].Rank != 0 || j.Faults[0].Kind != replica.ProcessDead || j.ClosedEpoch != 1 || meets(j, 1) != own {
		t.Errorf("it runs rank 1: faults %v, closed %d, standing %d", j.Faults, j.ClosedEpoch, meets(j, 1))
	}
	j = says(8)
	if !slices.ContainsFunc(j.Faults, func(f replica.Fault) bool { return f.Rank == 1 }) || meets(j, 1) == early {
		t.Errorf("it runs nothing: faults %v, standing %d", j.Faults, meets(j, 1))
	}
}
