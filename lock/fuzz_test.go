package lock

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// script is a source of random numbers whose first draws are a fuzzer's bytes, one each.
type script struct {
	left []byte
	rest rand.Source
}

func (s *script) Uint64() uint64 {
	drawn := s.rest.Uint64()
	if len(s.left) == 0 {
		return drawn
	}
	b := s.left[0]
	s.left = s.left[1:]
	return uint64(b)<<56 | drawn&0x00ff_ffff_ffff_ff00 | uint64(b) // rand takes the high bits, or the low ones for a power of two
}

// A script's bytes decide what is drawn, and nothing else does.
func TestScript(t *testing.T) {
	for rest := range uint64(100) {
		rng := rand.New(&script{[]byte{0, 1, 3, 0, 128, 255}, rand.NewPCG(rest, 1)})
		got := []int{rng.IntN(4), rng.IntN(4), rng.IntN(4), rng.IntN(5), rng.IntN(5), rng.IntN(5)}
		if want := []int{0, 1, 3, 0, 2, 4}; !slices.Equal(got, want) {
			t.Fatalf("drawn %v, want %v", got, want)
		}
	}
}

// FuzzCommands is TestStorm with the fuzzer's bytes for its dice. No sequence of commands panics, breaks an invariant or changes an
// older view. A twin that starts from a snapshot taken on the way comes to the same state.
func FuzzCommands(f *testing.F) {
	for seed := range uint64(8) {
		b := make([]byte, 400)
		rng := rand.New(rand.NewPCG(seed, 3))
		for i := range b {
			b[i] = byte(rng.UintN(256))
		}
		f.Add(byte(seed*30), b)
	}
	f.Fuzz(func(t *testing.T, at byte, dice []byte) {
		if len(dice) > 1000 {
			return
		}
		src := &script{dice, rand.NewPCG(1, 1)}
		s := newStorm(t, 0)
		s.rng = rand.New(src)
		var twin *State
		s.applied = func(index uint64, c replica.Command) {
			if twin == nil && index >= uint64(at) { // the storm has applied c already
				twin = restored(t, s.w.state.View())
				return
			}
			if twin != nil {
				twin.Apply(index, c)
			}
		}
		for len(src.left) > 0 {
			s.one()
		}
		s.frozen()
		if twin == nil {
			return
		}
		if got, want := deep(t, twin.View()), deep(t, s.w.state.View()); got != want {
			t.Errorf("a twin from a snapshot at entry %d is\n%s\nand not\n%s", at, got, want)
		}
	})
}

// restored is the state that a snapshot of the view holds.
func restored(t *testing.T, v View) *State {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var back View
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	return FromView(back)
}
