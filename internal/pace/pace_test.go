package pace

import (
	"strings"
	"testing"
	"time"
)

func TestSlowed(t *testing.T) {
	for line, want := range map[string]float64{
		"0.00 0.10 0.20 1/400 77\n": 1,
		"3.00 0.10 0.20 1/400 77\n": 1.5, // it was busy a moment ago
		"0.00 0.10 0.20 8/400 77\n": 4,   // it has become busy
		"90.0 0.10 0.20 8/400 77\n": most,
		"":                          1,
		"x y z w":                   1,
	} {
		if got := slowed(line, 2); got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	if s := Slowed(); s < 1 || s > most {
		t.Errorf("%v", s)
	}
}

func TestLimit(t *testing.T) {
	l := New(90*time.Second, "a word")
	defer l.Stop()
	at := func(d time.Duration, by float64) string { return l.pass(l.began.Add(d), by) }
	if s := at(29*time.Second, 1); s != "" || l.left != 61*time.Second {
		t.Errorf("%q, %v left", s, l.left)
	}
	if s := at(39*time.Second, 10); !strings.Contains(s, "39s: waits for a word; a core has 10.0 threads to run") || l.left != 60*time.Second {
		t.Errorf("%q, %v left", s, l.left)
	}
	if s := at(41*time.Second, 1); s != "" || l.left != 58*time.Second {
		t.Errorf("%q, %v left", s, l.left)
	}
	if at(100*time.Second, 1); l.left > 0 {
		t.Errorf("%v left", l.left)
	}
}
