//go:build cgo

package trouble_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/replica"
)

// TestResumeOfNothingIsSaid: whoever asks for the state on disk and gets the beginning learns it from the launcher.
func TestResumeOfNothingIsSaid(t *testing.T) {
	t.Parallel()
	n := one(t)
	l := n.run("fresh", 1, rankSpec{Steps: 3}, "--resume")
	if code := l.exit(); code != 0 {
		t.Errorf("it ends with code %d", code)
	}
	contains(t, l.output(), `nothing to resume job "fresh" from`, n.cfg.DurableDir, "it starts from its beginning")
}

// TestFinishedJobIsCommittedWhole: all ranks leave right after their last step, and the job ends with that step committed, whatever it
// was the leader waited for; and written, where steps are.
func TestFinishedJobIsCommittedWhole(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.start()
	}
	for _, tc := range []struct {
		name    string
		steps   int
		durable bool
		flags   []string
	}{
		{"twins", 41, false, nil},
		{"shards", 23, false, []string{"--groups", "0,1"}},
		{"cadence", 30, false, []string{"--cadence", "7"}},
		{"durable", 26, true, []string{"--durable-every", "10"}},
		{"short", 1, false, nil},
		{"slots", 25, false, []string{"--slots", "2"}},
		{"slots-again", 26, false, []string{"--slots", "2"}},
		{"slots-short", 7, false, []string{"--slots", "2"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var launchers []*process
			for i, n := range c.nodes {
				spec := rankSpec{Steps: tc.steps, Pace: time.Millisecond}
				launchers = append(launchers, n.run(tc.name, len(c.nodes), spec, append([]string{"--ranks", fmt.Sprint(i)}, tc.flags...)...))
			}
			for _, l := range launchers {
				if code := l.exit(); code != 0 {
					t.Errorf("%s ends with code %d", l.Name, code)
				}
			}
			j := c.nodes[0].statusWhen(linked).job(tc.name)
			if j.Position.Step != tc.steps || j.EndReason != "finished" {
				t.Errorf("step %d is committed of %d, the end is %q", j.Position.Step, tc.steps, j.EndReason)
			}
			if !tc.durable {
				return
			}
			s, err := tier.OpenDirectory(t.Context(), c.nodes[0].cfg.DurableDir, tier.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			found, _, err := s.Find(t.Context(), tc.name, replica.JobID{})
			if err != nil || len(found) == 0 || int(found[0].Position.Step) != tc.steps || j.Durable.Step != tc.steps {
				t.Errorf("durable generations %v, %v; status says %d: want the newest of step %d", found, err, j.Durable.Step, tc.steps)
			}
		})
	}
}
