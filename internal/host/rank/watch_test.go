package rank

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// A rank's steps, second by second: when it hangs, when its report is due, and how long its pauses count.
func TestWatch(t *testing.T) {
	limits := recovery.HangLimits{Factor: 3, Least: 4 * time.Second, First: 10 * time.Second}
	const s = time.Second
	enter := func(step replica.Step) replica.Word { return replica.PackWord(3, step, replica.Idle) }
	var w Watch
	for _, e := range []struct {
		at        time.Duration
		word      replica.Word
		pause     time.Duration // negative: none is said
		halts     bool
		hung, due bool
	}{
		{1 * s, enter(1), -1, false, false, false},
		{11 * s, enter(1), -1, true, false, false}, // as long as a first step may take, and what the kernel says counts only of one that hangs
		{12 * s, enter(1), -1, false, true, true},
		{13 * s, enter(1), -1, false, true, false}, // that it hangs was reported
		{14 * s, enter(1), -1, true, true, true},
		{15 * s, enter(2), -1, true, false, true},
		{17 * s, enter(3), -1, false, false, false},
		{19 * s, enter(4), -1, false, false, false},
		{25 * s, enter(4), -1, false, false, false}, // three times the longest of its steps
		{26 * s, enter(4), -1, false, true, true},
		{27 * s, enter(4), 20 * s, false, false, true},
		{46 * s, enter(4), -1, false, false, false},
		{47 * s, enter(4), -1, false, true, true}, // it said no more than 20 s
		{48 * s, enter(4), 0, false, false, true},
		{54 * s, enter(4), -1, false, false, false}, // what the pause took counts for nothing
		{55 * s, enter(4), -1, false, true, true},
		{56 * s, replica.PackWord(5, 4, replica.Idle), -1, false, false, true}, // another epoch begins anew
		{67 * s, replica.PackWord(5, 4, replica.Idle), -1, false, true, true},
	} {
		if e.pause >= 0 {
			w.Pause(e.at, e.word, e.pause)
		}
		hung := w.Look(e.at, e.word, limits)
		if due := w.Found(hung, hung && e.halts); hung != e.hung || due != e.due || w.Hung != hung || w.Halted != (hung && e.halts) {
			t.Errorf("at %v, %v: hung %v, report due %v; want %v, %v", e.at, e.word, hung, due, e.hung, e.due)
		}
	}
}

// The steps of a node are those of the rank that moved last, as slow as its slowest; one that broke off is said beside them.
func TestStepTimes(t *testing.T) {
	const s = time.Second
	walked := func(steps replica.Step, each time.Duration) (*Watch, replica.Word) {
		var w Watch
		for i := range steps + 1 {
			w.Look(time.Duration(i)*each, replica.PackWord(3, i+1, replica.Idle), recovery.HangLimits{})
		}
		return &w, replica.PackWord(3, steps+1, replica.Idle)
	}
	fast, fastAt := walked(5, s)
	slow, slowAt := walked(3, 3*s)
	var none, broken, both StepTimes
	broken.broke()
	both.add(10*s, fastAt, fast)
	both.add(10*s, slowAt, slow)
	after := both
	after.broke()
	for name, c := range map[string]struct {
		got  StepTimes
		want control.StepMS
		any  bool
	}{
		"nobody":          {none, control.StepMS{}, false},
		"broken off":      {broken, control.StepMS{Broken: true}, true},
		"two":             {both, control.StepMS{Still: 1000, Pace: 3000}, true},
		"two and another": {after, control.StepMS{Still: 1000, Pace: 3000, Broken: true}, true},
	} {
		if c.got.Is != c.want || c.got.Any != c.any {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, c.got.Is, c.got.Any, c.want, c.any)
		}
	}
}
