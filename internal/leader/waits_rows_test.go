package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// Each commit waits for each part for a moment: that is no row of status. One that lasts, or that ranks have left behind, is.
func TestAnOrdinaryCommitIsNoWait(t *testing.T) {
	c, led, n1, n2 := pinner(t)
	p := pinned(led, n2)
	p.Parts = p.Parts[:2] // not what it mirrors of rank 0
	c.handle(t.Context(), nodeMessage{n1, pinned(led, n1)})
	c.handle(t.Context(), nodeMessage{n2, p})
	live := func(above replica.Step) {
		led.reports["n1"] = replica.NodeReport{Ranks: []replica.RankReport{{Rank: 0, Incarnation: led.job.Ranks[0].Incarnation, Live: replica.PackWord(led.job.Epoch, led.job.Position.Step+above, replica.Idle)}}}
	}
	rows := func() string { return strings.Join(c.said()[0].Waiting, "; ") }
	if w := led.committer.Waiting(); len(w) == 0 || !strings.Contains(w[0], "private 0") {
		t.Fatalf("the commit waits for %q: the test shows nothing", w)
	}
	live(1)
	c.pass(time.Second)
	c.tick(t.Context())
	if got := rows(); strings.Contains(got, "private 0") {
		t.Errorf("one step behind: %q", got)
	}
	live(waitSteps + 1)
	if got := rows(); !strings.Contains(got, "private 0") {
		t.Errorf("%d steps behind: %q", waitSteps+1, got)
	}
	live(1)
	c.pass(waitSaid + time.Second)
	if got := rows(); !strings.Contains(got, "private 0") {
		t.Errorf("for %v: %q", waitSaid, got)
	}
}
