package convert

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/catalog/read"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// ahead is what all parts together read ahead, in bytes.
const ahead = 256 << 20

// generation reads tensors of a generation, through the catalog: every byte is checked. It belongs to one goroutine at a time.
type generation struct {
	ctx   context.Context // of the export: calls of tensors have none
	cat   *read.Reader
	f     find.Found
	room  int64
	parts map[replica.Part]*part
}

// part reads one part in its chunks.
type part struct {
	sh      read.ShardReader
	m       replica.Manifest
	regions map[string]replica.Region
	chunk   int // that buf has; -1: none
	buf     []byte
}

func newGeneration(ctx context.Context, cat *read.Reader, f find.Found) *generation {
	return &generation{ctx: ctx, cat: cat, f: f, room: ahead / int64(max(len(f.Index.Parts), 1)), parts: make(map[replica.Part]*part)}
}

func (g *generation) close() {
	for _, p := range g.parts {
		p.sh.Close()
	}
}

func (g *generation) part(of replica.Part) (*part, error) {
	if p := g.parts[of]; p != nil {
		return p, nil
	}
	sh, err := g.cat.OpenWithin(g.ctx, g.f, of, g.room)
	if err != nil {
		return nil, err
	}
	p := &part{sh: sh, m: sh.Manifest(), regions: make(map[string]replica.Region), chunk: -1}
	for _, r := range sh.Regions() {
		if safetensors.Belongs(r, of.Kind) {
			p.regions[r.Name] = r
		}
	}
	g.parts[of] = p
	return p, nil
}

// read fills dst with the part's bytes from off on.
func (p *part) read(dst []byte, off uint64) error {
	for len(dst) > 0 {
		i := int(off / uint64(p.m.ChunkBytes))
		from, _ := replica.ChunkSpan(i, p.m.Bytes, p.m.ChunkBytes)
		if i != p.chunk {
			p.chunk = -1
			b, err := p.sh.ReadChunk(i, p.buf) // into memory of its own: a read that failed may write to it later, and another is returned
			if err != nil {
				return err
			}
			p.buf, p.chunk = b, i
		}
		got := copy(dst, p.buf[off-from:])
		dst, off = dst[got:], off+uint64(got)
	}
	return nil
}

// region reads a region of a part.
func (g *generation) region(of replica.Part, name string) func(p []byte, off uint64) error {
	return func(b []byte, off uint64) error {
		p, err := g.part(of)
		if err != nil {
			return err
		}
		r, ok := p.regions[name]
		if !ok || off > r.Bytes || uint64(len(b)) > r.Bytes-off {
			return fmt.Errorf("%v has no %d bytes at %d of %q", of, len(b), off, name)
		}
		return p.read(b, r.Offset+off)
	}
}

// chosenTensors are those that an export takes, in the order of their bytes: what lies together is read once.
func (g *generation) chosenTensors(only []string) (list []format.Tensor, l laid, err error) {
	all, err := g.cat.Tensors(g.ctx, g.f)
	if err != nil {
		return nil, l, err
	}
	for _, t := range all {
		l.layout = l.layout || t.Name == format.LayoutRegion
		if len(t.Placements) > 0 {
			l.over = append(l.over, t.Name)
		}
		ok, err := chosen(t, only)
		if err != nil {
			return nil, l, err
		}
		if ok && len(t.Pieces) > 0 {
			list = append(list, t)
		}
	}
	slices.SortStableFunc(list, func(a, b format.Tensor) int {
		return cmp.Or(cmp.Compare(a.Pieces[0].File, b.Pieces[0].File), cmp.Compare(a.Pieces[0].From, b.Pieces[0].From))
	})
	return list, l, nil
}

// laid is what a program says of how its tensors lie over groups.
type laid struct {
	layout bool     // it says something at all
	over   []string // the tensors that it names
}

// equal tells whether a tensor that the program does not name is the same in all groups: where it names others, and this is no part of one of those. A
// program that names none may have made the groups by itself, of tensors that differ.
func (l laid) equal(name string) bool {
	return len(l.over) > 0 && !slices.ContainsFunc(l.over, func(of string) bool { return strings.HasPrefix(name, of+".") })
}

// orders are the tensors whose bytes lie in another order than their shape's, as the first group says.
func (g *generation) orders(l laid) (map[string][]int, error) {
	b, err := g.layout(l)
	if b == nil || err != nil {
		return nil, err
	}
	return format.ParseOrders(b)
}

// layout is what the first group says of how tensors lie; nil: nothing.
func (g *generation) layout(l laid) ([]byte, error) {
	if !l.layout {
		return nil, nil
	}
	p, err := g.part(replica.FrozenOf(0))
	if err != nil {
		return nil, err
	}
	b := make([]byte, p.regions[format.LayoutRegion].Bytes)
	if err := p.read(b, p.regions[format.LayoutRegion].Offset); err != nil {
		return nil, err
	}
	return b, nil
}

// aliases are the further names of tensors, as the first group says.
func (g *generation) aliases(l laid) (map[string]string, error) {
	b, err := g.layout(l)
	if b == nil || err != nil {
		return nil, err
	}
	return format.ParseAliases(b)
}

// tensor is a whole tensor of the generation.
func (g *generation) tensor(t format.Tensor, l laid, orders map[string][]int) (out formats.Tensor, err error) {
	if order, ok := orders[t.Name]; ok {
		return out, fmt.Errorf("the bytes of tensor %q lie in the order %v of its dimensions (channels_last, a transposed view), and a file has them in the order of its shape: have the program keep it contiguous, or leave it out with --only", t.Name, order)
	}
	shape, boxes, err := pieces(t, l.equal(t.Name))
	if err != nil {
		return out, err
	}
	out = formats.Tensor{Name: t.Name, Shape: shape}
	if out.DType, err = replica.ParseDType(t.DType); err != nil {
		return out, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if err := out.Check(); err != nil {
		return out, err
	}
	if boxes[0].at == nil {
		out.ReadAt = g.region(boxes[0].part, t.Name)
		return out, nil
	}
	list := make([]formats.Piece, len(boxes))
	for i, b := range boxes {
		list[i] = formats.Piece{At: b.at, Shape: b.shape, ReadAt: g.region(b.part, t.Name)}
	}
	if out.ReadAt, err = formats.Whole(out.DType.Size(), shape, list); err != nil {
		err = fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return out, err
}
