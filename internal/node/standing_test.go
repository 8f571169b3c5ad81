package node

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// TestAWaitBeforeALeaderIsOver: what a voter said before a leader answered names it no longer when that leader is lost.
func TestAWaitBeforeALeaderIsOver(t *testing.T) {
	d := &daemon{cfg: &config.Config{Node: "n1", Voters: []config.Voter{{Name: "n2", Addr: "127.0.0.1:2"}, {Name: "n3", Addr: "127.0.0.1:3"}}}}
	d.said.Add("n2", control.Standing{State: control.WaitsToVote, Why: "waits: it begins the cluster"}, time.Now())
	d.unlinked.Add(replica.Holder{Node: "n3"}, "nobody listens", time.Now())
	if got := notVoting(d.votersKnown()); len(got) != 1 {
		t.Errorf("before a leader answers: %q", got)
	}
	d.ledAgain()
	for _, v := range d.votersKnown() {
		if v.Why != "" || v.State != "unknown" {
			t.Errorf("after a leader answered: %+v", v)
		}
	}
}
