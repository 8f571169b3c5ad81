//go:build cgo

package trouble_test

import (
	"testing"
)

// TestLeaderDoesNotReachANode: a node with ranks gets nothing from the leader, which hears it or not, and everything from the others. A
// voter that reaches both leads then, and commits go on.
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

			cut := network.CutOneWay
			if bothWays {
				cut = network.Cut
			}
			c.must(cut(old.Name, others[0].Name))
			// On a machine under load voters may have elected another leader before the cut, or may before the old one moves leadership.
			others[0].statusWhen(func(s status) bool { return s.Leader != "" && s.Leader != old.Name })
			reached := ranks.awaitFrom(ranks.mark(), "step", nil)
			for _, n := range others {
				n.daemon.awaitLine(0, "a later commit", func(l line) bool { return l.is("commit_seen", nil) && stepAt(l) >= stepAt(reached)+20 })
			}
		})
	}
}
