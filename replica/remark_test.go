package replica

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestRemarksThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", MaxRemarkText+1)
	for want, list := range map[string][]Remark{
		"no such kind":    {{Kind: 9, Name: "x"}},
		"has 0 bytes":     {{Kind: Note}},
		"has 65 bytes":    {{Kind: Metric, Name: long[:MaxRemarkName+1]}},
		"has 257 bytes":   {{Kind: Note, Name: "x", Text: long}},
		"not finite":      {{Kind: Metric, Name: "loss", Value: math.Inf(-1)}},
		"NaN":             {{Kind: LoaderEpoch, Name: "train", Value: math.NaN()}},
		"out of range":    {{Kind: Metric, Name: "loss", Step: MaxStep + 1}},
		"a text with":     {{Kind: Metric, Name: "loss", Text: "low"}},
		"with a number":   {{Kind: Version, Name: "torch", Text: "2.11", Value: 2.11}},
		"no number of an": {{Kind: LoaderEpoch, Name: "data", Value: 1.5}},
		"comes twice":     {{Kind: Note, Name: "x"}, {Kind: Metric, Name: "x"}, {Kind: Note, Name: "x"}},
	} {
		if err := CheckRemarks(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", list, err, want)
		}
	}
	var many []Remark
	for i := range MaxRemarks {
		many = append(many, Remark{Kind: Note, Name: fmt.Sprint("n", i), Text: long[:MaxRemarkText]}, Remark{Kind: Metric, Name: fmt.Sprint("n", i), Value: -1, Step: MaxStep})
	}
	if err := CheckRemarks(many); err != nil {
		t.Error(err)
	}
	if err := CheckRemarks(append(many, Remark{Kind: Note, Name: "more"})); err == nil || !strings.Contains(err.Error(), `note "more" is one more than 64`) {
		t.Error(err)
	}
}

// Of ranks that say the same name the lowest counts, and of what it says the newest; where there are too many, the same are left out each time.
func TestMerge(t *testing.T) {
	note := func(name, text string, rank Rank) Remark {
		return Remark{Kind: Note, Name: name, Text: text, Rank: rank}
	}
	got, over := Merge([]Remark{note("b", "launcher", ByLauncher), note("a", "two", 2), note("a", "one, before", 1), note("a", "three", 3), note("a", "one", 1)})
	if want := []Remark{note("a", "one", 1), note("b", "launcher", ByLauncher)}; !reflect.DeepEqual(got, want) || over != nil {
		t.Errorf("%v and %v left out, want %v", got, over, want)
	}
	var many []Remark
	for i := range MaxRemarks + 2 {
		many = append(many, note(fmt.Sprintf("n%02d", MaxRemarks+1-i), "", 0))
	}
	if got, over := Merge(many); len(got) != MaxRemarks || len(over) != 2 || over[0].Name != "n64" {
		t.Errorf("%d, and %v left out", len(got), over)
	}
}

func TestAge(t *testing.T) {
	for text, want := range map[string]Age{"7d": 7 * 86400, "36h": 36 * 3600, "1h30m": 5400, "1d12h": 36 * 3600, "0s": 0, "90s": 90} {
		var a, b Age
		if err := a.Set(text); err != nil || a != want {
			t.Errorf("%s: %d, %v", text, a, err)
		}
		if err := b.Set(a.String()); err != nil || b != a {
			t.Errorf("%s is written %v, and read back %v, %v", text, a, b, err)
		}
	}
	for _, text := range []string{"", "7", "d", "-7d", "7 days", "1h1d", "5000000000d", "1.5h", "7dd"} {
		var a Age
		if err := a.Set(text); err == nil {
			t.Errorf("%q is taken: %v", text, a)
		}
	}
}
