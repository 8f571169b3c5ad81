package bench

import (
	"strings"
	"testing"
)

func TestParseDemo(t *testing.T) {
	const faults = `{"faults":[{"kind":"node","detected_ms":7,"moved_bytes":5},{"kind":"node","resumed_ms":null}],"figures":[{"name":"commits","value":1},{"name":"recovery from node, to the first new step","value":8.5}`
	list, err := parseDemo([]byte(faults + `,{"name":"recovery from node, to the first new step","value":9}]}`))
	if err != nil || len(list) != 2 || *list[0].Detected != 7 || *list[0].Moved != 5 || *list[0].FirstStep != 8.5 || *list[1].FirstStep != 9 || list[1].Resumed != nil {
		t.Errorf("%+v, %v", list, err)
	}
	for _, text := range []string{"", "{}", `{"faults":[]}`, faults + "]}"} {
		if _, err := parseDemo([]byte(text)); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

// A recovery's phases follow each other, and what is beyond detection may take what the bytes take on the lanes and half a second.
func TestRestoreFigures(t *testing.T) {
	at := func(detected, fenced, planned, verified, resumed, first float64, moved uint64) fault {
		return fault{"node", &detected, &fenced, &planned, &verified, &resumed, &moved, &first}
	}
	p, err := phasesOf(at(1000, 1010, 1100, 1500, 1550, 1700, 200e6))
	if want := (phases{1000, 10, 90, 400, 50, 150, 200e6}); err != nil || p != want {
		t.Fatalf("%+v, want %+v: %v", p, want, err)
	}
	for name, f := range map[string]fault{"nothing moved": func() fault { f := at(1, 2, 3, 4, 5, 6, 7); f.Moved = nil; return f }(), "nothing planned": func() fault { f := at(1, 2, 3, 4, 5, 6, 7); f.Planned = nil; return f }()} {
		if _, err := phasesOf(f); err == nil || !strings.Contains(err.Error(), strings.Fields(name)[1]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for rate, ok := range map[float64]bool{500e6: true, 200e6 / 0.21: true, 200e6 / 0.19: false} { // 700 ms beyond detection, of which 500 are allowed
		list := restoreFigures([]phases{p}, rate)
		last := list[len(list)-1]
		if last.Value != 700 || *last.OK != ok {
			t.Errorf("at %v bytes a second: %s", rate, last.line())
		}
	}
}
