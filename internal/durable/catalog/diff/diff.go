// Package diff compares two generations, of one catalog or of two.
package diff

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// Opener opens parts of generations.
type Opener interface {
	OpenShard(ctx context.Context, f find.Found, part replica.Part) (read.ShardReader, error)
}

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
func pieces(ctx context.Context, c Opener, f find.Found) (map[string]map[uint32]tensorAt, error) {
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

// Generations compares two generations, tensor by tensor and group by group, each byte of both checked as it is read.
func Generations(ctx context.Context, catA Opener, a find.Found, catB Opener, b find.Found) (list []Difference, err error) {
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
func diffPart(ctx context.Context, catA Opener, a find.Found, catB Opener, b find.Found, part replica.Part,
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
	sh    read.ShardReader
	m     replica.Manifest
	chunk int
	buf   []byte
}

func newWindow(sh read.ShardReader) *window {
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
