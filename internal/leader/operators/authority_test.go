package operators

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// A node may end a job that was created there, or of which it holds a rank, without an operator's signature. It may end no other.
func TestUnsignedEndOfAJob(t *testing.T) {
	job := fixture.Job()
	job.Creator = "n1"
	view := lock.View{Jobs: map[replica.JobID]*replica.Job{job.ID: job}}
	for node, others := range map[replica.NodeName]bool{"n1": false, "n2": false, "n3": true} { // it created the job, holds a rank, does neither
		if text := beyond(view, node, control.Order{Verb: control.EndJob, Job: "job"}); (text != "") != others {
			t.Errorf("the end of a job by node %s: %q", node, text)
		}
	}
}

// Of the challenges that a node asks for and does not use only the newest are kept.
func TestChallengesAreBounded(t *testing.T) {
	var c challenges
	first := c.hand("n3", 0)
	for range MaxChallenges {
		c.hand("n3", 0)
	}
	if n := len(c.of["n3"]); n != MaxChallenges || c.take("n3", first, 0) {
		t.Errorf("%d challenges are kept of a node", n)
	}
}

// FuzzOrder: nothing that a link carries is taken for an order that an operator signed.
func FuzzOrder(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "pki")
	if err := pki.Init(dir, []replica.NodeName{"n1"}, time.Now()); err != nil {
		f.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	id, err := pki.Load(at("ca.pem"), at("n1.pem"), at("n1-key.pem"), at("gossip.key"))
	if err != nil {
		f.Fatal(err)
	}
	operator, err := pki.LoadOperator(at("operator.pem"))
	if err != nil {
		f.Fatal(err)
	}
	given := make([]byte, 32)
	want := control.Order{Verb: control.EndJob, Job: "job", Why: "enough"}
	signed, err := want.SignedBy(operator.Cluster, given, operator.Sign)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(fixture.Body(f, control.KindOperator, signed))
	none := func() lock.View { return lock.View{} }
	f.Fuzz(func(t *testing.T, b []byte) {
		msg, err := control.Decode(control.ToLeader, control.KindOperator, b)
		if err != nil || msg.(control.Order).Proof == nil {
			return
		}
		m := msg.(control.Order)
		a := NewAuthority(id.Cluster, none, id.CheckOperator, (*journal.Auditor)(nil))
		a.given.of = map[replica.NodeName][]challenge{"n3": {{given, time.Hour}}}
		who, err := a.authority("n3", m, 0, time.Now())
		m.ID, m.UID, m.Proof = 0, 0, nil
		if err == nil && (m != want || who != "operator operator") {
			t.Errorf("%q ordered %+v", who, m)
		}
	})
}
