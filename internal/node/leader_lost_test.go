package node

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// A link outlives its node for seconds: whether a node is here is asked of its probes too.
func TestNodeThatIsGoneIsLostThoughItsLinkStands(t *testing.T) {
	c := newChair(t)
	c.timing.Collect = 0
	operator := c.node("n1", 11)
	c.node("n2", 22)
	c.knows(closed(newJob()))
	answering := true
	c.answers = func(n replica.NodeName) bool { return n != "n2" || answering }
	ask := func() string {
		c.operate(t.Context(), operator, operatorRequest{ID: 1, Verb: verbLost, Node: "n2", Why: "burnt"})
		if proved := proposalsOf[replica.ProveLost](c); len(proved) == 1 {
			return "recorded"
		}
		replies := only[statusReply](told(t, operator))
		if len(replies) != 1 {
			t.Fatalf("%d answers", len(replies))
		}
		return string(replies[0].JSON)
	}
	if got := ask(); !strings.Contains(got, "n2 is connected and answers, its memory is there") {
		t.Errorf("of a node that is here: %s", got)
	}
	answering = false
	if got := ask(); got != "recorded" {
		t.Errorf("of a node whose daemon is gone: %s", got)
	}
}
