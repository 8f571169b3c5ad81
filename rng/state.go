package rng

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Layout says how a payload is laid out. A number keeps its meaning for ever.
type Layout uint8

// The layouts.
const (
	LayoutPython      Layout = 1
	LayoutRandomState Layout = 2
	LayoutMT19937     Layout = 3
	LayoutPCG64       Layout = 4
	LayoutPCG64DXSM   Layout = 5
	LayoutPhilox      Layout = 6
	LayoutSFC64       Layout = 7
	LayoutTorchCPU    Layout = 8
	LayoutTorchCUDA   Layout = 9
	LayoutSeeds       Layout = 10
)

var layouts = [...]struct {
	name string
	size int
}{
	LayoutPython: {"python", 2512}, LayoutRandomState: {"RandomState", 2512}, LayoutMT19937: {"MT19937", 2500},
	LayoutPCG64: {"PCG64", 40}, LayoutPCG64DXSM: {"PCG64DXSM", 40}, LayoutPhilox: {"Philox", 92}, LayoutSFC64: {"SFC64", 40},
	LayoutTorchCPU: {"torch CPU", 5056}, LayoutTorchCUDA: {"torch CUDA", 16}, LayoutSeeds: {"seed sequence", 4096},
}

// Size is the bytes of a payload, of a seed sequence the most that there may be; zero for an unknown layout.
func (l Layout) Size() int {
	if int(l) >= len(layouts) {
		return 0
	}
	return layouts[l].size
}

func (l Layout) String() string {
	if l.Size() == 0 {
		return fmt.Sprintf("layout %d", uint8(l))
	}
	return layouts[l].name
}

func (l Layout) checkSize(size int64) error {
	switch want := int64(l.Size()); {
	case l == LayoutSeeds && size > want:
		return fmt.Errorf("%d bytes of a state of %v, want at most %d", size, l, want)
	case l != LayoutSeeds && size != want:
		return fmt.Errorf("%d bytes of a state of %v, want %d", size, l, want)
	}
	return nil
}

// spawns says whether a state is of one of numpy's bit generators, which have seed sequences.
func spawns(s State) bool { return s.Layout() >= LayoutMT19937 && s.Layout() <= LayoutSFC64 }

// State is what one generator draws from: Python, RandomState, MT19937, PCG64, PCG64DXSM, Philox, SFC64, TorchCPU or TorchCUDA; or what it
// spawns others from: SeedSequence.
type State interface {
	Layout() Layout
	// Check says why no generator can be in this state.
	Check() error
	append(dst []byte) []byte
}

// parseState reads a payload of the layout's size. What Check can't see, because the type has no room for it, is refused here.
func parseState(l Layout, b []byte) (State, error) {
	d := decoder{b: b}
	var s State
	switch l {
	case LayoutPython:
		s = Python3{d.twister(), d.gauss()}
	case LayoutRandomState:
		s = RandomState{d.twister(), d.gauss()}
	case LayoutMT19937:
		s = d.twister()
	case LayoutPCG64:
		s = PCG64{d.u128(), d.u128(), d.half()}
	case LayoutPCG64DXSM:
		s = PCG64DXSM{d.u128(), d.u128(), d.half()}
	case LayoutPhilox:
		s = d.philox()
	case LayoutSFC64:
		s = SFC64{d.u64(), d.u64(), d.u64(), d.u64(), d.half()}
	case LayoutTorchCPU:
		s = d.torchCPU()
	case LayoutTorchCUDA:
		s = TorchCUDA{d.u64(), d.u64()}
	case LayoutSeeds:
		return parseSeeds(b)
	}
	if d.err != nil {
		return nil, d.err
	}
	return s, nil
}

// Words is the number of words of a Mersenne twister.
const Words = 624

// MT19937 is a Mersenne twister: 624 words u32, position u32. A position of 624 makes them anew before the next draw.
type MT19937 struct {
	Words    [Words]uint32
	Position uint32
}

func (MT19937) Layout() Layout { return LayoutMT19937 }

func (s MT19937) Check() error {
	if s.Position > Words {
		return fmt.Errorf("position %d, want 0 to %d", s.Position, Words)
	}
	return checkWords(&s.Words)
}

// checkWords refuses the state that a twister never leaves. 19937 bits count: of the first word only the highest.
func checkWords(w *[Words]uint32) error {
	bits := w[0] >> 31
	for _, x := range w[1:] {
		bits |= x
	}
	if bits == 0 {
		return errors.New("all words are zero: it would draw zeros for ever")
	}
	return nil
}

func (s MT19937) append(dst []byte) []byte {
	for _, w := range s.Words {
		dst = binary.LittleEndian.AppendUint32(dst, w)
	}
	return binary.LittleEndian.AppendUint32(dst, s.Position)
}

// Sample is a normal sample that was drawn as one of a pair, and waits; where there is none Value is +0. The same is of torch's
// floats, which a float64 holds exactly.
type Sample struct {
	Waits bool
	Value float64
}

