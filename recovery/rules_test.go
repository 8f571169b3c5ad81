package recovery_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

func TestLadderCoversEveryFault(t *testing.T) {
	want := map[replica.FaultKind]plan.Rung{
		replica.Exception: plan.InProcess, replica.Torn: plan.InProcess,
		replica.ProcessDead: plan.Process, replica.Hang: plan.Process, replica.BadDigest: plan.Process,
		replica.NodeDead: plan.Elsewhere, replica.Silent: plan.Elsewhere, replica.Health: plan.Elsewhere, replica.Drain: plan.Elsewhere,
	}
	for k := replica.ProcessDead; k <= replica.Silent; k++ {
		if got := plan.FirstRung(k); got != want[k] {
			t.Errorf("%v takes rung %v, want %v", k, got, want[k])
		}
	}
	if got := plan.Elsewhere.Next().Next(); got != plan.WholeJob {
		t.Errorf("the ladder ends at %v", got)
	}
}

func TestBudget(t *testing.T) {
	b := recovery.Budget{Recoveries: 2, Window: time.Minute}
	began := []time.Duration{0, 10 * time.Second, 20 * time.Second}
	if !b.Spent(began, 30*time.Second) {
		t.Error("three recoveries within a minute don't spend a budget of two")
	}
	if b.Spent(began, 61*time.Second) {
		t.Error("a recovery older than the window counts")
	}
	slow := make([]time.Duration, 9) // imports that take minutes: no two of them are within the window
	for i := range slow {
		slow[i] = time.Duration(i) * time.Hour
	}
	if b.Spent(slow[:8], 7*time.Hour) || !b.Spent(slow, 8*time.Hour) {
		t.Error("a loop of slow recoveries doesn't end after four times the budget")
	}
}

// TestCrashLoopEnds has a rank die as often as it is started: the job ends with a distinct reason instead of looping.
func TestCrashLoopEnds(t *testing.T) {
	w := newWorld()
	w.addNode("a", 2, false, nil)
	w.addNode("b", 2, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	if err := w.wait(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	for i := 0; w.state().Phase != replica.Ended; i++ {
		if i > 40 {
			t.Fatalf("still going after %d crashes without a step", i)
		}
		p := w.process("0")
		p.alive = false
		w.nodes[w.state().Ranks[0].Node].offers++
		if err := w.wait(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := w.state().EndReason[:14], "do not requeue"; got != want {
		t.Errorf("the job ended with %q, want %q", w.state().EndReason, want)
	}
}

// TestWantsSpendNoBudget has a rank's process die for want of something, again and again: the job goes on. The deaths after that count.
func TestWantsSpendNoBudget(t *testing.T) {
	w := newWorld()
	w.addNode("a", 2, false, nil)
	w.addNode("b", 2, false, nil)
	w.create([]replica.GroupID{0, 0}, replica.Options{})
	if err := w.wait(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	dies := func(short string) {
		n := w.nodes[w.state().Ranks[0].Node]
		w.process("0").alive, n.short = false, short
		n.offers++
		if err := w.wait(time.Second); err != nil {
			t.Fatal(err)
		}
		n.short = ""
		if err := w.wait(5 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		if dies("memory"); w.state().Phase == replica.Ended {
			t.Fatalf("ended after %d wants: %s", i+1, w.state().EndReason)
		}
	}
	deaths := 0
	for ; w.state().Phase != replica.Ended && deaths < 40; deaths++ {
		dies("")
	}
	if most := recovery.DefaultBudget().Recoveries; deaths != most+1 {
		t.Errorf("%d deaths end a job whose budget is %d", deaths, most)
	}
}

// TestABudgetOutlivesItsLeaders: a leader that falls in the middle of each recovery, or of each third, has the next one count on. A step that is committed has it begin anew.
func TestABudgetOutlivesItsLeaders(t *testing.T) {
	for _, each := range []int{1, 3} {
		w := training(t)
		most := recovery.DefaultBudget().Recoveries
		dies := func(i int) {
			n := w.nodes[w.state().Ranks[0].Node]
			w.process("0").alive = false
			n.offers++
			w.must(t, w.wait(2*time.Second))
			w.handOut()
			if i%each == 0 && w.state().Phase != replica.Ended {
				w.newLeader()
			}
			w.must(t, w.wait(5*time.Second))
			w.handOut()
		}
		for i := range most {
			dies(i)
		}
		w.must(t, w.step(true))
		w.must(t, w.wait(2*time.Second))
		w.handOut()
		deaths := 0
		for ; w.state().Phase != replica.Ended && deaths < 3*most; deaths++ {
			dies(deaths)
		}
		if deaths != most+1 {
			t.Errorf("leaders fall in each %d. recovery: %d deaths end a job whose budget is %d", each, deaths, most)
		}
		if !strings.Contains(w.state().EndReason, fmt.Sprintf("recovered %d times without a step", most+1)) {
			t.Errorf("it ended: %s", w.state().EndReason)
		}
	}
}
