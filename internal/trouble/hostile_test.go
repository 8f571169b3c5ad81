//go:build cgo

package trouble_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/replicad/replicad/chaos/hostile"
	"github.com/replicad/replicad/internal/config"
)

// hostileMode names the directory of the programs to a process of this binary that is the driver of TestHostile: at its end a driver kills
// whatever children it has left, and here these would be other tests'.
const hostileMode = "REPLICAD_TROUBLE_HOSTILE"

// hostileMain runs the short patterns. The job beside them is slow, so that the cores are the attacks' and the daemons'.
func hostileMain(bin string) int {
	report, err := hostile.Run(context.Background(), hostile.Options{Brief: true, Hold: time.Second, Steps: 60, Pace: 200 * time.Millisecond, Program: filepath.Join(bin, "replicad"), Trainer: filepath.Join(bin, "textlm"), Lenient: true,
		Change: func(c *config.Config) {
			c.Raft.Heartbeat, c.Raft.Election, c.Raft.Lease = 2*time.Second, 2*time.Second, 2*time.Second
		}}, os.Stdout)
	if err == nil && (len(report.Outcomes) < 10 || report.Jobs == 0) {
		err = fmt.Errorf("%d patterns beside %d jobs", len(report.Outcomes), report.Jobs)
	}
	if err != nil {
		fmt.Println("hostile:", err)
		return 1
	}
	return 0
}

// TestHostile runs the short patterns of `make hostile`: each is refused by name, the daemons' memory stays within its budget, and the job
// beside them trains on to the weights of an undisturbed run. Links and leaders are judged there alone: other tests share this machine.
func TestHostile(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if err := programs(bin); err != nil { // without the race detector, whose own memory is what would be measured
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := spawn(t, "hostile", []string{hostileMode + "=" + bin}, self)
	<-p.gone // go test has a limit, and its own is the attacks'
	if code := p.exit(); code != 0 {
		t.Errorf("code %d: %s", code, p.output())
	}
}
