package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// A rank stands still in its step and another one has left. From then on nothing happens of which a node would tell, and no rule has anything to
// wake for: that time passes is enough for status and the launchers to name the rank.
func TestWhoStandsStillBesideALeftRankIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name         string
		left, halted bool
		says         string
		launchers    bool
	}{
		{"hangs", true, false, "rank 0: process 10 on node n1 stands still in step 6, UPDATING for ", true},
		{"is stopped", true, true, "rank 0: process 10 on node n1 is stopped by a signal (kill -CONT 10)", true},
		{"hangs beside one that waits", false, false, "rank 0: process 10 on node n1 stands still in step 6, UPDATING for ", false},
		{"is stopped beside one that waits", false, true, "rank 0: process 10 on node n1 is stopped by a signal (kill -CONT 10)", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := newOffice(t, nil)
			led := o.jobs[fixture.JobID]
			for r, n := range []replica.NodeName{"n1", "n2"} {
				node := o.view.Nodes[n]
				rep := replica.RankReport{Rank: replica.Rank(r), Incarnation: led.job.Ranks[r].Incarnation, Alive: true, Attached: true, PID: uint64(10 + r), Loaded: led.job.Epoch, Live: replica.PackWord(led.job.Epoch, 6, replica.Idle)}
				if r == 0 {
					rep.Live, rep.Halted = replica.PackWord(led.job.Epoch, 6, replica.Updating), tc.halted
				} else {
					rep.Left = tc.left
				}
				o.recoverStep(t.Context(), fixture.JobID, led, recovery.NodeUp{Holder: node.Holder(), Session: 1})
				o.message(t.Context(), o.by[n], replica.NodeReport{Job: fixture.JobID, Holder: node.Holder(), Session: 1, Seq: 1, Epoch: led.job.Epoch, Phase: led.job.Phase, Ranks: []replica.RankReport{rep}})
			}
			named := func() string { return strings.Join(o.said()[0].Waiting, "; ") }
			if got := named(); strings.Contains(got, "rank 0: process 10") {
				t.Errorf("at once: %q", got)
			}
			told(t, o.by["n1"])
			o.start = o.start.Add(-16 * time.Second)
			if got := named(); !strings.Contains(got, tc.says) || strings.Count(got, "rank 0: process 10") != 1 || !tc.halted && !strings.Contains(got, "and the others wait for it (kill -9 10 has it started anew)") {
				t.Errorf("status says %q, want %q", got, tc.says)
			}
			o.tick(t.Context())
			var notes []string
			for _, m := range fixture.Only[control.Tell](told(t, o.by["n1"])) {
				notes = append(notes, m.Text)
			}
			if got := strings.Join(notes, "\n"); strings.Contains(got, tc.says) != tc.launchers {
				t.Errorf("launchers are told %q", got)
			}
		})
	}
}
