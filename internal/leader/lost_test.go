package leader

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// A link outlives its node for seconds: whether a node is here is asked of its probes too.
func TestNodeThatIsGoneIsLostThoughItsLinkStands(t *testing.T) {
	c := newChair(t)
	c.timing.Collect = 0
	operator := c.node("n1", 11)
	c.node("n2", 22)
	c.knows(fixture.Closed(fixture.Job()))
	answering := true
	c.cfg.Answers = func(n replica.NodeName) bool { return n != "n2" || answering }
	ask := func() string {
		c.operators.Operate(t.Context(), operator, control.Order{ID: 1, Verb: control.Lost, Node: "n2", Why: "burnt"}, "operator eve")
		if proved := proposalsOf[replica.ProveLost](c); len(proved) == 1 {
			return "recorded"
		}
		replies := fixture.Only[control.OperatorReply](told(t, operator))
		if len(replies) != 1 {
			t.Fatalf("%d answers", len(replies))
		}
		return replies[0].Refused
	}
	if got := ask(); !strings.Contains(got, "n2 is connected and answers, its memory is there") {
		t.Errorf("of a node that is here: %s", got)
	}
	answering = false
	if got := ask(); got != "recorded" {
		t.Errorf("of a node whose daemon is gone: %s", got)
	}
}

// What an operator says is lost frees the ranks that it ran by the records, whatever phase their job is in: nobody else may ever say so, where
// its host answers for it.
func TestLostNodeGivesItsRanksBack(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*replica.Job)
		frees  bool
	}{
		"open":    {func(*replica.Job) {}, true},
		"planned": {func(j *replica.Job) { j.Phase = replica.Planned }, true},
		"closed":  {func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Closed, j.Epoch }, true},
		"claimed in its former life": {func(j *replica.Job) {
			j.Ranks = []replica.Claimed{j.Ranks[0], {Incarnation: 5, Node: "n2", NodeIncarnation: 21}}
		}, true},
		"it only mirrors": {func(j *replica.Job) {
			j.Ranks = []replica.Claimed{j.Ranks[0], {Incarnation: 5, Node: "n1", NodeIncarnation: 11}}
		}, false},
		"it runs nothing, nor does n1": {func(j *replica.Job) { j.Ranks = make([]replica.Claimed, 2) }, false},
	} {
		ch := newChair(t)
		ch.timing.Collect = 0
		operator := ch.node("n1", 11)
		ch.node("n2", 22)
		delete(ch.links.of, "n2")
		ch.knows(fixture.Changed(fixture.Job(), c.change))
		ch.proposed()
		ch.operators.Operate(t.Context(), operator, control.Order{ID: 1, Verb: control.Lost, Node: "n2", Why: "burnt"}, "operator eve")
		proved, dead := 0, 0
		for _, cmd := range ch.proposed() {
			switch cmd := cmd.(type) {
			case replica.ProveLost:
				proved++
			case replica.ReportFault:
				if cmd.Fault.Kind == replica.NodeDead && cmd.Fault.Node == "n2" && cmd.Fault.NodeIncarnation == 22 {
					dead++
				}
			}
		}
		if proved != 1 || (dead > 0) != c.frees {
			t.Errorf("%s: %d proofs of loss and %d faults of the node; want one, and a fault: %v", what, proved, dead, c.frees)
		}
	}
}
