package recovery_test

import (
	"testing"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// TestStepsLostAreCountedOnce: the plan says how many steps are done again, and how many of them were committed, also where every process that
// made them is gone, and where a plan was closed before it was resumed.
func TestStepsLostAreCountedOnce(t *testing.T) {
	for _, tc := range []struct {
		what  string
		twice bool // a further fault in the planned epoch
	}{{"at once", false}, {"after a plan that nobody resumed", true}} {
		w := opened(t, []replica.GroupID{0, 0}, map[replica.NodeName]int{"a": 2, "b": 2})
		j := w.state()
		for range 3 {
			if err := w.step(true); err != nil {
				t.Fatal(err)
			}
		}
		committed := w.state().Position.Step
		for _, d := range w.nodes { // steps that nobody has captured
			for _, p := range d.procs {
				p.live.Step += 7
				p.torn = true // as in the middle of the next one
			}
		}
		await(t, w, time.Second)
		kill := func() {
			for _, d := range w.nodes {
				for _, p := range d.procs {
					if p.alive {
						p.alive = false
						d.offers++
					}
				}
			}
		}
		kill()
		if tc.twice {
			w.onPlan = func(*replica.Job) { w.onPlan = nil; kill() }
		}
		await(t, w, time.Minute)
		is := w.state()
		if is.Phase != replica.Open || is.Epoch == j.Epoch {
			t.Fatalf("%s: %v, epoch %d", tc.what, is.Phase, is.Epoch)
		}
		if p := is.Plan; p.StepsLost != committed+7-p.Generation.Step || p.CommittedLost != committed-p.Generation.Step {
			t.Errorf("%s: %d steps lost, %d of them committed: at step %d of %d committed and %d made", tc.what, p.StepsLost, p.CommittedLost, p.Generation.Step, committed, committed+7)
		}
	}
}

// TestMadeStepsAreWhole: a step in the making is not made; a process that holds its rank no more says nothing.
func TestMadeStepsAreWhole(t *testing.T) {
	job := &replica.Job{Ranks: []replica.Claimed{{Incarnation: 5}, {Incarnation: 6}}}
	at := func(r replica.Rank, inc replica.Incarnation, e replica.Epoch, s replica.Step, p replica.Phase) replica.RankReport {
		return replica.RankReport{Rank: r, Incarnation: inc, Live: replica.PackWord(e, s, p)}
	}
	for _, tc := range []struct {
		report replica.RankReport
		want   replica.Step
	}{
		{at(0, 5, 3, 8, replica.Idle), 8}, {at(0, 5, 3, 8, replica.Updated), 8}, {at(0, 5, 3, 8, replica.Updating), 7}, {at(0, 5, 3, 0, replica.Updating), 0},
		{at(0, 4, 3, 8, replica.Idle), 0}, {at(0, 5, 2, 8, replica.Idle), 0}, {at(2, 5, 3, 8, replica.Idle), 0},
	} {
		if got := plan.Made(job, 3, []replica.RankReport{tc.report}); got != tc.want {
			t.Errorf("%+v: made %d, want %d", tc.report, got, tc.want)
		}
	}
}
