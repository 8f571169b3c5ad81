package host

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The picture of a rank's life in docs/design.md is the table's.
func TestLivesAreAsDrawn(t *testing.T) {
	b, err := os.ReadFile("../../docs/design.md")
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
	for is, want := range map[life][3]bool{attached: {true, false, false}, stopped: {true, true, false}, training: {true, false, false}, finished: {true, false, true}, dead: {false, false, false}, departed: {false, false, true}} {
		lr := &localRank{life: is}
		if got := [3]bool{lr.alive(), lr.stopped(), lr.left()}; got != want {
			t.Errorf("%v: alive, stopped, left: %v, want %v", is, got, want)
		}
		if lr.alive() {
			left := lr.left()
			if lr.does(dies); lr.alive() || lr.left() != left {
				t.Errorf("%v, and dies: %v", is, lr.life)
			}
		}
	}
}
