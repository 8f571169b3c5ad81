package catalog

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// Difference is one line of what two generations differ in.
type Difference struct {
	Tensor string `json:"tensor"`
	Index  uint32 `json:"index"` // the group's, or of a private tensor the rank's
	What   string `json:"what"`  // missing, extra, shape, type, values, layout
	A      string `json:"a,omitempty"`
	B      string `json:"b,omitempty"`
	// Of values: how many elements differ, of how many, and by how much at most where they are numbers.
	Elements uint64        `json:"elements,omitempty"`
	Of       uint64        `json:"of,omitempty"`
	Most     format.Metric `json:"most,omitempty"`
}

func (d Difference) String() string {
	switch d.What {
	case "missing", "extra":
		return fmt.Sprintf("%s: %s: %s%s", d.Tensor, d.What, d.A, d.B)
	case "values":
		return fmt.Sprintf("%s: %d of %d elements differ, by at most %.6g", d.Tensor, d.Elements, d.Of, float64(d.Most))
	}
	return fmt.Sprintf("%s: another %s: %s, %s", d.Tensor, d.What, d.A, d.B)
}

// tensorAt is one piece of a tensor, where it is read.
type tensorAt struct {
	part   replica.Part
	region replica.Region
}

// pieces lists what a generation has, by name. Private tensors have the rank's name before their own.
func pieces(ctx context.Context, c *Catalog, f find.Found) (map[string]map[uint32]tensorAt, error) {
	out := make(map[string]map[uint32]tensorAt)
	for _, at := range f.Index.Parts {
		sh, err := c.OpenShard(ctx, f, at.Part)
		if err != nil {
			return nil, err
		}
		for _, r := range sh.Regions() {
			if !safetensors.Belongs(r, at.Part.Kind) {
				continue
			}
			name := r.Name
			if at.Part.Kind == replica.PrivatePart {
				name = fmt.Sprintf("private-%d/%s", at.Part.Index, name)
			}
			if out[name] == nil {
				out[name] = make(map[uint32]tensorAt)
			}
			out[name][at.Part.Index] = tensorAt{at.Part, r}
		}
		sh.Close()
	}
	return out, nil
}

// Diff compares two generations, tensor by tensor and group by group, each byte of both checked as it is read.
func Diff(ctx context.Context, catA *Catalog, a find.Found, catB *Catalog, b find.Found) (list []Difference, err error) {
	if err := cmp.Or(a.Readable(), b.Readable()); err != nil {
		return nil, err
	}
	inA, err := pieces(ctx, catA, a)
	if err != nil {
		return nil, err
	}
	inB, err := pieces(ctx, catB, b)
	if err != nil {
		return nil, err
	}
	names := maps.Clone(inA)
	maps.Copy(names, inB)
	same := make(map[replica.Part][]tensorAt)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		indexes := maps.Clone(inA[name])
		if indexes == nil {
			indexes = make(map[uint32]tensorAt)
		}
		maps.Copy(indexes, inB[name])
		for _, i := range slices.Sorted(maps.Keys(indexes)) {
			p, inFirst := inA[name][i]
			q, inSecond := inB[name][i]
			d := Difference{Tensor: name, Index: i, A: shapeText(p.region), B: shapeText(q.region)}
			switch {
			case !inSecond:
				d.What, d.B = "missing", ""
			case !inFirst:
				d.What, d.A = "extra", ""
			case p.region.DType != q.region.DType:
				d.What = "type"
			case !slices.Equal(p.region.Shape, q.region.Shape):
				d.What = "shape"
			case p.part != q.part:
				d.What, d.A, d.B = "class", p.part.String(), q.part.String()
			default:
				same[p.part] = append(same[p.part], p, q)
				continue
			}
			list = append(list, d)
		}
	}
	for _, at := range a.Index.Parts {
		more, err := diffPart(ctx, catA, a, catB, b, at.Part, same[at.Part])
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}

func shapeText(r replica.Region) string { return fmt.Sprintf("%v%v", r.DType, r.Shape) }

// diffPart compares the tensors that both have in a part, given as pairs. Parts of one root are equal.
func diffPart(ctx context.Context, catA *Catalog, a find.Found, catB *Catalog, b find.Found, part replica.Part,
	pairs []tensorAt) (list []Difference,
	err error) {
	p, _ := a.Index.Part(part)
	q, ok := b.Index.Part(part)
	if !ok || p.Root == q.Root || len(pairs) == 0 {
		return nil, nil
	}
	shA, err := catA.OpenShard(ctx, a, part)
	if err != nil {
		return nil, err
	}
	defer shA.Close()
	shB, err := catB.OpenShard(ctx, b, part)
	if err != nil {
		return nil, err
	}
	defer shB.Close()
	readA, readB := newWindow(shA), newWindow(shB)
	for i := 0; i < len(pairs); i += 2 {
		r, s := pairs[i].region, pairs[i+1].region
		d := Difference{Tensor: r.Name, Index: part.Index, What: "values"}
		if part.Kind == replica.PrivatePart {
			d.Tensor = fmt.Sprintf("private-%d/%s", part.Index, r.Name)
		}
		size := r.DType.Size()
		d.Of = r.Bytes / size
		for at := uint64(0); at < r.Bytes; {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			n := min(r.Bytes-at, compared)
			x, err := readA.read(r.Offset+at, n)
			if err != nil {
				return nil, err
			}
			y, err := readB.read(s.Offset+at, n)
			if err != nil {
				return nil, err
			}
			d.compare(r.DType, x, y)
			at += n
		}
		if d.Elements > 0 {
			list = append(list, d)
		}
	}
	return list, nil
}

// compared is how many bytes of a tensor are compared at once: a multiple of every element's size.
const compared = 64 << 10

// window reads a part's bytes in order, by chunks.
type window struct {
	sh    ShardReader
	m     replica.Manifest
	chunk int
	buf   []byte
}

func newWindow(sh ShardReader) *window {
	return &window{sh: sh, m: sh.Manifest(), chunk: -1}
}

func (w *window) read(off, n uint64) ([]byte, error) {
	var out []byte
	for n > 0 {
		i := int(off / uint64(w.m.ChunkBytes))
		if i != w.chunk {
			b, err := w.sh.ReadChunk(i, w.buf)
			if err != nil {
				return nil, err
			}
			w.buf, w.chunk = b, i
		}
		from, size := replica.ChunkSpan(i, w.m.Bytes, w.m.ChunkBytes)
		take := min(n, from+size-off)
		out = append(out, w.buf[off-from:off-from+take]...)
		off, n = off+take, n-take
	}
	return out, nil
}

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
