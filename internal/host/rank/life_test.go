package rank

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The picture of a rank's life in docs/design.md is the table's.
func TestLivesAreAsDrawn(t *testing.T) {
	b, err := os.ReadFile("../../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(b), "```mermaid\nstateDiagram-v2\n    [*] --> attached\n")
	drawn, _, ended := strings.Cut(after, "```")
	if !ok || !ended {
		t.Fatal("docs/design.md has no diagram of a rank's life")
	}
	var want []string
	for from, ways := range lives {
		for d, to := range ways {
			if from != to {
				want = append(want, fmt.Sprintf("    %v --> %v: %v", from, to, d))
			}
		}
	}
	got := strings.Split(strings.TrimRight(drawn, "\n"), "\n")
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("drawn:\n%s\nthe table has:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What a life asks of the rank's process: each is one of three, and what ends it keeps whether it had finished.
func TestLives(t *testing.T) {
	for is, want := range map[Life][3]bool{Attached: {true, false, false}, Stopped: {true, true, false}, Training: {true, false, false}, Finished: {true, false, true}, Dead: {false, false, false}, Departed: {false, false, true}} {
		lr := &Rank{Life: is}
		if got := [3]bool{lr.Alive(), lr.Stopped(), lr.Left()}; got != want {
			t.Errorf("%v: alive, stopped, left: %v, want %v", is, got, want)
		}
		if lr.Alive() {
			left := lr.Left()
			if lr.Does(Dies); lr.Alive() || lr.Left() != left {
				t.Errorf("%v, and dies: %v", is, lr.Life)
			}
		}
	}
}
