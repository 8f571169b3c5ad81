package lock

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

func TestShouldCapture(t *testing.T) {
	for _, c := range []struct {
		s, committed, candidate, cadence replica.Step
		slots                            int
		want                             bool
	}{
		{11, 10, 11, 1, 2, true},
		{12, 10, 11, 1, 2, false}, // with two slots only the candidate
		{12, 10, 11, 1, 4, true},  // freshness: multiples of max(c, 2)
		{13, 10, 11, 1, 4, false},
		{10, 10, 0, 1, 4, false},
		{11, 10, 0, 1, 2, true}, // not named yet, but it is what comes next
		{11, 10, 9, 1, 2, true},
		{12, 10, 0, 1, 2, false},
		{12, 10, 0, 3, 2, true},
		{14, 10, 0, 3, 4, false},
		{15, 10, 12, 3, 4, true},
		{17, 10, 17, 3, 4, true}, // whatever the leader names
		{5, 3, 0, 0, 4, false},
	} {
		if got := ShouldCapture(c.s, c.committed, c.candidate, c.cadence, c.slots); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func gen(e replica.Epoch, s replica.Step) replica.Generation {
	return replica.Generation{Epoch: e, Step: s}
}

func slotOf(g replica.Generation) PlaceState {
	return PlaceState{State: replica.SlotSealed, Generation: g}
}

func ringOf(g replica.Generation) PlaceState {
	return PlaceState{State: replica.SlotSealed, Generation: g, Ring: true}
}

func openJob() *replica.Job {
	return &replica.Job{
		Phase: replica.Open, Epoch: 3, ClosedEpoch: 2, Lineage: replica.Lineage{{Epoch: 1, Start: 0}, {Epoch: 3, Start: 10}}, Options: replica.Options{Cadence: 1},
		Position: replica.Position{Epoch: 3, Step: 20}, Committed: gen(3, 20), Plan: &replica.Plan{Generation: gen(1, 10)},
	}
}

func TestRetainSlots(t *testing.T) {
	with := func(p PlaceState, change func(*PlaceState)) PlaceState { change(&p); return p }
	good := func(s replica.Step) replica.Word { return replica.PackWord(3, s, 0) }
	for name, c := range map[string]struct {
		in   RetainInput
		want []int
	}{
		"older than C goes, C and the candidate stay": {RetainInput{Candidate: gen(3, 21), Slots: 4, Good: good(21), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 21)), slotOf(gen(3, 18)), slotOf(gen(1, 10))}}, []int{2, 3}},
		"pinned and held stay": {RetainInput{Candidate: gen(3, 21), Slots: 4, Places: []PlaceState{
			with(slotOf(gen(3, 18)), func(p *PlaceState) { p.Pinned = true }), with(slotOf(gen(3, 18)), func(p *PlaceState) { p.Held = true })}}, nil},
		"another history goes": {RetainInput{Slots: 4, Places: []PlaceState{slotOf(gen(1, 12)), slotOf(gen(2, 5))}}, []int{0, 1}},
		"torn only once joined": {RetainInput{Slots: 4, Places: []PlaceState{
			{State: replica.SlotTorn}, {State: replica.SlotTorn, Dead: true}, {State: replica.SlotCopying, Dead: true}, {State: replica.SlotCopied, Dead: true}, {State: replica.SlotFree}}}, []int{1}},
		"freshness stays for 2 max(c, 2) steps":     {RetainInput{Candidate: gen(3, 21), Slots: 4, Good: good(25), Places: []PlaceState{slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, nil},
		"and goes once good has reached that":       {RetainInput{Candidate: gen(3, 21), Slots: 4, Good: good(26), Places: []PlaceState{slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, []int{0}},
		"good of another epoch proves nothing":      {RetainInput{Candidate: gen(3, 21), Slots: 4, Good: replica.PackWord(1, 90, 0), Places: []PlaceState{slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, nil},
		"a mirror learns good from newer seals":     {RetainInput{Candidate: gen(3, 21), Slots: 4, Places: []PlaceState{slotOf(gen(3, 22)), slotOf(gen(3, 26))}}, []int{0}},
		"the newest fresh one stays":                {RetainInput{Candidate: gen(3, 21), Slots: 4, Good: good(90), Places: []PlaceState{slotOf(gen(3, 22))}}, nil},
		"two slots keep no freshness":               {RetainInput{Candidate: gen(3, 24), Slots: 2, Good: good(22), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 22))}}, []int{1}},
		"two slots keep what will be the candidate": {RetainInput{Slots: 2, Good: good(21), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 21))}}, nil},
		"an old leader's candidate names nothing":   {RetainInput{Candidate: gen(1, 9), Slots: 2, Good: good(21), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 21))}}, nil},
		"of three, the older fresh one makes room":  {RetainInput{Candidate: gen(3, 26), Slots: 3, Good: good(25), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, []int{1}},
		"but not while one is free":                 {RetainInput{Candidate: gen(3, 26), Slots: 3, Good: good(25), Places: []PlaceState{slotOf(gen(3, 22)), slotOf(gen(3, 24)), {State: replica.SlotFree}}}, nil},
		"nor where the candidate has its slot":      {RetainInput{Candidate: gen(3, 24), Slots: 3, Good: good(25), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, nil},
		"of four, one of which a write holds, too": {RetainInput{Candidate: gen(3, 26), Slots: 4, Good: good(25), Places: []PlaceState{
			with(slotOf(gen(3, 15)), func(p *PlaceState) { p.Held = true }), slotOf(gen(3, 20)), slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, []int{2}},
		"of three, only the candidate stays then": {RetainInput{Candidate: gen(3, 26), Slots: 3, Good: good(23), Places: []PlaceState{
			with(slotOf(gen(3, 15)), func(p *PlaceState) { p.Held = true }), slotOf(gen(3, 20)), slotOf(gen(3, 22))}}, []int{2}},
		"nor does a transfer of another old one": {RetainInput{Candidate: gen(3, 26), Slots: 4, Good: good(25), Places: []PlaceState{
			with(slotOf(gen(3, 16)), func(p *PlaceState) { p.Held = true }), slotOf(gen(3, 20)), slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, nil},
		"a transfer of what is newer takes none from it": {RetainInput{Candidate: gen(3, 26), Slots: 4, Good: good(25), Places: []PlaceState{
			slotOf(gen(3, 20)), slotOf(gen(3, 22)), with(slotOf(gen(3, 24)), func(p *PlaceState) { p.Held = true }),
			{State: replica.SlotFree}}}, nil},
		"nor where none is named": {RetainInput{Candidate: gen(1, 9), Slots: 3, Good: good(25), Places: []PlaceState{
			slotOf(gen(3, 20)), slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, nil},
	} {
		c.in.Job = openJob()
		c.in.Job.Writer = &replica.DurableWrite{Generation: gen(3, 15)}
		if got := Retain(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: frees %v, want %v", name, got, c.want)
		}
	}
}

// What was committed before a degraded Resume stays, whatever the number of slots, and takes a freshness slot's place.
func TestRetainPrevious(t *testing.T) {
	for name, c := range map[string]struct {
		before replica.Generation
		in     RetainInput
		want   []int
	}{
		"it alone of what is below C":       {gen(1, 8), RetainInput{Slots: 4, Places: []PlaceState{slotOf(gen(1, 8)), slotOf(gen(1, 9)), ringOf(gen(1, 8))}}, []int{1}},
		"of another history it goes":        {gen(1, 12), RetainInput{Slots: 4, Places: []PlaceState{slotOf(gen(1, 12))}}, []int{0}},
		"of three slots none is for fresh":  {gen(1, 8), RetainInput{Candidate: gen(3, 24), Slots: 3, Good: replica.PackWord(3, 22, 0), Places: []PlaceState{slotOf(gen(1, 8)), slotOf(gen(3, 20)), slotOf(gen(3, 22))}}, []int{2}},
		"but where the arena lacks it, one": {gen(1, 8), RetainInput{Candidate: gen(3, 24), Slots: 3, Good: replica.PackWord(3, 22, 0), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 22)), {State: replica.SlotFree}}}, nil},
		"of four, one is":                   {gen(1, 8), RetainInput{Candidate: gen(3, 26), Slots: 4, Good: replica.PackWord(3, 25, 0), Places: []PlaceState{slotOf(gen(1, 8)), slotOf(gen(3, 20)), slotOf(gen(3, 22)), slotOf(gen(3, 24))}}, []int{2}},
	} {
		c.in.Job = openJob()
		c.in.Job.Previous = &replica.Earlier{Generation: c.before}
		if got := Retain(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: frees %v, want %v", name, got, c.want)
		}
	}
	j := openJob()
	j.Previous, j.Plan = &replica.Earlier{Generation: gen(1, 8)}, &replica.Plan{Generation: gen(3, 20)}
	in := RetainInput{Job: j, Slots: 2, Places: []PlaceState{slotOf(gen(1, 8)), slotOf(gen(3, 18))}}
	if got := RetainForStaging(in, false, 2); !slices.Equal(got, []int{1}) {
		t.Errorf("while the job runs, staging frees %v", got)
	}
	j.Phase = replica.Planned
	if got := RetainForStaging(in, false, 2); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("a restore that needs both places frees %v, want the previous one last", got)
	}
}

// With two slots what is neither committed nor the candidate goes, but for the last step of a rank that will do no other.
func TestRetainLastOfTwoSlots(t *testing.T) {
	in := RetainInput{Job: openJob(), Candidate: gen(3, 24), Slots: 2, Good: replica.PackWord(3, 22, 0), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 22))}}
	if free := Retain(in); !slices.Equal(free, []int{1}) {
		t.Errorf("while it trains: %v, want the step that is not the candidate", free)
	}
	in.Stands = true
	if free := Retain(in); len(free) > 0 {
		t.Errorf("it stands at its newest step: frees %v", free)
	}
	in.Good = replica.PackWord(3, 23, 0)
	if free := Retain(in); !slices.Equal(free, []int{1}) {
		t.Errorf("it stands at a newer one, which needs the place: frees %v", free)
	}
}

