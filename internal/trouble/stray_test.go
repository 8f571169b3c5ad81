//go:build cgo

package trouble_test

import (
	"testing"
)

// TestLeaderDoesNotReachANode: a node with ranks gets nothing from the leader, which hears it or not, and everything from the others. A
// voter that reaches both leads then, commits go on, and nothing of the job is replaced.
func TestLeaderDoesNotReachANode(t *testing.T) {
	t.Parallel()
	for name, bothWays := range map[string]bool{"one way": false, "both ways": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, "n1", "n2", "n3")
			network := c.behind()
			old, others := c.leader()
			ranks := c.textlm(others[0], others[1], old)
			ranks.awaitLine(0, "ten steps", func(l line) bool { return l.is("step", nil) && stepAt(l) >= 10 }) // the ranks have met

			mark, from := others[0].daemon.mark(), old.daemon.mark()
			cut := network.CutOneWay
			if bothWays {
				cut = network.Cut
			}
			c.must(cut(old.name(), others[0].name()))
			l := old.daemon.awaitFrom(from, "leadership_moves", nil)
			if l.fields["node"] != others[1].name() {
				t.Errorf("leadership moves: %s", l.text)
			}
			others[0].daemon.awaitFrom(mark, "linked", fields{"leader": others[1].name()})
			reached := ranks.awaitFrom(ranks.mark(), "step", nil)
			for _, n := range others {
				n.daemon.awaitLine(0, "a later commit", func(l line) bool { return l.is("commit_seen", nil) && stepAt(l) >= stepAt(reached)+20 })
			}
			if job := others[1].statusWhen(linked).job("lm"); job.Epoch != 1 {
				t.Errorf("the job is at epoch %d: something of it was replaced", job.Epoch)
			}
		})
	}
}