func (s Sample) sound() bool {
	return s.Waits && !math.IsInf(s.Value, 0) && !math.IsNaN(s.Value) || !s.Waits && math.Float64bits(s.Value) == 0
}

func (s Sample) check(what string) error {
	switch {
	case s.sound():
		return nil
	case s.Waits:
		return fmt.Errorf("%s %s", what, floatText(s.Value))
	}
	return fmt.Errorf("a %s that it says it does not have", what)
}

// floatText is a float as python writes it.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return fmt.Sprint(f)
}

// append: u32 1 or 0, f64.
func (s Sample) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, flag(s.Waits))
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(s.Value))
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// Python3 is a random.Random of version 3: a twister, has_gauss u32, gauss f64.
type Python3 struct {
	MT19937
	Gauss Sample
}

func (Python3) Layout() Layout             { return LayoutPython }
func (s Python3) Check() error             { return cmp.Or(s.MT19937.Check(), s.Gauss.check("gauss")) }
func (s Python3) append(dst []byte) []byte { return s.Gauss.append(s.MT19937.append(dst)) }

// RandomState is one of numpy's legacy generators, laid out as Python3.
type RandomState struct {
	MT19937
	Gauss Sample
}

func (RandomState) Layout() Layout             { return LayoutRandomState }
func (s RandomState) Check() error             { return cmp.Or(s.MT19937.Check(), s.Gauss.check("gauss")) }
func (s RandomState) append(dst []byte) []byte { return s.Gauss.append(s.MT19937.append(dst)) }

// Uint128 is a number of 128 bits.
type Uint128 struct{ Low, High uint64 }

func (u Uint128) append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, u.Low), u.High)
}

// Half is the upper half of 64 drawn bits that waits for the next 32-bit draw: has_uint32 u32, uinteger u32. Numpy leaves the value of a
// used one in place, and so does this, so that a restored bit_generator.state compares equal.
type Half struct {
	Waits bool
	Value uint32
}

func (h Half) append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(dst, flag(h.Waits)), h.Value)
}

// PCG64 is numpy's: state u128, increment u128, half. An even increment would shorten its period.
type PCG64 struct {
	State, Increment Uint128
	Half             Half
}

func (PCG64) Layout() Layout { return LayoutPCG64 }

func (s PCG64) Check() error {
	if s.Increment.Low%2 == 0 {
		return errors.New("an even increment")
	}
	return nil
}

func (s PCG64) append(dst []byte) []byte {
	return s.Half.append(s.Increment.append(s.State.append(dst)))
}

// PCG64DXSM is PCG64 with another multiplier and output function.
type PCG64DXSM PCG64

func (PCG64DXSM) Layout() Layout             { return LayoutPCG64DXSM }
func (s PCG64DXSM) Check() error             { return PCG64(s).Check() }
func (s PCG64DXSM) append(dst []byte) []byte { return PCG64(s).append(dst) }

// Philox is numpy's Philox 4x64-10: counter 4 u64, key 2 u64, buffer 4 u64, position in the buffer u32, half. A position of 4 makes the
// buffer anew before the next draw; what is used of it stays, as with Half.
type Philox struct {
	Counter  [4]uint64
	Key      [2]uint64
	Buffer   [4]uint64
	Position uint32
	Half     Half
}

func (Philox) Layout() Layout { return LayoutPhilox }

func (s Philox) Check() error {
	if s.Position > 4 {
		return fmt.Errorf("buffer position %d, want 0 to 4", s.Position)
	}
	return nil
}

func (s Philox) append(dst []byte) []byte {
	for _, words := range [][]uint64{s.Counter[:], s.Key[:], s.Buffer[:]} {
		for _, w := range words {
			dst = binary.LittleEndian.AppendUint64(dst, w)
		}
	}
	return s.Half.append(binary.LittleEndian.AppendUint32(dst, s.Position))
}

// SFC64 is numpy's: a, b, c, counter u64, half. Every state is sound: the counter keeps it from standing still.
type SFC64 struct {
	A, B, C, Counter uint64
	Half             Half
}

func (SFC64) Layout() Layout { return LayoutSFC64 }
func (SFC64) Check() error   { return nil }

