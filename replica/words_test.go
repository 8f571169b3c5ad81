package replica

import (
	"math/rand/v2"
	"testing"
)

// TestPackWord checks packing against the fields it came from, at and around the limits, and that words order as
// (epoch, step) do.
func TestPackWord(t *testing.T) {
	epochs := []Epoch{0, 1, 2, MaxEpoch - 1, MaxEpoch}
	steps := []Step{0, 1, 2, MaxStep - 1, MaxStep}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		epochs, steps = append(epochs, Epoch(rng.Uint64())&MaxEpoch), append(steps, Step(rng.Uint64())&MaxStep)
	}
	var words []Word
	for _, e := range epochs {
		for _, s := range steps {
			for p := Idle; p <= Updated; p++ {
				w := PackWord(e, s, p)
				if w.Epoch() != e || w.Step() != s || w.Phase() != p {
					t.Fatalf("{%d, %d, %v} unpacks to {%d, %d, %v}", e, s, p, w.Epoch(), w.Step(), w.Phase())
				}
			}
			words = append(words, Generation{e, s}.Word())
		}
	}
	for _, a := range words {
		for _, b := range words[:100] {
			if want := a.Generation().Compare(b.Generation()); want < 0 != (a < b) || want > 0 != (a > b) {
				t.Fatalf("%v and %v order as words unlike as generations", a.Generation(), b.Generation())
			}
		}
	}
	// The bits are the contract with libreplicad.
	if w := PackWord(5, 9, Updating); w != 5<<40|9<<2|1 {
		t.Errorf("PackWord(5, 9, UPDATING) = %#x", uint64(w))
	}
	if w := PackWord(MaxEpoch+1, MaxStep+1, 0); w != 0 {
		t.Errorf("beyond the limits: %#x, want masked", uint64(w))
	}
}

func TestPackSlot(t *testing.T) {
	for _, count := range []uint64{0, 1, 77, 1<<61 - 1} {
		for s := SlotFree; s <= SlotTorn; s++ {
			if w := PackSlot(count, s); w.Count() != count || w.State() != s {
				t.Errorf("{%d, %v} unpacks to {%d, %v}", count, s, w.Count(), w.State())
			}
		}
	}
	if w := PackSlot(3, SlotSealed); w != 3<<3|3 {
		t.Errorf("PackSlot(3, SEALED) = %#x", uint64(w))
	}
	if SlotState(7).String() != "INVALID" || Phase(3).String() != "INVALID" {
		t.Error("unknown states must say so")
	}
}
