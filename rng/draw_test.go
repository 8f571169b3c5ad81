package rng

import (
	"fmt"
	"math/big"
	"math/bits"
	"strings"
	"testing"
)

// The generators themselves, from their papers: what they draw from a parsed state is what python drew, so every field is where
// Parse says.

func (s *MT19937) draw() uint32 {
	if s.Position == Words {
		for i := range s.Words {
			y := s.Words[i]&0x80000000 | s.Words[(i+1)%Words]&0x7fffffff
			s.Words[i] = s.Words[(i+397)%Words] ^ y>>1 ^ y&1*0x9908b0df
		}
		s.Position = 0
	}
	y := s.Words[s.Position]
	s.Position++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// halves draws 32 bits from a generator of 64: the lower half, then the upper one.
func (h *Half) draw(next func() uint64) uint32 {
	if h.Waits {
		h.Waits = false
		return h.Value
	}
	x := next()
	h.Waits, h.Value = true, uint32(x>>32)
	return uint32(x)
}

func (u Uint128) big() *big.Int {
	x := new(big.Int).SetUint64(u.High)
	return x.Or(x.Lsh(x, 64), new(big.Int).SetUint64(u.Low))
}

func low128(x *big.Int) Uint128 {
	mask := new(big.Int).SetUint64(1<<64 - 1)
	return Uint128{new(big.Int).And(x, mask).Uint64(), new(big.Int).And(new(big.Int).Rsh(x, 64), mask).Uint64()}
}

// step is state = state * multiplier + increment mod 2^128.
func (s *PCG64) step(multiplier string) {
	m, ok := new(big.Int).SetString(multiplier, 10)
	if !ok {
		panic(multiplier)
	}
	s.State = low128(m.Add(m.Mul(m, s.State.big()), s.Increment.big()))
}

func (s *PCG64) draw() uint64 {
	s.step("47026247687942121848144207491837523525")
	return bits.RotateLeft64(s.State.High^s.State.Low, -int(s.State.High>>58))
}

func (s *PCG64DXSM) draw() uint64 {
	const cheap = 0xda942042e4dd58b5
	hi, lo := s.State.High, s.State.Low|1
	hi ^= hi >> 32
	hi *= cheap
	hi ^= hi >> 48
	p := PCG64(*s)
	p.step(fmt.Sprint(uint64(cheap)))
	*s = PCG64DXSM(p)
	return hi * lo
}

func (s *Philox) draw() uint64 {
	if s.Position == 4 {
		for i := range s.Counter {
			s.Counter[i]++
			if s.Counter[i] != 0 {
				break
			}
		}
		c, k := s.Counter, s.Key
		for range 10 {
			h0, l0 := bits.Mul64(0xd2e7470ee14c6c93, c[0])
			h1, l1 := bits.Mul64(0xca5a826395121157, c[2])
			c = [4]uint64{h1 ^ c[1] ^ k[0], l1, h0 ^ c[3] ^ k[1], l0}
			k[0] += 0x9e3779b97f4a7c15
			k[1] += 0xbb67ae8584caa73b
		}
		s.Buffer, s.Position = c, 0
	}
	s.Position++
	return s.Buffer[s.Position-1]
}

func (s *SFC64) draw() uint64 {
	x := s.A + s.B + s.Counter
	s.Counter++
	s.A = s.B ^ s.B>>11
	s.B = s.C + s.C<<3
	s.C = bits.RotateLeft64(s.C, 24) + x
	return x
}

// drawer draws 32 bits at a time, as python's side did for drawn.txt.
func drawer(s State) func() uint32 {
	switch s := s.(type) {
	case Python3:
		return s.draw
	case RandomState:
		return s.draw
	case MT19937:
		return s.draw
	case TorchCPU:
		m := MT19937{s.Words, Words + 1 - s.Left}
		if s.Next == 0 {
			m.Position = Words
		}
		return func() uint32 { return m.draw() &^ (1 << 31) }
	case PCG64:
		return func() uint32 { return s.Half.draw(s.draw) }
	case PCG64DXSM:
		return func() uint32 { return s.Half.draw((&s).draw) }
	case Philox:
		return func() uint32 { return s.Half.draw(s.draw) }
	case SFC64:
		return func() uint32 { return s.Half.draw(s.draw) }
	}
	return nil
}

func TestParsedStatesDrawOn(t *testing.T) {
	want := map[string]string{}
	for line := range strings.Lines(string(golden(t, "drawn.txt"))) {
		name, drawn, _ := strings.Cut(strings.TrimSpace(line), ": ")
		want[name] = drawn
	}
	for _, r := range parsed(t, golden(t, "full.bin")) {
		draw := drawer(r.State)
		if draw == nil {
			continue // CUDA's: what they draw depends on the kernel
		}
		var got []string
		for range 8 {
			got = append(got, fmt.Sprintf("%08x", draw()))
		}
		if s := strings.Join(got, " "); s != want[r.String()] {
			t.Errorf("%v draws\n%s, want\n%s", r, s, want[r.String()])
		}
		delete(want, r.String())
	}
	for name := range want {
		t.Errorf("%s: not in full.bin", name)
	}
}
