package job

import (
	"slices"
	"testing"
)

// The order of the upkeep is a promise to each of its steps: this walks it. A pair is out of order where the first is not before the second.
func TestUpkeepIsInOrder(t *testing.T) {
	at := func(what string) int {
		return slices.IndexFunc(upkeep, func(s step) bool { return s.what == what })
	}
	for i, s := range upkeep {
		if s.why == "" || s.do == nil {
			t.Errorf("step %q has no reason, or nothing to do", s.what)
		}
		if at(s.what) != i {
			t.Errorf("two steps are %q", s.what)
		}
	}
	for _, pair := range [][2]string{
		{"clocks", "report"},
		{"fence", "hung"}, {"fence", "supersede"}, {"fence", "restores"}, {"fence", "mirrors"}, {"fence", "orders"}, {"fence", "report"},
		{"hung", "supersede"},
		{"supersede", "growing"}, {"supersede", "restores"}, {"supersede", "mirrors"}, {"supersede", "report"},
		{"growing", "orders"},
		{"restores", "mirrors"}, {"restores", "orders"},
		{"remarks", "writer"},
		{"writer", "retain"}, {"candidate", "retain"},
		{"lacks", "report"}, {"orders", "report"}, {"candidate", "report"}, {"retain", "report"},
		{"report", "check"},
	} {
		if a, b := at(pair[0]), at(pair[1]); a < 0 || b < 0 || a > b {
			t.Errorf("%q is to come before %q: they are at %d and %d", pair[0], pair[1], a, b)
		}
	}
}
