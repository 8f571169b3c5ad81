package sim

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// report is what all episodes of a run came to.
var report = tally{began: time.Now(), cells: map[cell]*met{}, happened: map[string]int{}}

// cell is a kind of fault at a moment.
type cell struct {
	moment moment
	kind   kind
}

type met struct{ drawn, struck int }

type tally struct {
	mu       sync.Mutex // guards the rest
	began    time.Time
	played   int
	failed   []uint64
	cells    map[cell]*met
	happened map[string]int
}

func (t *tally) cell(a aim) *met {
	c := cell{a.moment, a.kind}
	if t.cells[c] == nil {
		t.cells[c] = &met{}
	}
	return t.cells[c]
}

func (t *tally) drew(a aim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cell(a).drawn++
}

func (t *tally) struck(a aim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cell(a).struck++
}

func (t *tally) happens(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.happened[what]++
}

// ends counts an episode; it returns how many there were.
func (t *tally) ends(seed uint64, failed bool) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.played++; failed {
		t.failed = append(t.failed, seed)
	}
	return t.played
}

// fails tells whether an episode has failed.
func (t *tally) fails() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.failed) > 0
}

// rare is how often a cell is drawn before it must have been met. The rarest is met by one draw in ten: 60 in vain are one run in 500.
const rare = 60

// missed are the cells that should have been met by now.
func (t *tally) missed() (list []string) {
	for m := range moments {
		for k := range kinds {
			if c := t.cells[cell{m, k}]; c != nil && c.drawn >= rare && c.struck == 0 {
				list = append(list, fmt.Sprintf("%v x %v (drawn %d times)", m, k, c.drawn))
			}
		}
	}
	return list
}

// write prints the table.
func (t *tally) write(out io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	took := time.Since(t.began)
	fmt.Fprintf(out, "%d episodes in %v: %.0f a minute; %d failed\n\n| moment |", t.played, took.Round(time.Second), float64(t.played)/took.Minutes(), len(t.failed))
	for k := range kinds {
		fmt.Fprintf(out, " %v |", k)
	}
	fmt.Fprintf(out, "\n|---|%s\n", strings.Repeat("---|", int(kinds)))
	for m := range moments {
		fmt.Fprintf(out, "| %v |", m)
		for k := range kinds {
			n := "-"
			if k.fits(m) {
				n = "0"
			}
			if c := t.cells[cell{m, k}]; c != nil {
				n = fmt.Sprintf("%d of %d", c.struck, c.drawn)
			}
			fmt.Fprintf(out, " %s |", n)
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out)
	for _, what := range slices.Sorted(maps.Keys(t.happened)) {
		fmt.Fprintf(out, "%s: %d\n", what, t.happened[what])
	}
	if len(t.failed) > 0 {
		slices.Sort(t.failed)
		fmt.Fprintf(out, "failed seeds: %v\n", t.failed)
	}
}

// check fails a run with a history that nobody judged, and one that was long enough and has not met what it should. An aimed run need not meet
// every cell.
func (t *tally) check(tb testing.TB, aimed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !aimed {
		for _, c := range t.missed() {
			tb.Errorf("never met: %s", c)
		}
	}
	if n := t.happened[unknownHistories]; n > 0 {
		tb.Errorf("%d histories are searched for longer than %d steps: nobody knows whether they are linearizable", n, stepsMost)
	}
}

// complaints keeps what a check complains of.
type complaints struct {
	testing.TB
	list []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.list = append(c.list, fmt.Sprintf(format, args...))
}

// TestUnknownHistoriesFailEveryRun: an aimed run need not meet every cell, but nobody judged a history that is unknown.
func TestUnknownHistoriesFailEveryRun(t *testing.T) {
	run := tally{cells: map[cell]*met{{}: {drawn: rare}}, happened: map[string]int{unknownHistories: 2}}
	for aimed, want := range map[bool]int{false: 2, true: 1} {
		var of complaints
		run.check(&of, aimed)
		if len(of.list) != want || !strings.HasPrefix(of.list[len(of.list)-1], "2 histories") {
			t.Errorf("aimed %v: %q, want %d complaints, the last of histories", aimed, of.list, want)
		}
	}
	run.happened = nil
	var of complaints
	if run.check(&of, true); len(of.list) > 0 {
		t.Errorf("an aimed run without such histories: %q", of.list)
	}
}
