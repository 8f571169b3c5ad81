//go:build cgo

package trouble_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos/hostile"
	"github.com/replicad/replicad/internal/config"
)

// TestHostile runs the short patterns of `make hostile`: each is refused by name, the daemons' memory stays within its budget, and the job
// beside them trains on to the weights of an undisturbed run. Links and leaders are judged there alone: other tests share this machine.
func TestHostile(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	program, trainer := filepath.Join(bin, "replicad"), filepath.Join(bin, "textlm")
	// Without the race detector, whose own memory is what would be measured.
	if err := errors.Join(build("../../cmd/replicad", program, false, false), build("../../examples/textlm", trainer, false, true)); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	report, err := hostile.Run(t.Context(), hostile.Options{Brief: true, Hold: time.Second, Steps: 400, Program: program, Trainer: trainer, Lenient: true,
		Change: func(c *config.Config) {
			c.Raft.Heartbeat, c.Raft.Election, c.Raft.Lease = 2*time.Second, 2*time.Second, 2*time.Second
		}}, &said)
	if err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	if len(report.Outcomes) < 10 || report.Jobs == 0 {
		t.Errorf("%d patterns beside %d jobs", len(report.Outcomes), report.Jobs)
	}
}
