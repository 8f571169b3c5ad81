package replica

import "testing"

func TestDurableEvery(t *testing.T) {
	for _, tc := range []struct {
		text    string
		steps   Step
		seconds uint64
		auto    bool
		bad     bool
	}{
		{text: "0"}, {text: "500", steps: 500}, {text: "1073741824", steps: MaxDurableSteps}, {text: "15m", seconds: 900}, {text: "1s", seconds: 1}, {text: "1h30m", seconds: 5400}, {text: "720h", seconds: MaxDurableSeconds}, {text: "auto", auto: true},
		{text: "", bad: true}, {text: "-1", bad: true}, {text: "1073741825", bad: true}, {text: "0s", bad: true}, {text: "500ms", bad: true}, {text: "721h", bad: true}, {text: "m", bad: true}, {text: "5m3", bad: true}, {text: "3s5m", bad: true}, {text: "often", bad: true},
	} {
		every, err := ParseDurableEvery(tc.text)
		if (err != nil) != tc.bad {
			t.Errorf("%q: %v", tc.text, err)
		}
		if tc.bad {
			continue
		}
		o := Options{DurableEvery: every}
		if o.DurableSteps() != tc.steps || o.DurableSeconds() != tc.seconds || (every == DurableAuto) != tc.auto || DurableText(every) != tc.text || CheckDurableEvery(every) != nil {
			t.Errorf("%q is %d: %d steps, %d s, %q", tc.text, every, o.DurableSteps(), o.DurableSeconds(), DurableText(every))
		}
	}
	if DurableText(DurableNever) != "0" || (Options{DurableEvery: DurableNever}).DurableSeconds() != 0 || CheckDurableEvery(DurableNever) != nil {
		t.Error("never is something else")
	}
	for _, bad := range []Step{MaxDurableSteps + 1, DurableTime(MaxDurableSeconds + 1), DurableAuto - 1, DurableAuto + 1} {
		if CheckDurableEvery(bad) == nil {
			t.Errorf("%d is let through", bad)
		}
	}
}
