package consensus

import (
	"testing"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// taking has a voter that lost its log be taken in, and stops it in the middle of that.
func (c *trio) taking() (lost replica.NodeName, of bound) {
	c.t.Helper()
	if lost = "n3"; c.leader("").cfg.ID == lost {
		lost = "n2"
	}
	c.stop(lost)
	c.empty(lost)
	b := c.start(lost, false).ballot
	c.until("a leader to take it in", func() bool { return b.is() == learns && b.n.store.marked().Index > 0 })
	b.mu.Lock()
	of = b.bound
	b.mu.Unlock()
	c.stop(lost)
	return lost, of
}

// TestLogOfALearnerIsNoVote: a log of the seconds in which its voter was taken in comes back, after it has voted in later terms. It takes entries only of a leader that
// takes it in once more: one of those days would count it for what it has promised to others.
func TestLogOfALearnerIsNoVote(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		lost, of := c.taking()
		putBack := c.copied(lost)
		c.start(lost, false)
		c.all()
		lead := c.leader("").cfg.ID
		c.stop(lead)
		c.propose("w2") // it voted for that leader
		c.start(lead, false)
		c.awaitNode("w2")
		c.all()
		c.stop(lost)
		putBack()
		n := c.start(lost, false)
		if n.ballot.takes(of.Term) {
			t.Errorf("entries of a leader of term %d are taken, and this voter has voted in term %d", of.Term, c.leader("").raft.CurrentTerm())
		}
		c.says(lost, Learner, "of when a leader took it in", "once more")
		c.all()
		c.awaitNode("w2")
		c.propose("w3")
		c.awaitNode("w3")
		c.same(c.leader(""), "n1", "n2", "n3")
	})
}

// TestTakingInGoesOnWhereTheKeeperRemembers: a daemon that starts again while a leader takes it in needs no other invite, where its keeper knows all that it promised.
func TestTakingInGoesOnWhereTheKeeperRemembers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.kept["n2"], c.kept["n3"] = &testMemory{}, &testMemory{}
		c.startAll(true)
		c.propose("w1")
		lost := replica.NodeName("n3")
		if c.leader("").cfg.ID == lost {
			lost = "n2"
		}
		c.kept[lost] = &testMemory{} // its machine was replaced
		lost, of := c.taking()
		if n := c.start(lost, false); !n.ballot.takes(of.Term) {
			t.Errorf("entries of the leader of term %d, which takes it in, are not taken", of.Term)
		}
		c.all()
	})
}

// TestRecoverWhereALeaderTookItIn: the quorum is lost for good in those seconds, and the operator has nothing but this log: it votes for itself.
func TestRecoverWhereALeaderTookItIn(t *testing.T) {
	for _, keeper := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			c := newTrio(t)
			if keeper {
				c.kept["n2"], c.kept["n3"] = &testMemory{}, &testMemory{}
			}
			c.startAll(true)
			c.propose("w1")
			lost, _ := c.taking()
			c.stopAll()
			if _, err := Recover(c.config(lost)); err != nil {
				t.Fatal(err)
			}
			c.names = []replica.NodeName{lost}
			c.start(lost, false)
			c.propose("w2")
		})
	}
}

// TestWhatWasHeardOfAnOldLogStays: the only one that knows how far a voter had gone says so, and goes away: with the others that voter would elect who lacks it.
func TestWhatWasHeardOfAnOldLogStays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		c.awaitNode("w1")
		c.all()
		lead := c.leader("").cfg.ID
		others := make([]replica.NodeName, 0, 2)
		for _, name := range c.names {
			if name != lead {
				others = append(others, name)
			}
		}
		old, third := others[0], others[1]
		c.stop(old)
		putBack := c.copied(old)
		c.start(old, false)
		c.all()
		c.stop(third)
		c.propose("w2") // on the leader and on old alone
		c.awaitNode("w2")
		c.stop(old)
		putBack()
		c.start(old, false)
		c.pass()
		c.says(old, Behind, "old copy")
		c.stop(lead)
		c.start(third, false)
		c.pass()
		if c.led() {
			t.Fatal("an old log was a vote, since who knew better had gone")
		}
		c.says(old, Behind, "old copy")
		c.start(lead, false)
		c.all()
		c.awaitNode("w2")
		c.same(c.leader(""), "n1", "n2", "n3")
	})
}
