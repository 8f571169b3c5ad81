package leader

import (
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/rendezvous"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// swings is a log whose leadership goes and comes back.
type swings struct {
	Log
	leads bool
	view  lock.View
}

func (s *swings) Leadership() (replica.NodeName, string, uint64, bool) { return "n1", "", 7, s.leads }
func (s *swings) State() lock.View                                     { return s.view }

// TestALeaderAgainInItsTerm numbers on: it could not write its log for a while, and was not replaced. Nodes take a candidate with a lower number for an
// old one, and would pin none until it had come as far again; and what was written at the rendezvous is a leader's before.
func TestALeaderAgainInItsTerm(t *testing.T) {
	c := newChair(t)
	job := fixture.Job()
	log := &swings{Log: c.cons, view: lock.View{Index: 10, Cluster: fixture.Cluster, Era: 1, Jobs: map[replica.JobID]*replica.Job{job.ID: job}, Nodes: map[replica.NodeName]replica.Node{
		"n1": {Name: "n1", Incarnation: 11, Session: 1}, "n2": {Name: "n2", Incarnation: 22, Session: 1},
	}}}
	c.cons = log
	leads := func(yes bool) {
		log.leads = yes
		c.refresh(t.Context(), true)
		if led := c.jobs[job.ID]; led != nil {
			c.listens(t.Context(), led)
		}
	}
	write := func(value string) (rendezvous.Write, rendezvous.Result) {
		w := rendezvous.Write{Op: rendezvous.Set, Key: "k", Value: []byte(value), By: rendezvous.Token{Rank: 1}}
		r, err := c.kv.Write(job.ID, job.Epoch, w)
		if err != nil {
			t.Fatal(err)
		}
		return w, r
	}
	leads(false)
	leads(true)
	for range 3 { // each commit has the next candidate named
		was := log.view
		log.view.Index++
		log.view.Jobs = map[replica.JobID]*replica.Job{job.ID: fixture.Changed(was.Jobs[job.ID], func(j *replica.Job) { j.Position.Step++; j.Committed.Step++ })}
		leads(true)
	}
	first := c.jobs[job.ID].candidate
	if first.N < 3 {
		t.Fatalf("the candidate is %+v", first)
	}
	w, r := write("one")

	leads(false)
	leads(true)
	if again := c.jobs[job.ID].candidate; again.Term != first.Term || again.Compare(first) <= 0 {
		t.Errorf("the candidate after it led again is %+v, which is not later than %+v", again, first)
	}
	if err := c.kv.Restore(job.ID, job.Epoch, w, r); err != nil {
		t.Fatal(err)
	}
	if v, ok := c.kv.Get(job.ID, job.Epoch, "k"); !ok || string(v) != "one" {
		t.Errorf("what was written before reads %q, %v", v, ok)
	}
	if _, later := write("two"); later.Seq <= r.Seq {
		t.Errorf("write %d comes after write %d", later.Seq, r.Seq)
	}
}
