package replica

import "testing"

// validTwin is the definition in words: e was opened, and S <= T(e') for every opened e' > e. (The state at an epoch's
// start keeps its origin's name, so a generation of e itself lies at or after T(e) only by construction.)
func validTwin(l Lineage, g Generation) bool {
	starts := map[Epoch]Step{}
	for _, o := range l {
		starts[o.Epoch] = o.Start
	}
	if _, opened := starts[g.Epoch]; !opened {
		return false
	}
	for later, start := range starts {
		if later > g.Epoch && start < g.Step {
			return false
		}
	}
	return true
}

// TestLineageExhaustive tries every lineage of up to four epochs out of five with starts 0 to 3, and every generation.
func TestLineageExhaustive(t *testing.T) {
	checked, valid := 0, 0
	var grow func(l Lineage, from Epoch)
	grow = func(l Lineage, from Epoch) {
		for e := Epoch(0); e <= 6; e++ {
			for s := Step(0); s <= 4; s++ {
				g := Generation{e, s}
				if got, want := l.Valid(g), validTwin(l, g); got != want {
					t.Fatalf("%v: Valid(%v) = %v, want %v", l, g, got, want)
				} else if got {
					valid++
				}
				checked++
			}
		}
		if len(l) == 4 {
			return
		}
		for e := from; e <= 5; e++ {
			for s := Step(0); s <= 3; s++ {
				next, ok := l.Open(e, s)
				if !ok || next.Last() != (Opened{e, s}) {
					t.Fatalf("%v: opening %d at %d: %v, %v", l, e, s, next, ok)
				}
				grow(next, e+1)
			}
		}
	}
	grow(nil, 1)
	if checked < 10000 || valid == 0 || valid == checked {
		t.Errorf("%d checked, %d valid: the search is empty", checked, valid)
	}
}

// TestLineageOpen: epochs rise, and opening writes nothing that an earlier lineage shares.
func TestLineageOpen(t *testing.T) {
	l := Lineage{{1, 0}, {3, 5}}
	for e := Epoch(0); e <= 3; e++ {
		if next, ok := l.Open(e, 9); ok || len(next) != 2 {
			t.Errorf("epoch %d opened after 3", e)
		}
	}
	base := append(make(Lineage, 0, 8), l...)
	a, _ := base.Open(4, 6)
	b, _ := base.Open(5, 7)
	if a[2] != (Opened{4, 6}) || b[2] != (Opened{5, 7}) {
		t.Errorf("two lineages share an entry: %v, %v", a, b)
	}
	if (Lineage{}).Last() != (Opened{}) {
		t.Error("nothing opened has no last")
	}
}

// TestLineageNewHistory: S+1 of epoch 5 offered in epoch 6 is of another history once 6 was opened at S.
func TestLineageNewHistory(t *testing.T) {
	l := Lineage{{5, 10}}
	if !l.Valid(Generation{5, 13}) {
		t.Fatal("(5,13) must be valid before 6 is opened")
	}
	l, _ = l.Open(6, 12)
	for g, want := range map[Generation]bool{{5, 13}: false, {5, 12}: true, {6, 13}: true, {4, 1}: false, {7, 12}: false} {
		if l.Valid(g) != want {
			t.Errorf("Valid(%v) = %v in %v", g, !want, l)
		}
	}
}
