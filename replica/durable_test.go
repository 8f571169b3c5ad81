package replica

import (
	"testing"
	"time"
)

func TestDurableEvery(t *testing.T) {
	for _, tc := range []struct {
		text  string
		steps Step
		every time.Duration
		auto  bool
		bad   bool
	}{
		{text: "0"}, {text: "500", steps: 500}, {text: "1073741824", steps: MaxDurableSteps}, {text: "15m0s", every: 15 * time.Minute}, {text: "1s", every: time.Second}, {text: "720h0m0s", every: MaxDurableTime}, {text: "auto", auto: true},
		{text: "", bad: true}, {text: "-1", bad: true}, {text: "1073741825", bad: true}, {text: "500ms", bad: true}, {text: "721h", bad: true}, {text: "often", bad: true},
	} {
		every, err := ParseDurableEvery(tc.text)
		if (err != nil) != tc.bad {
			t.Errorf("%q: %v", tc.text, err)
		}
		if tc.bad {
			continue
		}
		o := Options{DurableEvery: every}
		if o.DurableSteps() != tc.steps || o.DurableInterval() != tc.every || (every == DurableAuto) != tc.auto || DurableText(every) != tc.text || CheckDurableEvery(every) != nil {
			t.Errorf("%q is %d: %d steps, %v, %q", tc.text, every, o.DurableSteps(), o.DurableInterval(), DurableText(every))
		}
	}
	if DurableText(DurableNever) != "0" || (Options{DurableEvery: DurableNever}).DurableInterval() != 0 || CheckDurableEvery(DurableNever) != nil {
		t.Error("never is something else")
	}
	for _, bad := range []Step{MaxDurableSteps + 1, DurableAuto - 1, DurableAuto + 1} {
		if CheckDurableEvery(bad) == nil {
			t.Errorf("%d is let through", bad)
		}
	}
}
