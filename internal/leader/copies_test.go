package leader

import (
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// A node that has lost its copy of a committed part leaves the record by an entry, and status then says how many copies are left and what the
// next loss would take.
func TestALostCopyLeavesTheRecord(t *testing.T) {
	c := newChair(t)
	h := func(n replica.NodeName, i replica.NodeIncarnation) replica.Holder {
		return replica.Holder{Node: n, Incarnation: i}
	}
	n1, n2 := c.node("n1", 11), c.node("n2", 22)
	both := []replica.Holder{h("n1", 11), h("n2", 22)}
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Copies, j.Phase = 2, replica.Open
		j.Parts = []replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{1}, Holders: both}, {Part: replica.OfRank(0), Root: replica.Digest{2}, Holders: both}, {Part: replica.OfRank(1), Root: replica.Digest{3}, Holders: both}}
	})
	led := c.knows(job)
	for _, n := range []*nodeLink{n1, n2} {
		c.recoverStep(t.Context(), fixture.JobID, led, recovery.NodeUp{Holder: n.node.Holder(), Session: 1})
		c.recoverStep(t.Context(), fixture.JobID, led, recovery.Report{NodeReport: replica.NodeReport{Job: fixture.JobID, Holder: n.node.Holder(), Session: 1, Offers: 2}})
	}
	says := func(copies int, degraded, survives bool) {
		t.Helper()
		s := c.said()[0]
		if s.Copies != copies || s.Degraded != degraded {
			t.Errorf("copies %d, degraded %v; want %d, %v", s.Copies, s.Degraded, copies, degraded)
		}
		for _, l := range s.Losses {
			if l.Of == "node n2" && l.Resume.IsZero() == survives {
				t.Errorf("loss of n2: resumes at %v, %v", l.Resume, l.Why)
			}
		}
	}
	says(2, false, true)
	c.proposed()
	c.message(t.Context(), n1, control.CopyReport{Job: fixture.JobID, Part: replica.OfGroup(0), Generation: job.Committed, Root: replica.Digest{1}, Lost: true})
	want := replica.SetHolder{Job: fixture.JobID, Generation: job.Committed, Part: replica.OfGroup(0), Root: replica.Digest{1}, Holder: h("n1", 11), Lost: true}
	if got := proposalsOf[replica.SetHolder](c); len(got) != 1 || got[0] != want {
		t.Fatalf("proposed %+v, want %+v", got, want)
	}
	c.knows(fixture.Changed(job, func(j *replica.Job) {
		j.Parts = append([]replica.PartRoot{{Part: replica.OfGroup(0), Root: replica.Digest{1}, Holders: both[1:]}}, j.Parts[1:]...)
	}))
	says(1, true, false)
	c.knows(fixture.Changed(job, func(j *replica.Job) { j.Phase = replica.Closed }))
	c.message(t.Context(), n1, control.CopyReport{Job: fixture.JobID, Part: replica.OfGroup(0), Generation: job.Committed, Root: replica.Digest{1}})
	if got := proposalsOf[replica.SetHolder](c); len(got) != 0 {
		t.Errorf("in a recovery: %+v", got)
	}
}
