package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// TestStallIsSaidEverywhere: a job that trains, and whose commits wait for a mirror that takes nothing while no other node could, says so once to
// its launchers, in status, in the log and with what a fault would cost; and that commits go on.
func TestStallIsSaidEverywhere(t *testing.T) {
	c, led, n1, n2 := pinner(t)
	p := pinned(led, n2)
	p.Parts = p.Parts[:2] // not what it mirrors of rank 0
	c.handle(t.Context(), nodeMessage{n1, pinned(led, n1)})
	c.handle(t.Context(), nodeMessage{n2, p})
	led.reports["n2"] = replica.NodeReport{}
	live := led.job.Position.Step
	job := led.job
	run := func(seconds int, bytes func(int) uint64) {
		for i := range seconds {
			live += 10
			led.reports["n1"] = replica.NodeReport{Ranks: []replica.RankReport{{Rank: 0, Incarnation: job.Ranks[0].Incarnation, Live: replica.PackWord(job.Epoch, live, replica.Idle)}}}
			c.handle(t.Context(), nodeMessage{n1, control.PushReport{Job: job.ID, Generation: led.candidate.Generation,
				Pushes: []control.Pushing{{Part: replica.OfRank(0), To: "n2", Bytes: bytes(i), Why: "no place can be freed"}}}})
			c.pass(time.Second)
			c.tick(t.Context())
		}
	}
	tells := func() (said []string) {
		for _, m := range fixture.Only[control.Tell](told(t, n2)) {
			if !strings.HasPrefix(m.Text, "waiting: node") { // the daemons here have no links
				said = append(said, m.Text)
			}
		}
		return said
	}
	run(30, func(i int) uint64 { return uint64(i+1) << 20 })
	if s, said := c.said()[0], tells(); s.Stalled != "" || s.Degraded || len(said) > 0 || c.log.Count("commit_stalled") > 0 {
		t.Fatalf("of a part that moves: %q, degraded %v, launchers are told %q", s.Stalled, s.Degraded, said)
	}
	run(6, func(int) uint64 { return 1 })
	s, said := c.said()[0], tells()
	for _, want := range []string{"nothing has been committed for 3", "one more fault would cost the 3", "private 0 lies on n1, and its mirror, node n2, does not take it (no place can be freed): no other node can mirror it"} {
		if !strings.Contains(s.Stalled, want) || len(said) != 1 || !strings.Contains(said[0], want) {
			t.Errorf("status says %q, launchers are told %q: want %q", s.Stalled, said, want)
		}
	}
	if !s.Degraded || !s.AtRisk || c.log.Count("commit_stalled") != 1 {
		t.Errorf("degraded %v, at risk %v, %d lines in the log", s.Degraded, s.AtRisk, c.log.Count("commit_stalled"))
	}
	led.job = fixture.Changed(job, func(j *replica.Job) { j.Position.Step, j.Committed.Step = live, live })
	c.view.Jobs[job.ID] = led.job
	c.pass(time.Second)
	c.tick(t.Context())
	if s, said := c.said()[0], tells(); s.Stalled != "" || len(said) != 1 || !strings.HasPrefix(said[0], "commits go on, at step ") || c.log.Count("commits_again") != 1 {
		t.Errorf("after a commit status says %q, launchers are told %q", s.Stalled, said)
	}
}
