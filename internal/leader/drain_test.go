package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A script that drains and then powers off must not take a drain that goes on for one that has ended: neither the first command nor one that repeats
// it, whose node has no rank any more and still holds what the ranks elsewhere load.
func TestADrainThatHasNotEndedIsRefused(t *testing.T) {
	o := newOffice(t, nil)
	order := func(within time.Duration) control.OperatorReply {
		return o.gives("n2", control.Order{Verb: control.Drain, Node: "n2", Degrade: true, Within: within})
	}
	// The fixture's job has nobody to take the rank: the drain is made by hand.
	drain := func(within time.Duration, ranks []replica.Rank, again bool) {
		m := control.Order{Verb: control.Drain, Node: "n2", Within: within}
		o.drains = []*drain{{from: o.by["n2"], id: 9, node: "n2", within: m.Patience(), until: o.now() + m.Patience(), tried: map[replica.JobID]time.Duration{},
			ranks: map[replica.JobID][]replica.Rank{fixture.JobID: ranks}, again: map[replica.JobID]bool{fixture.JobID: again}}}
	}
	if r := order(0); !strings.Contains(r.Refused, "can't be drained") {
		t.Fatalf("%+v", r)
	}
	answer := func() (out []control.OperatorReply) {
		o.drained(t.Context())
		return fixture.Only[control.OperatorReply](told(t, o.by["n2"]))
	}
	for _, within := range []time.Duration{0, time.Minute} {
		drain(within, []replica.Rank{1}, false)
		wait := max(within, control.DrainTimeout)
		o.pass(wait - time.Second)
		if r := answer(); len(r) != 0 {
			t.Fatalf("after %v: %+v", wait-time.Second, r)
		}
		o.pass(time.Second)
		r := answer()
		if len(r) != 1 || r[0].Text != "" || !strings.Contains(r[0].Refused, "has not ended within "+wait.String()+", and goes on: do not stop it yet") || !strings.Contains(r[0].Refused, "job job (open): rank 1 is on n2") {
			t.Fatalf("after %v: %+v", wait, r)
		}
	}
	moved := func(phase func(*replica.Job) *replica.Job) {
		o.knows(phase(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Ranks[1].Node, j.Quarantined = "n3", []replica.NodeName{"n2"} })))
	}
	moved(fixture.Closed)
	drain(0, nil, true) // the command is repeated while the rank starts elsewhere
	if r := answer(); len(r) != 0 {
		t.Fatalf("while the rank loads: %+v", r)
	}
	moved(func(j *replica.Job) *replica.Job { return j })
	if r := answer(); len(r) != 1 || r[0].Refused != "" || !strings.Contains(r[0].Text, "node n2 is drained") {
		t.Fatalf("the rank runs elsewhere: %+v", r)
	}
}
