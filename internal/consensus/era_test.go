package consensus

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// TestVotersAddedAfterARecoveryAreOfItsEra: one voter was recovered, two were added, and their machines start again with new keepers. The era lay beside the
// recovered log alone: what that voter remembered of the two was of a later era than their logs, both counted as old, and nobody led any more.
func TestVotersAddedAfterARecoveryAreOfItsEra(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		for _, n := range []replica.NodeName{"n2", "n4", "n5"} {
			c.kept[n] = &testMemory{}
		}
		c.startAll(true)
		c.propose("w1")
		c.awaitNode("w1")
		c.stopAll()
		if _, err := Recover(c.config("n2")); err != nil {
			t.Fatal(err)
		}
		c.names = []replica.NodeName{"n2"}
		n := c.start("n2", false)
		c.propose("w2")
		c.names = []replica.NodeName{"n2", "n4", "n5"}
		c.tune = func(cfg *Config) { cfg.Join = cfg.ID != "n2" }
		added := []replica.NodeName{"n4", "n5"}
		for _, x := range added {
			c.start(x, false)
			if err := n.AddVoter(within(t), Voter{x, c.addr(x)}); err != nil {
				t.Fatal(err)
			}
		}
		c.propose("w3")
		c.awaitNode("w3")
		c.all()
		for _, x := range added {
			c.stop(x)
			c.kept[x] = &testMemory{}
		}
		for _, x := range added {
			c.start(x, false)
		}
		time.Sleep(time.Minute)
		era := c.nodes["n2"].store.marked().Era
		for _, x := range c.names {
			if is := c.nodes[x]; era == 0 || is.store.marked().Era != era || !is.Standing().Votes() {
				t.Errorf("%s: era %d, want %d; %v", x, is.store.marked().Era, era, is.Standing())
			}
		}
		if !c.led() {
			t.Error("nobody leads")
		}
	})
}
