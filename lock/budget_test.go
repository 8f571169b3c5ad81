package lock

import (
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// The exhaustive search over what an arena may hold in each phase: every way to fill two and three slots with what a job knows of, pinned and
// read or not. What is needed has a place at once, unless a copy or a reader under way holds one, whose end is bounded by its own progress;
// and what must stay is never given up.
func TestTheSlotBudget(t *testing.T) {
	previous, committed, candidate, planned := gen(1, 8), gen(3, 20), gen(3, 21), gen(3, 23)
	known := []replica.Generation{previous, committed, candidate, planned, gen(3, 18), gen(2, 5)} // older, and of another history
	phases := map[string]struct {
		job       func(*replica.Job)
		candidate replica.Generation
		needs     map[replica.Generation]bool // with (true) a place in a mirror only
		stays     []replica.Generation
	}{
		"open": {func(j *replica.Job) { j.Plan.Generation = gen(1, 10) }, candidate, map[replica.Generation]bool{candidate: false}, []replica.Generation{committed, candidate}},
		"open, what was before stays": {func(j *replica.Job) {
			j.Previous, j.Plan.Generation = &replica.Earlier{Generation: previous}, committed
		}, candidate, map[replica.Generation]bool{committed: true}, []replica.Generation{committed, previous}},
		"closed":                        {func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Closed, 3 }, candidate, nil, known[:5]},
		"planned":                       {plannedAt(planned), candidate, map[replica.Generation]bool{planned: false}, []replica.Generation{committed, planned}},
		"planned at what is committed":  {plannedAt(committed), candidate, map[replica.Generation]bool{committed: false}, []replica.Generation{committed}},
		"planned, what was before goes": {func(j *replica.Job) { plannedAt(planned)(j); j.Previous = &replica.Earlier{Generation: previous} }, candidate, map[replica.Generation]bool{planned: false}, []replica.Generation{committed, planned}},
	}
	searched := 0
	for name, c := range phases {
		job := openJob()
		c.job(job)
		for _, slots := range []int{2, 3} {
			for _, places := range filled(slots, job, c.candidate, known) {
				searched++
				in := RetainInput{Job: job, Candidate: c.candidate, Slots: slots, Places: places}
				if !reached(in) {
					continue
				}
				freed := Retain(in)
				for g, mirrorOnly := range c.needs {
					staging := job.Phase != replica.Open || mirrorOnly
					if slices.ContainsFunc(places, func(p PlaceState) bool { return p.State == replica.SlotSealed && p.Generation == g }) {
						continue
					}
					gives := freed
					if staging {
						gives = append(slices.Clone(freed), RetainForStaging(in, false, 1)...)
					}
					if !hasPlace(places, gives) && !busy(places) {
						t.Fatalf("%s, %d slots: no place for %v among %s", name, slots, g, show(places))
					}
				}
				gone := freed
				if job.Phase == replica.Planned || job.Phase == replica.Open {
					gone = append(slices.Clone(freed), RetainForStaging(in, false, 1)...)
				}
				for i, p := range places {
					if slices.Contains(gone, i) && (p.Pinned || p.Held) {
						t.Fatalf("%s, %d slots: %v is freed, pinned %v, read %v", name, slots, p.Generation, p.Pinned, p.Held)
					}
				}
				for _, g := range c.stays {
					if has(places, nil, g) && !has(places, gone, g) {
						t.Fatalf("%s, %d slots: the last copy of %v is freed from %s", name, slots, g, show(places))
					}
				}
			}
		}
	}
	if searched < 30_000 {
		t.Errorf("%d arenas searched only", searched)
	}
}

// reached tells whether an arena can come to hold this: without the candidate it would not have been allowed to take it.
func reached(in RetainInput) bool {
	for i, p := range in.Places {
		if p.State == replica.SlotSealed && p.Generation == in.Candidate {
			before := slices.Clone(in.Places)
			before[i] = PlaceState{State: replica.SlotFree, Index: i}
			was := in
			was.Places = before
			if CommittedFirst(was) {
				return false
			}
		}
	}
	return true
}

func plannedAt(g replica.Generation) func(*replica.Job) {
	return func(j *replica.Job) {
		j.Phase, j.Epoch, j.ClosedEpoch, j.Plan = replica.Planned, 4, 3, &replica.Plan{Epoch: 4, Generation: g}
	}
}

// filled is every way to fill so many slots.
func filled(slots int, job *replica.Job, candidate replica.Generation, known []replica.Generation) [][]PlaceState {
	one := []PlaceState{{State: replica.SlotFree}, {State: replica.SlotCopying}, {State: replica.SlotTorn, Dead: true}}
	for _, g := range known {
		for _, held := range []bool{false, true} {
			p := PlaceState{State: replica.SlotSealed, Generation: g, Root: replica.Digest{byte(g.Epoch), byte(g.Step)}, Held: held, Dead: job.Phase != replica.Open}
			one = append(one, p)
			if g == candidate {
				p.Pinned = PinHolds(job, candidate)
				one = append(one, p)
			}
		}
	}
	all := [][]PlaceState{nil}
	for i := range slots {
		var next [][]PlaceState
		for _, some := range all {
			for _, p := range one {
				p.Index = i
				next = append(next, append(slices.Clone(some), p))
			}
		}
		all = next
	}
	return all
}

func hasPlace(places []PlaceState, freed []int) bool {
	return len(freed) > 0 || slices.ContainsFunc(places, func(p PlaceState) bool { return p.State == replica.SlotFree })
}

// busy tells whether a copy or a read that will end holds a place.
func busy(places []PlaceState) bool {
	return slices.ContainsFunc(places, func(p PlaceState) bool { return p.State == replica.SlotCopying || p.Held })
}

func has(places []PlaceState, but []int, g replica.Generation) bool {
	for i, p := range places {
		if p.State == replica.SlotSealed && p.Generation == g && !slices.Contains(but, i) {
			return true
		}
	}
	return false
}

func show(places []PlaceState) (s string) {
	for _, p := range places {
		s += fmt.Sprintf(" [%v %v pinned %v read %v]", p.State, p.Generation, p.Pinned, p.Held)
	}
	return s
}
