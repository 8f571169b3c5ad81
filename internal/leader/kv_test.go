package leader

import (
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/replica"
)

// meets makes the leader serve the rendezvous of a job, all of whose ranks are on a node.
func (c *chair) meets(id byte, world int, n *nodeLink) *replica.Job {
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.ID, j.Name, j.Layout = replica.JobID{id}, fmt.Sprint("job-", id), replica.Layout{World: uint32(world), Groups: make([]replica.GroupID, world)}
		j.Ranks = slices.Repeat([]replica.Claimed{{Incarnation: 1, Node: n.node.Name, NodeIncarnation: n.node.Incarnation}}, world)
	})
	c.knows(job).gathered = true
	return job
}

// Answers of one job never close a link nor fill the leader's memory: a rank that asks for large keys that are there, and never reads, loses
// what is its own. As many ranks as a node has at once are all answered.
func TestAnswersOfOneJobDoNotCloseALink(t *testing.T) {
	c := newChair(t)
	n := c.node("n1", 11)
	left := 0
	n.Full = func(any) { left++ }
	loud, other := c.meets(1, session.MaxSessions, n), c.meets(2, 2, n)
	asks := func(j *replica.Job, op control.KVOp, rank int, key string, value []byte) {
		c.rendezvous(n, control.KVRequest{ID: 1, Job: j.ID, Epoch: j.Epoch, Op: op, Rank: replica.Rank(rank), Key: key, Value: value, Nonce: 7})
	}
	large := make([]byte, rendezvous.MaxValueBytes)
	for r := range session.MaxSessions {
		asks(loud, control.KVGet, r, "k0", nil)
	}
	asks(loud, control.KVSet, 0, "k0", large)
	asks(loud, control.KVSet, 0, "k1", large)
	if got := fixture.Only[control.KVReply](told(t, n)); len(got) != session.MaxSessions+2 || left != 0 {
		t.Fatalf("%d of %d are answered, %d left out", len(got), session.MaxSessions+2, left)
	}
	for i := range 6000 {
		asks(loud, control.KVGet, 0, fmt.Sprint("k", i%2), nil)
	}
	asks(other, control.KVSet, 1, "k", []byte("v"))
	n.Send(control.Beat{})
	select {
	case <-n.Down:
		t.Fatal("the link is closed")
	default:
	}
	size, at, frames := 0, -1, 0
	for frame := n.Take(); frame != nil; frame = n.Take() {
		if size += len(frame); len(frame) < 1000 && at < 0 {
			at = frames
		}
		frames++
	}
	if most := 36 << 20; size > most || left == 0 || frames+left != 6002 {
		t.Errorf("%d bytes wait, at most %d; %d frames, %d left out", size, most, frames, left)
	}
	if at < 0 || at > 64 {
		t.Errorf("the other job's answer is frame %d", at)
	}
}

// What a node brings and a new leader has no use for is said now and then, however much of it there is.
func TestWhatIsBroughtInVainIsAFewLines(t *testing.T) {
	c := newChair(t)
	n := c.node("n1", 11)
	job := c.meets(1, 1000, n)
	kept := control.KVKept{Job: job.ID, Epoch: job.Epoch}
	for r := range replica.Rank(1000) {
		kept.Entries = append(kept.Entries, control.KVEntry{Rank: r, Op: control.KVBarrier, Key: "up", Members: int(r) + 1})
	}
	c.kept(n, kept)
	if lines := c.log.Count(`"level":"warn","node_name":"n1","event":"failed","what":"rendezvous"`); lines != 1 {
		t.Errorf("%d lines", lines)
	}
}
