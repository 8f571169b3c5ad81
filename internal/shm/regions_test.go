package shm

import (
	"errors"
	"testing"

	"github.com/replicad/replicad/replica"
)

// Every region of a place is hashed by itself, whatever lies beside it; only of a place that is sealed in that use.
func TestRegionDigests(t *testing.T) {
	for _, p := range []Place{{Slot, 1}, {Ring, 1}, {Frozen, 0}} {
		a := newArena(t, testSpec(t))
		r := newRank(t, a)
		r.capture(p, testGen, 1, replica.SlotSealed)
		before, err := a.RegionDigests(p, a.Word(p).Count())
		if err != nil || len(before) == 0 {
			t.Fatalf("%v: %v, %v", p, before, err)
		}
		byName := map[string]replica.Region{}
		for _, reg := range a.Geometry().Regions {
			byName[reg.Name] = reg
		}
		for i, d := range before {
			reg, ok := byName[d.Name]
			if !ok || (reg.Class == replica.Frozen) != (p.Kind == Frozen) || (reg.Kind == replica.Private) != (p.Kind == Ring) {
				t.Fatalf("%v: hashes %q: %+v", p, d.Name, reg)
			}
			if reg.Bytes == 0 {
				continue
			}
			last := &r.bytes(p)[reg.Offset+reg.Bytes-1]
			*last ^= 1
			after, err := a.RegionDigests(p, a.Word(p).Count())
			*last ^= 1
			if got := replica.Differing(before, after); err != nil || len(got) != 1 || got[0] != before[i].Name {
				t.Errorf("%v: with another last byte of %q differ %q, %v", p, d.Name, got, err)
			}
		}
		if _, err := a.RegionDigests(p, a.Word(p).Count()+1); !errors.Is(err, ErrNotSealed) {
			t.Errorf("%v of another use: %v, want ErrNotSealed", p, err)
		}
	}
	a := newArena(t, testSpec(t))
	if _, err := a.RegionDigests(Place{Slot, 99}, 0); !errors.Is(err, ErrNoPlace) {
		t.Errorf("no such place: %v", err)
	}
}
