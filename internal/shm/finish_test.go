package shm

import (
	"errors"
	"testing"

	"github.com/replicad/replicad/replica"
)

// A rank dies in every state of every kind of place, with its good word at, before and beyond the part and in another epoch, its
// bytes whole or not. What may become of the place is said here once more, in the plainest way.
func TestDeathMatrix(t *testing.T) {
	goods := map[string]replica.Generation{
		"none": {}, "before": {Epoch: 3, Step: 8}, "at": {Epoch: 3, Step: 9}, "beyond": {Epoch: 3, Step: 10},
		"other epoch": {Epoch: 4, Step: 10}, "older epoch": {Epoch: 2, Step: 10},
	}
	for _, p := range []Place{{Slot, 1}, {Ring, 1}, {Frozen, 0}} {
		for state := replica.SlotFree; state <= 5; state++ {
			for goodName, good := range goods {
				for _, whole := range []bool{true, false} {
					a := newArena(t, testSpec(t))
					a.SetOwner(12, 4711, 99)
					r := newRank(t, a)
					m := r.capture(p, testGen, 1, state)
					r.setGood(good)
					if !whole {
						r.bytes(p)[100] ^= 1
					}
					vouched := p.Kind != Slot || goodName == "at" || goodName == "beyond"
					mayFinish := state == replica.SlotCopied && vouched && whole

					err := a.Finish(p)
					switch {
					case mayFinish != (err == nil):
						t.Errorf("%v %v good %s whole %v: finish: %v", p, state, goodName, whole, err)
					case state == replica.SlotCopied && vouched && !whole && !errors.Is(err, ErrCorrupt):
						t.Errorf("%v %v good %s: %v, want ErrCorrupt", p, state, goodName, err)
					}
					if mayFinish {
						got, err := a.Sealed(p)
						if err != nil || got.Root != m.Root || got.Flags != replica.DaemonMade || a.Verify(p) != nil {
							t.Errorf("%v finished as %+v: %v", p, got, err)
						}
						continue
					}
					mayTear := state != replica.SlotFree && state != replica.SlotSealed && state != replica.SlotTorn
					if a.Tear(p) != mayTear {
						t.Errorf("%v %v: torn: %v", p, state, !mayTear)
					}
					if mayTear && (a.Word(p).State() != replica.SlotTorn || a.Finish(p) == nil) {
						t.Errorf("%v %v: not torn for good: %v", p, state, a.Word(p).State())
					}
					count := a.Word(p).Count()
					if freed := a.Free(p); freed != (state != replica.SlotFree) || freed && a.Word(p) != replica.PackSlot(count+1, replica.SlotFree) {
						t.Errorf("%v %v: freed %v, now %v", p, state, freed, a.Word(p).State())
					}
				}
			}
		}
	}
}

func TestFreeForgetsThePin(t *testing.T) {
	a := newArena(t, testSpec(t))
	r := newRank(t, a)
	p := Place{Slot, 0}
	r.capture(p, testGen, 1, replica.SlotSealed)
	a.Pin(p, 4, 5)
	if m, err := a.Sealed(p); err != nil || m.PinTerm != 4 || m.PinN != 5 {
		t.Fatalf("%+v: %v", m, err)
	}
	a.Free(p)
	if le64(r.meta(p)[metaPin:]) != 0 {
		t.Error("the pin outlived its part")
	}
}
