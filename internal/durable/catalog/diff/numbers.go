package diff

import (
	"encoding/binary"
	"math"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// compare counts the elements that differ.
func (d *Difference) compare(t replica.DType, x, y []byte) {
	size := int(t.Size())
	for i := 0; i+size <= len(x); i += size {
		a, b := x[i:i+size], y[i:i+size]
		if string(a) == string(b) {
			continue
		}
		d.Elements++
		if by := distance(t, a, b); by > float64(d.Most) || math.IsNaN(by) && d.Most == 0 {
			d.Most = format.Metric(by)
		}
	}
}

// distance is how far two elements lie from each other.
func distance(t replica.DType, a, b []byte) float64 {
	switch t { //nolint:exhaustive // all others are one number
	case replica.C64:
		return math.Hypot(number(replica.F32, a)-number(replica.F32, b), number(replica.F32, a[4:])-number(replica.F32, b[4:]))
	case replica.F4X2:
		low, high := four(a[0])-four(b[0]), four(a[0]>>4)-four(b[0]>>4)
		return max(math.Abs(low), math.Abs(high))
	}
	return math.Abs(number(t, a) - number(t, b))
}

// four reads a number of 4 bits (e2m1).
func four(b byte) float64 {
	return math.Copysign([]float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[b&7], 1-2*float64(b>>3&1))
}

// number is what an element says.
func number(t replica.DType, b []byte) float64 {
	switch t {
	case replica.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	case replica.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case replica.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	case replica.F16:
		return small(uint(binary.LittleEndian.Uint16(b)), 5, 10, true)
	case replica.F8E5M2:
		return small(uint(b[0]), 5, 2, true)
	case replica.F8E4M3:
		return small(uint(b[0]), 4, 3, false)
	case replica.I8:
		return float64(int8(b[0]))
	case replica.I16:
		return float64(int16(binary.LittleEndian.Uint16(b)))
	case replica.I32:
		return float64(int32(binary.LittleEndian.Uint32(b)))
	case replica.I64:
		return float64(int64(binary.LittleEndian.Uint64(b)))
	case replica.U16:
		return float64(binary.LittleEndian.Uint16(b))
	case replica.U32:
		return float64(binary.LittleEndian.Uint32(b))
	case replica.U64:
		return float64(binary.LittleEndian.Uint64(b))
	case replica.F8E8M0:
		if b[0] == 0xff {
			return math.NaN()
		}
		return math.Ldexp(1, int(b[0])-127)
	case replica.F8E4M3FNUZ:
		return finite(b[0], 4, 3)
	case replica.F8E5M2FNUZ:
		return finite(b[0], 5, 2)
	case replica.U8, replica.Bool, replica.C64, replica.F4X2:
	}
	return float64(b[0])
}

// finite reads a number of 8 bits without infinities and without a negative zero, which is its NaN.
func finite(v byte, exponent, fraction int) float64 {
	if v == 0x80 {
		return math.NaN()
	}
	sign, e, f := 1-2*float64(v>>7), int(v>>fraction)&(1<<exponent-1), float64(v&(1<<fraction-1))
	bias := 1 << (exponent - 1)
	if e == 0 {
		return sign * math.Ldexp(f, 1-bias-fraction)
	}
	return sign * math.Ldexp(1+f/float64(int(1)<<fraction), e-bias)
}

// small reads a floating-point number of few bits. Those without infinities have numbers where others have them, and one NaN.
func small(v uint, exponent, fraction int, infinities bool) float64 {
	sign := 1.0
	if v>>(exponent+fraction) != 0 {
		sign = -1
	}
	e, f := int(v>>fraction)&(1<<exponent-1), float64(v&(1<<fraction-1))
	top, bias := 1<<exponent-1, 1<<(exponent-1)-1
	switch {
	case infinities && e == top && f == 0:
		return math.Inf(int(sign))
	case infinities && e == top, !infinities && e == top && int(f) == 1<<fraction-1:
		return math.NaN()
	case e == 0:
		return sign * math.Ldexp(f, 1-bias-fraction)
	}
	return sign * math.Ldexp(1+f/float64(int(1)<<fraction), e-bias)
}
