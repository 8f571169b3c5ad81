package operators

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// cluster is a leader of one job, and the link of who orders. What is proposed stays under way.
type cluster struct {
	now      time.Duration
	job      *replica.Job
	view     lock.View
	begins   map[replica.NodeName]bool
	proposed []replica.Command
	got      []control.OperatorReply
}

func newCluster() *cluster {
	job := fixture.Job()
	nodes := map[replica.NodeName]replica.Node{}
	for i, n := range []replica.NodeName{"n1", "n2", "n3"} {
		nodes[n] = replica.Node{Name: n, Incarnation: replica.NodeIncarnation(11 * (i + 1))}
	}
	return &cluster{job: job, view: lock.View{Nodes: nodes, Jobs: map[replica.JobID]*replica.Job{job.ID: job}}}
}

func (c *cluster) Now() time.Duration             { return c.now }
func (c *cluster) Date() time.Time                { return time.Now() }
func (c *cluster) View() lock.View                { return c.view }
func (c *cluster) Job(replica.JobID) *replica.Job { return c.job }
func (c *cluster) Here(replica.Node) bool         { return true }
func (c *cluster) Beside(fn func())               { fn() }
func (c *cluster) VotersText() string             { return "VOTER" }
func (c *cluster) VotersChanged(string)           {}

func (c *cluster) Begins(_ replica.JobID, n replica.NodeName) bool { return c.begins[n] }

func (c *cluster) Running() []*replica.Job {
	if c.job == nil {
		return nil
	}
	return []*replica.Job{c.job}
}

func (c *cluster) Without(_ replica.JobID, n replica.NodeName) odds.Survival {
	return odds.Survives(plan.Input{Job: c.job, Nodes: c.view.Nodes}, odds.Loss{Nodes: []replica.NodeName{n}})[0]
}

func (c *cluster) Propose(_ context.Context, _ replica.JobID, cmd replica.Command, _ func(lock.Outcome, error)) {
	c.proposed = append(c.proposed, cmd)
}

func (c *cluster) Fault(context.Context, replica.JobID, replica.Fault) {}

func (c *cluster) Await(uint64, func(control.OperatorReply)) {}
func (c *cluster) Answer(_ uint64, r control.OperatorReply)  { c.got = append(c.got, r) }
func (c *cluster) Reply(id uint64, r control.OperatorReply)  { c.Answer(id, r) }
func (c *cluster) answers() (got []control.OperatorReply)    { got, c.got = c.got, nil; return got }

// A script that drains and then powers off must not take a drain that goes on for one that has ended: neither the first command nor one that repeats
// it, whose node has no rank any more and still holds what the ranks elsewhere load.
func TestADrainThatHasNotEndedIsRefused(t *testing.T) {
	c := newCluster()
	r := New(c, Config{})
	// The fixture's job has nobody to take the rank: the drain is made by hand.
	begin := func(within time.Duration, ranks []replica.Rank, again bool) {
		m := control.Order{Verb: control.Drain, Node: "n2", Within: within}
		r.drains = []*drain{{from: c, id: 9, node: "n2", within: m.Patience(), until: c.now + m.Patience(), tried: map[replica.JobID]time.Duration{},
			ranks: map[replica.JobID][]replica.Rank{fixture.JobID: ranks}, again: map[replica.JobID]bool{fixture.JobID: again}}}
	}
	r.Operate(t.Context(), c, control.Order{ID: 1, Verb: control.Drain, Node: "n2", Degrade: true}, "operator eve")
	if a := c.answers(); len(a) != 1 || !strings.Contains(a[0].Refused, "can't be drained") || len(c.proposed) != 0 {
		t.Fatalf("%+v, and proposes %v", a, c.proposed)
	}
	answer := func() []control.OperatorReply {
		r.Drained(t.Context())
		return c.answers()
	}
	for _, within := range []time.Duration{0, time.Minute} {
		begin(within, []replica.Rank{1}, false)
		wait := max(within, control.DrainTimeout)
		c.now += wait - time.Second
		if a := answer(); len(a) != 0 {
			t.Fatalf("after %v: %+v", wait-time.Second, a)
		}
		c.now += time.Second
		a := answer()
		if len(a) != 1 || a[0].Text != "" || !strings.Contains(a[0].Refused, "has not ended within "+wait.String()+", and goes on: do not stop it yet") ||
			!strings.Contains(a[0].Refused, "job job (open): rank 1 is on n2") {
			t.Fatalf("after %v: %+v", wait, a)
		}
	}
	moved := func(phase func(*replica.Job) *replica.Job) {
		c.job = phase(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Ranks[1].Node, j.Quarantined = "n3", []replica.NodeName{"n2"} }))
	}
	moved(fixture.Closed)
	begin(0, nil, true) // the command is repeated while the rank starts elsewhere
	if a := answer(); len(a) != 0 || !r.Busy() {
		t.Fatalf("while the rank loads: %+v", a)
	}
	moved(func(j *replica.Job) *replica.Job { return j })
	if a := answer(); len(a) != 1 || a[0].Refused != "" || !strings.Contains(a[0].Text, "node n2 is drained") || r.Busy() {
		t.Fatalf("the rank runs elsewhere: %+v", a)
	}
}

