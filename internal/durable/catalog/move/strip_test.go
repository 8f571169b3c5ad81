package move

import (
	"testing"

	"github.com/replicad/replicad/internal/leakcheck"
	"github.com/replicad/replicad/replica"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// TestWhatIsAnOptimizers: a parameter of no model lies under its optimizer's name, and is none of its state.
func TestWhatIsAnOptimizers(t *testing.T) {
	names := map[string]bool{ // and whether it goes
		"model.weight": false, "model.param.0.1": false, "optimal": false, "replicad.shared": false,
		"optim.model.weight.exp_avg": true, "optim.own.count": true, "optim.groups.0.lr": true, "optim.model.param.0.1.exp_avg": true,
		"optim.param.0.1": false, "optim.param.0.1.exp_avg": true, "optim.2.param.0.0": false, "optim.2.param.0.0.exp_avg": true,
		"optim.adam.param.1.0.inner": false, // a wrapper's
	}
	var regions []replica.Region
	for name := range names {
		regions = append(regions, replica.Region{Name: name})
	}
	goes := ofOptimizer(regions)
	for _, r := range regions {
		if goes(r) != names[r.Name] {
			t.Errorf("%s goes: %v", r.Name, goes(r))
		}
	}
	if goes(replica.Region{Name: "optim.own.seed", Kind: replica.Private}) || goes(replica.Region{Name: "optim.x", Class: replica.Frozen}) {
		t.Error("what is a rank's own, or frozen, goes")
	}
}