func (s SFC64) append(dst []byte) []byte {
	for _, w := range []uint64{s.A, s.B, s.C, s.Counter} {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return s.Half.append(dst)
}

// TorchCPU is a torch.Generator of the CPU, in the layout of torch.get_rng_state: seed u64, left i32, seeded i32 (1), next u64, 624
// words u64 (of 32 bits), three f64 of which torch uses the second for a normal sample and leaves the others zero, i32 whether it
// waits, 4 zeros, the float normal sample f32, u8 whether it waits, 3 zeros.
type TorchCPU struct {
	Seed   uint64
	Left   uint32 // draws until the words are made anew, plus one
	Next   uint32 // the word of the next draw
	Words  [Words]uint32
	Normal Sample
	Float  Sample
}

func (TorchCPU) Layout() Layout { return LayoutTorchCPU }

// Check is stricter than torch, which takes any left of 1 to 624 with any next of 0 to 624 and reads beyond its words when the two disagree.
func (s TorchCPU) Check() error {
	if !(s.Left == 1 && s.Next == 0) && (s.Next < 1 || s.Next > Words || s.Left != Words+1-s.Next) {
		return fmt.Errorf("left %d and next %d, want 1 and 0 (just seeded) or a sum of %d", int32(s.Left), s.Next, Words+1)
	}
	if err := checkWords(&s.Words); err != nil {
		return err
	}
	for _, n := range []Sample{s.Normal, s.Float} {
		switch {
		case n.sound():
		case n.Waits:
			return fmt.Errorf("normal samples %s and %s", floatText(s.Normal.Value), floatText(s.Float.Value))
		default:
			return errors.New("a normal sample that it says it does not have")
		}
	}
	if float64(float32(s.Float.Value)) != s.Float.Value {
		return fmt.Errorf("a float normal sample %v that no float32 holds", s.Float.Value)
	}
	return nil
}

func (s TorchCPU) append(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, s.Seed)
	dst = le.AppendUint32(le.AppendUint32(dst, s.Left), 1)
	dst = le.AppendUint64(dst, uint64(s.Next))
	for _, w := range s.Words {
		dst = le.AppendUint64(dst, uint64(w))
	}
	dst = le.AppendUint64(dst, 0)
	dst = le.AppendUint64(dst, math.Float64bits(s.Normal.Value))
	dst = le.AppendUint64(dst, 0)
	dst = le.AppendUint64(dst, uint64(flag(s.Normal.Waits)))
	dst = le.AppendUint32(dst, math.Float32bits(float32(s.Float.Value)))
	return le.AppendUint32(dst, flag(s.Float.Waits))
}

// TorchCUDA is a torch.Generator of a CUDA device, in the layout of torch.cuda.get_rng_state: seed u64, offset u64. The offset counts
// the 32-bit draws of each thread, four at a time.
type TorchCUDA struct{ Seed, Offset uint64 }

func (TorchCUDA) Layout() Layout { return LayoutTorchCUDA }

func (s TorchCUDA) Check() error {
	if s.Offset%4 != 0 {
		return fmt.Errorf("offset %d, want a multiple of 4", s.Offset)
	}
	return nil
}

func (s TorchCUDA) append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, s.Seed), s.Offset)
}

// decoder reads fields of a payload of known size; the first error stays.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *decoder) u32() uint32 {
	x := binary.LittleEndian.Uint32(d.b)
	d.b = d.b[4:]
	return x
}

func (d *decoder) u64() uint64 {
	x := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return x
}

func (d *decoder) u128() Uint128 { return Uint128{d.u64(), d.u64()} }

func (d *decoder) flag(what string) bool {
	x := d.u32()
	if x > 1 {
		d.fail("%s %d, want 0 or 1", what, x)
	}
	return x == 1
}

func (d *decoder) half() Half    { return Half{d.flag("has_uint32"), d.u32()} }
func (d *decoder) gauss() Sample { return Sample{d.flag("has_gauss"), math.Float64frombits(d.u64())} }

func (d *decoder) twister() (s MT19937) {
	for i := range s.Words {
		s.Words[i] = d.u32()
	}
	s.Position = d.u32()
	return s
}

func (d *decoder) philox() (s Philox) {
	for _, words := range [][]uint64{s.Counter[:], s.Key[:], s.Buffer[:]} {
		for i := range words {
			words[i] = d.u64()
		}
	}
	s.Position, s.Half = d.u32(), d.half()
	return s
}

func (d *decoder) torchCPU() (s TorchCPU) {
	s.Seed, s.Left = d.u64(), d.u32()
	if seeded := int32(d.u32()); seeded != 1 {
		d.fail("seeded %d, want 1", seeded)
	}
	next := d.u64()
	if next > Words {
		d.fail("left %d and next %d, want 1 and 0 (just seeded) or a sum of %d", int32(s.Left), next, Words+1)
	}
	s.Next = uint32(next)
	for i := range s.Words {
		w := d.u64()
		if w > math.MaxUint32 {
			d.fail("a word above 32 bits")
		}
		s.Words[i] = uint32(w)
	}
	x, y, rho := d.u64(), d.u64(), d.u64()
	has, pad := d.u32(), d.u32()
	float, mark := d.u32(), d.u32()
	hasFloat, pad3 := mark&0xff, mark>>8
	if x|rho != 0 || pad|pad3 != 0 {
		d.fail("something in fields that torch leaves zero")
	}
	if has > 1 || hasFloat > 1 {
		d.fail("valid marks %d and %d, want 0 or 1", int32(has), hasFloat)
	}
	s.Normal = Sample{has == 1, math.Float64frombits(y)}
	s.Float = Sample{hasFloat == 1, float64(math.Float32frombits(float))}
	return s
}
