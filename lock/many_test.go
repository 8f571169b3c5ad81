package lock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// The cluster keeps so many jobs that have not ended, and says what to do about it; one that has ended makes room.
func TestJobsThatHaveNotEndedAreCounted(t *testing.T) {
	s := New(replica.ClusterID{1})
	index := uint64(0)
	create := func(i int) Outcome {
		index++
		return s.Apply(index, replica.CreateJob{ID: replica.JobID{1, byte(i), byte(i >> 8)}, Name: fmt.Sprintf("job-%d", i), Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}})
	}
	for i := range maxJobs {
		if out := create(i); out.Err != nil {
			t.Fatalf("job %d: %v", i, out.Err)
		}
	}
	out := create(maxJobs)
	if out.Err == nil || !strings.Contains(out.Err.Error(), "replicad job end") || len(s.View().Jobs) != maxJobs {
		t.Fatalf("one more: %v, %d jobs", out.Err, len(s.View().Jobs))
	}
	if out := create(3); out.Err != nil {
		t.Errorf("the repetition of one that is there: %v", out.Err)
	}
	index++
	s.Apply(index, replica.EndJob{Job: replica.JobID{1, 3}, Reason: "enough"})
	if out := create(maxJobs); out.Err != nil {
		t.Errorf("after one has ended: %v", out.Err)
	}
}

// A job says on which node it was created; what is no node's name is refused.
func TestCreatorIsKept(t *testing.T) {
	s := New(replica.ClusterID{1})
	create := replica.CreateJob{ID: replica.JobID{1}, Name: "job", Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Creator: "../n1"}
	if out := s.Apply(1, create); out.Err == nil || len(s.View().Jobs) != 0 {
		t.Errorf("created by %q: %v", create.Creator, out.Err)
	}
	create.Creator = "n1"
	if out := s.Apply(2, create); out.Err != nil || out.Job.Creator != "n1" {
		t.Errorf("created by %q: %+v, %v", create.Creator, out.Job, out.Err)
	}
}

// What a commit of thousands of ranks waits for is said in a few lines, and whom it waits for all the same.
func TestThousandsOfPartsAreWaitedForInAFewLines(t *testing.T) {
	const world = 4_000
	j := &replica.Job{ID: replica.JobID{1}, Phase: replica.Open, Epoch: 1, Lineage: replica.Lineage{{Epoch: 1}}, Copies: 1, Options: replica.Options{MinCopies: 1}, Position: replica.Position{Epoch: 1}, Layout: replica.Apart(world), GroupGeometry: make([]replica.Digest, world),
		Mirrors: make([][]replica.NodeName, world), GroupMirrors: make([][]replica.NodeName, world)}
	nodes := map[replica.NodeName]replica.Node{}
	for r := range world {
		n := replica.NodeName(fmt.Sprintf("n%d", r/8))
		nodes[n] = replica.Node{Name: n, Incarnation: 1, Session: 1}
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 1), Node: n, NodeIncarnation: 1})
	}
	c := NewCommitter(1, 0)
	c.Job(j, nodes)
	waiting := c.Waiting()
	if len(waiting) != maxWaits+1 || waiting[maxWaits] != fmt.Sprintf("and %d more parts", 2*world-maxWaits) {
		t.Errorf("it waits for %d things, the last: %q", len(waiting), waiting[len(waiting)-1])
	}
	if n := len(c.Awaited()); n != len(nodes) {
		t.Errorf("it waits for %d nodes, want %d", n, len(nodes))
	}
}