func TestRetainRing(t *testing.T) {
	in := RetainInput{Job: openJob(), Candidate: gen(3, 25), Slots: 4, Good: replica.PackWord(3, 30, 0)}
	in.Places = []PlaceState{slotOf(gen(3, 22)), {State: replica.SlotCopying, Generation: gen(3, 24)}}
	for _, g := range []replica.Generation{gen(1, 10), gen(3, 20), gen(3, 21), gen(3, 22), gen(3, 23), gen(3, 24), gen(3, 25), gen(3, 26), gen(3, 27), gen(3, 28), gen(3, 29), gen(3, 30), gen(1, 11)} {
		in.Places = append(in.Places, ringOf(g))
	}
	var left []replica.Generation
	free := Retain(in)
	for i, p := range in.Places {
		if p.Ring && !slices.Contains(free, i) {
			left = append(left, p.Generation)
		}
	}
	// T, C, what the slots hold or copy, the candidate, the newest four.
	want := []replica.Generation{gen(1, 10), gen(3, 20), gen(3, 22), gen(3, 24), gen(3, 25), gen(3, 27), gen(3, 28), gen(3, 29), gen(3, 30)}
	if !slices.Equal(left, want) {
		t.Errorf("private parts left: %v, want %v", left, want)
	}
}

// TestRetainPhases: while a job is Closed or Planned nothing that could be eligible goes; what a closed opening sealed does.
func TestRetainPhases(t *testing.T) {
	in := RetainInput{Candidate: gen(3, 21), Slots: 4, Good: replica.PackWord(3, 90, 0), Places: []PlaceState{slotOf(gen(3, 20)), slotOf(gen(3, 18)), slotOf(gen(1, 12)), ringOf(gen(3, 2))}}
	for _, p := range []replica.JobPhase{replica.Closed, replica.Planned} {
		in.Job = openJob()
		in.Job.Phase = p
		if got := Retain(in); got != nil {
			t.Errorf("%v: frees %v", p, got)
		}
	}
	in.Job = &replica.Job{Phase: replica.Opening, Epoch: 3, ClosedEpoch: 2}
	in.Places = []PlaceState{slotOf(gen(2, 0)), slotOf(gen(3, 0)), ringOf(gen(2, 0)), ringOf(gen(3, 0))}
	if got := Retain(in); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("opening: frees %v, want the closed epoch's", got)
	}
	in.Job.ClosedEpoch = 3
	if got := Retain(in); len(got) != 4 {
		t.Errorf("opening closed: frees %v, want all: the next Begin mints another epoch", got)
	}
}