// A launcher that starts ranks of a job which opens would start them on a drained node, where none may attach, until the job was given up.
func TestNodeIsNotDrainedWhileItsRanksBegin(t *testing.T) {
	c := newCluster()
	c.begins = map[replica.NodeName]bool{"n3": true}
	r := New(c, Config{})
	r.Operate(t.Context(), c, control.Order{ID: 1, Verb: control.Drain, Node: "n3", Degrade: true}, "operator eve")
	a := c.answers()
	if len(a) != 1 || !strings.Contains(a[0].Refused, "ask again once the job is open") || len(c.proposed) != 0 || r.Busy() {
		t.Fatalf("%+v, and proposes %v", a, c.proposed)
	}
	c.begins = nil
	r.Operate(t.Context(), c, control.Order{ID: 2, Verb: control.Drain, Node: "n3", Degrade: true}, "operator eve")
	if a := c.answers(); len(a) != 0 || len(c.proposed) != 1 {
		t.Fatalf("once it is open: %+v, and proposes %v", a, c.proposed)
	}
}

// No certificate that is good is beyond revocation: up to the newest that was seen without a word, further ahead with --force; the answer says
// where one may be that this leader has not seen.
func TestRevocationReachesWhatIsGood(t *testing.T) {
	ahead := replica.CertEpoch(time.Now().Add(25 * time.Hour).Unix()) // as a CA's clock that is ahead issues one
	seen := map[string]replica.CertEpoch{"n2": ahead, "mallory": 7}
	r := New(&cluster{}, Config{Newest: func(_ replica.Role, name string) replica.CertEpoch { return seen[name] }})
	for name, tc := range map[string]struct {
		of            string
		until         replica.CertEpoch
		refused, cost string
	}{
		"none":             {"eve", 0, "is a clock wrong", ""},
		"below the newest": {"n2", ahead - 1, "--until " + fmt.Sprint(ahead), ""},
		"the newest":       {"n2", ahead, "", ""},
		"far ahead":        {"eve", 17_954_582_951, "", "is a clock wrong"},
		"past the newest":  {"n2", ahead + 1, "", "is a clock wrong"},
		"now":              {"mallory", 8, "", ""},
	} {
		err := r.mayRevoke(replica.OperatorRole, tc.of, tc.until)
		if (err == nil) != (tc.refused == "") || err != nil && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: %v, want %q", name, err, tc.refused)
		}
		if err != nil {
			continue
		}
		costs := strings.Join(r.revocationCosts(replica.OperatorRole, tc.of, tc.until, "operator x"), "; ")
		if (costs == "") != (tc.cost == "") || !strings.Contains(costs, tc.cost) {
			t.Errorf("%s: costs %q, want %q", name, costs, tc.cost)
		}
	}
	for name, unseen := range map[string]bool{"eve": true, "mallory": false} {
		if text := r.revokedText(replica.OperatorRole, name, 9); strings.Contains(text, "has seen none") != unseen || unseen && !strings.Contains(text, "--until") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
