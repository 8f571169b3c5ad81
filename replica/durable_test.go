package replica

import "testing"

func TestDurableEvery(t *testing.T) {
	for _, tc := range []struct {
		text  string
		steps Step
		every uint64 // seconds
		auto  bool
		bad   bool
	}{
		{text: "0"}, {text: "500", steps: 500}, {text: "1073741824", steps: MaxDurableSteps}, {text: "15m", every: 900}, {text: "1h30m5s", every: 5405}, {text: "1s", every: 1}, {text: "720h", every: MaxDurableSeconds}, {text: "auto", auto: true},
		{text: "", bad: true}, {text: "-1", bad: true}, {text: "1073741825", bad: true}, {text: "500ms", bad: true}, {text: "721h", bad: true}, {text: "often", bad: true}, {text: "5m1h", bad: true}, {text: "1h-5m", bad: true}, {text: "1.5h", bad: true}, {text: "99999999999h", bad: true}, {text: "0s", bad: true},
	} {
		every, err := ParseDurableEvery(tc.text)
		if (err != nil) != tc.bad {
			t.Errorf("%q: %v", tc.text, err)
		}
		if tc.bad {
			continue
		}
		o := Options{DurableEvery: every}
		if o.DurableSteps() != tc.steps || o.DurableSeconds() != tc.every || (every == DurableAuto) != tc.auto || DurableText(every) != tc.text || CheckDurableEvery(every) != nil {
			t.Errorf("%q is %d: %d steps, %v, %q", tc.text, every, o.DurableSteps(), o.DurableSeconds(), DurableText(every))
		}
	}
	if DurableText(DurableNever) != "0" || (Options{DurableEvery: DurableNever}).DurableSeconds() != 0 || CheckDurableEvery(DurableNever) != nil {
		t.Error("never is something else")
	}
	for _, bad := range []Step{MaxDurableSteps + 1, DurableAuto - 1, DurableAuto + 1} {
		if CheckDurableEvery(bad) == nil {
			t.Errorf("%d is let through", bad)
		}
	}
}