func TestRetainForStaging(t *testing.T) {
	// All slots full when a restore starts: C = 0, the twin with 0, 1, 2 survives, T = 2.
	j := &replica.Job{Phase: replica.Planned, Epoch: 2, ClosedEpoch: 1, Lineage: replica.Lineage{{Epoch: 1, Start: 0}}, Committed: gen(1, 0), Plan: &replica.Plan{Epoch: 2, Generation: gen(1, 2)}}
	in := RetainInput{Job: j, Slots: 4, Places: []PlaceState{slotOf(gen(1, 0)), slotOf(gen(1, 3)), slotOf(gen(1, 1)), slotOf(gen(1, 2)), ringOf(gen(1, 1))}}
	for need, want := range [][]int{nil, {2}, {2, 1}, {2, 1}} {
		if got := RetainForStaging(in, false, need); !slices.Equal(got, want) {
			t.Errorf("%d needed: frees %v, want %v: oldest first, never C or T", need, got, want)
		}
	}
	if got := RetainForStaging(in, true, 1); !slices.Equal(got, []int{4}) {
		t.Errorf("ring: frees %v", got)
	}
	in.Places = append(in.Places, PlaceState{State: replica.SlotFree}, PlaceState{State: replica.SlotTorn, Dead: true})
	if got := RetainForStaging(in, false, 2); !slices.Equal(got, []int{6}) {
		t.Errorf("one free, one torn: frees %v", got)
	}
	j.Phase, j.Plan, in.Places = replica.Closed, nil, in.Places[:4]
	if got := RetainForStaging(in, false, 4); got != nil {
		t.Errorf("without a plan: frees %v", got)
	}
}

