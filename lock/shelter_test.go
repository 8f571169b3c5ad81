package lock

import (
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestWhatIsGivenUpWithoutALeader searches every way in which two ranks may hold what the committed generation and the candidate need, told of to a leader
// or not, at each step of an outage. A leader that was told by both may have committed the candidate, in a log that the nodes do not reach: then both keep it.
// Else the committed generation is the newest: both keep that.
func TestWhatIsGivenUpWithoutALeader(t *testing.T) {
	job := openJob()
	committed, candidate, newer := gen(3, 20), gen(3, 21), gen(3, 24)
	slot := func(g replica.Generation, told bool) PlaceState {
		if g.IsZero() {
			return PlaceState{State: replica.SlotFree}
		}
		return PlaceState{State: replica.SlotSealed, Generation: g, Root: replica.Digest{byte(g.Step)}, Told: told}
	}
	var arenas [][]PlaceState
	for _, told := range []bool{false, true} {
		one := []PlaceState{slot(replica.Generation{}, false), {State: replica.SlotCopying}, slot(committed, told), slot(candidate, told), slot(newer, false)}
		arenas = append(arenas, filledWith(2, one)...)
		arenas = append(arenas, filledWith(3, one)...)
	}
	keeps := func(places []PlaceState, at replica.Step, forgets bool) (kept []PlaceState) {
		in := RetainInput{Job: job, Candidate: candidate, Good: replica.PackWord(3, at, 0), Unasked: true, Slots: len(places), Places: slices.Clone(places)}
		for i := range in.Places {
			in.Places[i].Index = i
			if forgets {
				in.Places[i].Told = false
			}
		}
		free := Retain(in)
		for i, p := range places {
			if !slices.Contains(free, i) {
				kept = append(kept, p)
			}
		}
		return kept
	}
	gaveWay := 0
	// lost counts the pairs of arenas that hold what is committed before, and not afterwards.
	lost := func(forgets bool) (bad []string) {
		for _, at := range []replica.Step{21, 22, 30, 31, 32, 46, 47, 48} {
			after := make([][]PlaceState, len(arenas))
			for i, places := range arenas {
				after[i] = keeps(places, at, forgets)
				if has(places, nil, candidate) && !has(after[i], nil, candidate) {
					gaveWay++
				}
			}
			for a := range arenas {
				for b := range arenas {
					is := committed
					if told(arenas[a], candidate) && told(arenas[b], candidate) {
						is = candidate
					}
					if has(arenas[a], nil, is) && has(arenas[b], nil, is) && !(has(after[a], nil, is) && has(after[b], nil, is)) {
						bad = append(bad, fmt.Sprintf("step %d: %v may be committed, and is given up:%s;%s", at, is, show(arenas[a]), show(arenas[b])))
					}
				}
			}
		}
		return bad
	}
	if bad := lost(false); len(bad) > 0 {
		t.Errorf("%d cases, the first: %s", len(bad), bad[0])
	}
	if gaveWay == 0 {
		t.Error("no candidate gave way")
	}
	if bad := lost(true); len(bad) == 0 {
		t.Error("a rule that forgets whom it told loses nothing: the search finds nothing")
	} else {
		t.Logf("without it %d cases, the first: %s", len(bad), bad[0])
	}
}

func told(places []PlaceState, g replica.Generation) bool {
	return slices.ContainsFunc(places, func(p PlaceState) bool { return p.Generation == g && p.Told })
}

// filledWith is every way to fill so many slots with these.
func filledWith(slots int, one []PlaceState) [][]PlaceState {
	all := [][]PlaceState{nil}
	for range slots {
		var next [][]PlaceState
		for _, some := range all {
			for _, p := range one {
				next = append(next, append(slices.Clone(some), p))
			}
		}
		all = next
	}
	return all
}

// TestWhatAFaultCostsWithoutALeader walks two ranks through an outage of 300 steps: how far behind is the newest generation that both hold, at most?
func TestWhatAFaultCostsWithoutALeader(t *testing.T) {
	for _, c := range []struct {
		name    string
		slots   int
		cadence replica.Step
		told    [2]bool
		most    replica.Step // steps behind; 0: as long as the outage lasts
	}{
		{"two slots, no leader was told", 2, 1, [2]bool{}, 20},
		{"two slots, every fifth step", 2, 5, [2]bool{}, 25},
		{"two slots, a leader was told", 2, 1, [2]bool{true, true}, 0},
		{"two slots, a leader was told by one", 2, 1, [2]bool{true, false}, 0},
		{"three slots", 3, 1, [2]bool{true, true}, 20},
		{"three slots, every fifth step", 3, 5, [2]bool{true, true}, 25},
		{"four slots", 4, 1, [2]bool{true, true}, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := openJob()
			job.Options.Cadence = c.cadence
			committed, candidate := job.Committed, gen(3, 25)
			var ranks [2][]PlaceState
			for r := range ranks {
				ranks[r] = places(c.slots, false, false)
				ranks[r][0] = PlaceState{State: replica.SlotSealed, Generation: committed}
				ranks[r][1] = PlaceState{Index: 1, State: replica.SlotSealed, Generation: candidate, Told: c.told[r], Pinned: c.told[r]}
			}
			var most replica.Step
			for step := replica.Step(26); step < 326; step++ {
				for r := range ranks {
					in := RetainInput{Job: job, Candidate: candidate, Good: replica.PackWord(3, step-1, 0), Unasked: true, Slots: c.slots, Places: ranks[r]}
					for _, i := range Retain(in) {
						ranks[r][i] = PlaceState{Index: i}
					}
					asked := candidate.Step
					if s := Shelter(in); s != 0 {
						asked = s
					}
					if !ShouldCapture(step, committed.Step, asked, c.cadence, c.slots) {
						continue
					}
					if i := slices.IndexFunc(ranks[r], func(p PlaceState) bool { return p.State == replica.SlotFree }); i >= 0 {
						ranks[r][i] = PlaceState{Index: i, State: replica.SlotSealed, Generation: gen(3, step)}
					}
				}
				var common replica.Step
				for _, p := range ranks[0] {
					if p.State == replica.SlotSealed && has(ranks[1], nil, p.Generation) {
						common = max(common, p.Generation.Step)
					}
				}
				if step > 60 {
					most = max(most, step-common)
				}
				if !has(ranks[0], nil, committed) || !has(ranks[1], nil, committed) {
					t.Fatalf("step %d: what is committed is given up: %s; %s", step, show(ranks[0]), show(ranks[1]))
				}
			}
			if c.most == 0 != (most > 200) || c.most > 0 && most > c.most {
				t.Errorf("%d steps behind, want at most %d (0: all of the outage)", most, c.most)
			}
		})
	}
}
