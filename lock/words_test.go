package lock

import (
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestNextStepExhaustive tries every pair of small words against a list of the legal moves written out.
func TestNextStepExhaustive(t *testing.T) {
	type w struct {
		e replica.Epoch
		s replica.Step
		p replica.Phase
	}
	legal := func(a, b w) bool {
		if b.e > a.e {
			return b.p == replica.Idle // loaded for a newer epoch
		}
		if b.e < a.e {
			return false
		}
		for s := replica.Step(0); s < 4; s++ {
			for _, m := range [][2]w{
				{{a.e, s, replica.Idle}, {a.e, s + 1, replica.Updating}},
				{{a.e, s + 1, replica.Updating}, {a.e, s, replica.Idle}},
				{{a.e, s, replica.Updating}, {a.e, s, replica.Updated}},
				{{a.e, s, replica.Updated}, {a.e, s, replica.Idle}},
			} {
				if m == [2]w{a, b} {
					return true
				}
			}
		}
		return false
	}
	var all []w
	for e := replica.Epoch(1); e < 4; e++ {
		for s := replica.Step(0); s < 4; s++ {
			for p := replica.Idle; p <= replica.Updated; p++ {
				all = append(all, w{e, s, p})
			}
		}
	}
	for _, a := range all {
		for _, b := range all {
			err := NextStep(replica.PackWord(a.e, a.s, a.p), replica.PackWord(b.e, b.s, b.p))
			if (err == nil) != legal(a, b) {
				t.Errorf("%v -> %v: %v", a, b, err)
			}
		}
	}
}

func TestMayEnter(t *testing.T) {
	at := replica.PackWord(3, 7, replica.Idle)
	for _, c := range []struct {
		step  replica.Word
		e     replica.Epoch
		s     replica.Step
		fence replica.Epoch
		ok    bool
	}{
		{at, 3, 8, 2, true},
		{at, 3, 8, 3, false}, // fenced between the store and the load
		{at, 3, 8, 9, false}, // by a later one
		{at, 3, 9, 2, false}, // not the next step
		{at, 3, 7, 2, false}, // done already
		{at, 4, 8, 2, false}, // a handle of another epoch
		{at, 2, 8, 1, false}, // a leftover thread of an older one
		{replica.PackWord(3, 8, replica.Updating), 3, 8, 2, false},
	} {
		if err := MayEnter(c.step, c.e, c.s, c.fence); (err == nil) != c.ok {
			t.Errorf("step_enter(%d) of epoch %d at %x, fence %d: %v", c.s, c.e, c.step, c.fence, err)
		}
	}
}

func TestGoodAndFence(t *testing.T) {
	if NextGood(replica.PackWord(2, 9, 0), replica.PackWord(3, 1, 0)) != nil || NextGood(replica.PackWord(2, 9, 0), replica.PackWord(2, 10, 0)) != nil {
		t.Error("the good word must rise by epoch, then step")
	}
	for _, to := range []replica.Word{replica.PackWord(2, 9, 0), replica.PackWord(2, 8, 0), replica.PackWord(1, 99, 0), replica.PackWord(3, 9, 1)} {
		if NextGood(replica.PackWord(2, 9, 0), to) == nil {
			t.Errorf("good may not become %x", to)
		}
	}
	if MaySeal(replica.PackWord(5, 4, 0), replica.Generation{Epoch: 5, Step: 4}) != nil {
		t.Error("good at the step itself suffices")
	}
	for _, g := range []replica.Generation{{Epoch: 5, Step: 5}, {Epoch: 6, Step: 1}, {Epoch: 4, Step: 1}} {
		if MaySeal(replica.PackWord(5, 4, 0), g) == nil {
			t.Errorf("%v sealed while good is (5,4): S+1 of epoch 5 must not be offered in epoch 6 nor the other way round", g)
		}
	}
	if NextFence(4, 4) != nil || NextFence(4, 5) != nil || NextFence(4, 3) == nil {
		t.Error("the fence word never falls")
	}
}

// TestNextSlotExhaustive tries every pair of states and counts, by rank and daemon, against the legal ones written out.
func TestNextSlotExhaustive(t *testing.T) {
	const same, next = 0, 1
	type move struct {
		from, to replica.SlotState
		count    uint64
	}
	both := map[move]bool{
		{replica.SlotFree, replica.SlotCopying, same}:   true,
		{replica.SlotCopying, replica.SlotCopied, same}: true,
		{replica.SlotCopied, replica.SlotSealed, same}:  true,
	}
	daemon := map[move]bool{
		{replica.SlotCopying, replica.SlotTorn, same}: true,
		{replica.SlotCopied, replica.SlotTorn, same}:  true,
		{replica.SlotTorn, replica.SlotFree, next}:    true,
		{replica.SlotSealed, replica.SlotFree, next}:  true,
	}
	for f := replica.SlotFree; f <= 7; f++ {
		for to := replica.SlotFree; to <= 7; to++ {
			for d := -1; d <= 2; d++ {
				m := move{f, to, uint64(d)}
				for _, byDaemon := range []bool{false, true} {
					err := NextSlot(replica.PackSlot(5, f), replica.PackSlot(uint64(5+d), to), byDaemon)
					if want := both[m] || byDaemon && daemon[m]; (err == nil) != want {
						t.Errorf("%v -> %v, count %+d, daemon %v: %v", f, to, d, byDaemon, err)
					}
				}
			}
		}
	}
}