// A rank whose state differs from what its twins planned has to load theirs: its own copy of that generation gives way. With two slots there
// is no other place, and the rank would wait for its part for ever.
func TestWhatTheVoteWentAgainstGivesWay(t *testing.T) {
	c, x := gen(3, 10), gen(3, 11)
	mine, theirs := replica.Digest{1}, replica.Digest{2}
	j := &replica.Job{Phase: replica.Planned, Epoch: 4, ClosedEpoch: 3, Committed: c, Lineage: replica.Lineage{{Epoch: 3, Start: 0}}, Plan: &replica.Plan{Epoch: 4, Generation: x, Sources: []replica.Source{{Part: replica.OfGroup(0), Root: theirs}}}}
	for root, want := range map[replica.Digest][]int{mine: {1}, theirs: nil, {}: nil} {
		in := RetainInput{Job: j, Slots: 2, Places: []PlaceState{{State: replica.SlotSealed, Generation: c, Root: replica.Digest{9}}, {Index: 1, State: replica.SlotSealed, Generation: x, Root: root}}}
		if got := RetainForStaging(in, false, 1); !slices.Equal(got, want) {
			t.Errorf("with the part of root %v in the other slot %v gives way, want %v", root, got, want)
		}
	}
}

// TestRetainNever holds Retain and RetainForStaging against what they must never free, on random arenas.
func TestRetainNever(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	freed := 0
	for range 20000 {
		j := openJob()
		j.Phase = replica.JobPhase(rng.IntN(3) + 2)
		if j.Phase == replica.Closed {
			j.Plan = nil
		}
		if rng.IntN(2) == 0 {
			j.Previous = &replica.Earlier{Generation: gen(replica.Epoch(rng.IntN(3)+1), replica.Step(rng.IntN(20)))}
		}
		in := RetainInput{Job: j, Slots: rng.IntN(3) + 2, Candidate: gen(3, replica.Step(20+rng.IntN(4))), Good: replica.PackWord(3, replica.Step(20+rng.IntN(10)), 0)}
		for range 8 {
			in.Places = append(in.Places, PlaceState{Ring: rng.IntN(2) == 0, State: replica.SlotState(rng.IntN(5)), Generation: gen(replica.Epoch(rng.IntN(3)+1), replica.Step(rng.IntN(24))),
				Pinned: rng.IntN(5) == 0, Held: rng.IntN(5) == 0, Dead: rng.IntN(2) == 0})
		}
		staging := RetainForStaging(in, rng.IntN(2) == 0, rng.IntN(4))
		for n, free := range [][]int{Retain(in), staging} {
			freed += len(free)
			for _, i := range free {
				p := in.Places[i]
				switch {
				case p.State == replica.SlotTorn && p.Dead:
				case p.State != replica.SlotSealed, p.Pinned, p.Held, p.Generation == j.Committed,
					p.Generation == in.Candidate && j.Phase == replica.Open,
					n == 0 && j.Phase != replica.Open,
					p.Generation == previous(j) && j.Phase == replica.Open && j.Lineage.Valid(p.Generation) && n == 0,
					p.Generation == previous(j) && j.Phase == replica.Open && n == 1,
					n == 1 && (j.Plan == nil || p.Generation == j.Plan.Generation):
					t.Fatalf("rule %d frees %+v in phase %v, candidate %v", n, p, j.Phase, in.Candidate)
				}
			}
		}
	}
	if freed < 10000 {
		t.Errorf("only %d places freed", freed)
	}
}
