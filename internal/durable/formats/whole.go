package formats

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
)

// Piece is a box of a whole tensor. Its own bytes lie in rows, as the whole's do.
type Piece struct {
	At, Shape []uint64
	ReadAt    func(p []byte, off uint64) error // within the piece
}

// maxDeep bounds how often a tensor is cut to come to its pieces: a grid takes as many cuts as it has dimensions.
const maxDeep = 64

// Whole reads a tensor through its pieces, which must fill it: no holes, no overlaps, but the very same box may be there several times.
// size is an element's.
func Whole(size uint64, shape []uint64, pieces []Piece) (func(p []byte, off uint64) error, error) {
	seen := make(map[string]bool, len(pieces))
	var list []*placed
	for _, p := range pieces {
		if err := within(p, shape); err != nil {
			return nil, err
		}
		box := fmt.Sprint(p.At, p.Shape)
		if seen[box] || slices.Contains(p.Shape, 0) {
			continue
		}
		seen[box] = true
		list = append(list, place(p, size, shape))
	}
	if slices.Contains(shape, 0) {
		return func([]byte, uint64) error { return nil }, nil
	}
	if err := tiles(make([]uint64, len(shape)), slices.Clone(shape), slices.Clone(list), 0); err != nil {
		return nil, err
	}
	slices.SortStableFunc(list, func(a, b *placed) int { return cmp.Compare(a.first, b.first) })
	return func(p []byte, off uint64) error {
		for _, x := range list {
			if x.first >= off+uint64(len(p)) {
				break
			}
			if err := x.read(p, off); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

func within(p Piece, shape []uint64) error {
	if len(p.At) != len(shape) || len(p.Shape) != len(shape) {
		return fmt.Errorf("a piece at %v of shape %v, in a tensor of shape %v", p.At, p.Shape, shape)
	}
	for i := range shape {
		if p.At[i] > shape[i] || p.Shape[i] > shape[i]-p.At[i] {
			return fmt.Errorf("a piece at %v of shape %v lies outside of a tensor of shape %v", p.At, p.Shape, shape)
		}
	}
	return nil
}

// tiles tells whether pieces fill a box. It is cut where no piece goes across, until one piece is left: every layout of a mesh is a grid, and
// any grid can be cut so.
func tiles(lo, hi []uint64, pieces []*placed, deep int) error {
	if len(pieces) == 0 || deep > maxDeep {
		return fmt.Errorf("nothing fills the tensor from %v to %v", lo, hi)
	}
	if len(pieces) == 1 {
		p := pieces[0]
		for i := range lo {
			if p.At[i] != lo[i] || p.At[i]+p.Shape[i] != hi[i] {
				return fmt.Errorf("a piece at %v of shape %v does not fill the tensor from %v to %v: pieces are missing, or overlap", p.At, p.Shape, lo, hi)
			}
		}
		return nil
	}
	for d := range lo {
		slices.SortStableFunc(pieces, func(a, b *placed) int { return cmp.Compare(a.At[d], b.At[d]) })
		cuts := cut(pieces, d)
		if len(cuts) == 1 {
			continue
		}
		from := lo[d]
		for i, c := range cuts {
			to := hi[d]
			if i+1 < len(cuts) {
				to = cuts[i+1][0].At[d]
			}
			l, h := slices.Clone(lo), slices.Clone(hi)
			l[d], h[d] = from, to
			if err := tiles(l, h, c, deep+1); err != nil {
				return err
			}
			from = to
		}
		return nil
	}
	return fmt.Errorf("pieces overlap between %v and %v", lo, hi)
}

// cut parts pieces, in order of where they begin, where none goes across.
func cut(pieces []*placed, d int) (cuts [][]*placed) {
	begin, end := 0, uint64(0)
	for i, p := range pieces {
		if i > begin && p.At[d] >= end {
			cuts = append(cuts, pieces[begin:i])
			begin = i
		}
		end = max(end, p.At[d]+p.Shape[d])
	}
	return append(cuts, pieces[begin:])
}

// placed is a piece as rows of the whole's bytes: runs of one length, in order.
type placed struct {
	Piece
	size    uint64   // of an element
	outer   int      // how many dimensions count the runs
	strides []uint64 // of the whole, in bytes
	run     uint64   // bytes of a run
	runs    uint64
	first   uint64 // where the first run begins in the whole
}

func place(p Piece, size uint64, shape []uint64) *placed {
	x := &placed{Piece: p, size: size, strides: make([]uint64, len(shape)), run: size, runs: 1}
	n := size
	for i := len(shape) - 1; i >= 0; i-- {
		x.strides[i] = n
		n *= shape[i]
		if p.Shape[i] != shape[i] {
			x.outer = max(x.outer, i)
		}
	}
	for i, d := range p.Shape {
		if i < x.outer {
			x.runs *= d
		} else {
			x.run *= d
		}
		x.first += p.At[i] * x.strides[i]
	}
	return x
}

// begins is where run r begins in the whole.
func (x *placed) begins(r uint64) uint64 {
	at := x.first
	for i := x.outer - 1; i >= 0; i-- {
		at += r % x.Shape[i] * x.strides[i]
		r /= x.Shape[i]
	}
	return at
}

// read fills in what the piece has of the whole's bytes from off on.
func (x *placed) read(p []byte, off uint64) error {
	end := off + uint64(len(p))
	first := sort.Search(int(x.runs), func(r int) bool { return x.begins(uint64(r))+x.run > off })
	for r := uint64(first); r < x.runs; r++ {
		at := x.begins(r)
		if at >= end {
			return nil
		}
		from, to := max(at, off), min(at+x.run, end)
		if err := x.ReadAt(p[from-off:to-off], r*x.run+from-at); err != nil {
			return err
		}
	}
	return nil
}
