package status

import (
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// No rounding makes a chance of what is certain, or the other way.
func TestChance(t *testing.T) {
	for want, o := range map[string]control.OddsStatus{"100 %": {Ways: 5, Survive: 5}, "0 %": {Ways: 5}, "99.99 % (all but 1 of 100000000 ways)": {Ways: 1e8, Survive: 1e8 - 1}, "0.01 % (all but 99999999 of 100000000 ways)": {Ways: 1e8, Survive: 1}} {
		if got := chance(o); got != want {
			t.Errorf("%+v: %q, want %q", o, got, want)
		}
	}
	if got := oddsText(nil); got != "" {
		t.Errorf("of no job: %q", got)
	}
}

func TestLossTexts(t *testing.T) {
	why := []string{"held by nobody"}
	var many []control.LossStatus
	for range maxLosses + 3 {
		many = append(many, control.LossStatus{Of: "node n", Nodes: []replica.NodeName{"n"}, Why: why})
	}
	if got := lossTexts(many); len(got) != maxLosses+1 || got[maxLosses] != "and 3 more: see replicad status --json" {
		t.Errorf("%q", got)
	}
	if got := lossTexts(append([]control.LossStatus{{Of: "process", Why: why}}, many...)); len(got) != 1 || got[0] != "process: held by nobody" {
		t.Errorf("%q: what stands in the way of any loss is said once", got)
	}
}

// TestStatusSaysThatCoresAreTaken: of a daemon that waits for cores, and of no other.
func TestStatusSaysThatCoresAreTaken(t *testing.T) {
	for ms, says := range map[int64]bool{0: false, lateFrom: false, 1500: true} {
		s := control.Status{LateMS: ms}
		var b strings.Builder
		if err := Print(&b, s); err != nil || strings.Contains(b.String(), "taken by others: this daemon waited up to 1500 ms") != says {
			t.Errorf("%d ms, %v:\n%s", ms, err, b.String())
		}
	}
}
