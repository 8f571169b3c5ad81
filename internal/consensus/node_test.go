package consensus

import (
	"errors"
	"testing"
)

func TestCommit(t *testing.T) {
	c := newTrio(t).startAll(true)
	first := c.propose("w1")
	second := c.propose("w2")
	if second <= first {
		t.Errorf("indexes %d, %d", first, second)
	}
	c.awaitNode("w2")
	lead := c.leader("")
	for name, n := range c.nodes {
		leader, addr, term, isSelf := n.Leadership()
		if leader != lead.cfg.ID || addr != lead.cfg.Addr || term == 0 || isSelf != (n == lead) {
			t.Errorf("%s says: leader %q at %q, term %d, isSelf %v", name, leader, addr, term, isSelf)
		}
		if n == lead {
			continue
		}
		_, _, err := n.Propose(within(t), register("w3"))
		var not *NotLeader
		if !errors.Is(err, ErrNotLeader) || !errors.As(err, &not) || not.Leader != lead.cfg.ID || not.Addr != lead.cfg.Addr {
			t.Errorf("%s, a follower, answers %v", name, err)
		}
	}
}
