package safetensors

import (
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
)

// Layout says where a part's regions lie in its shard: the same bytes in the same order, without the alignment gaps.
type Layout struct {
	Regions []replica.Region // of the part, by offset
	Tensors []Tensor         // one a region
}

// NewLayout lays out the regions that belong to the part of m, out of all regions of its rank.
func NewLayout(m *replica.Manifest, all []replica.Region) (Layout, error) {
	if got := Hash((replica.Geometry{Regions: all}).DigestInput(m.Part.Kind)); got != m.Geometry {
		return Layout{}, fmt.Errorf("%v: the %d regions given hash to %v, its manifest says geometry %v: pass all regions of the rank, in order", m.Part, len(all), got, m.Geometry)
	}
	var l Layout
	for _, r := range all {
		if err := r.Check(); err != nil {
			return Layout{}, err
		}
		if Belongs(r, m.Part.Kind) {
			l.Regions = append(l.Regions, r)
		}
	}
	slices.SortStableFunc(l.Regions, func(a, b replica.Region) int {
		if a.Offset != b.Offset {
			return cmpUint(a.Offset, b.Offset)
		}
		return int(min(a.Bytes, 1)) - int(min(b.Bytes, 1)) // an empty one shares its successor's place
	})
	var at, packed uint64
	for _, r := range l.Regions {
		if r.Offset < at || r.Bytes > m.Bytes || r.Offset > m.Bytes-r.Bytes {
			return Layout{}, fmt.Errorf("%v: region %q at %d of %d bytes overlaps another or lies outside the part's %d bytes", m.Part, r.Name, r.Offset, r.Bytes, m.Bytes)
		}
		at = r.Offset + r.Bytes
		l.Tensors = append(l.Tensors, Tensor{Name: r.Name, DType: r.DType, Shape: r.Shape, Begin: packed, End: packed + r.Bytes})
		packed += r.Bytes
	}
	return l, nil
}

// Belongs tells whether a region is in a kind of part.
func Belongs(r replica.Region, k replica.PartKind) bool {
	switch k {
	case replica.PrivatePart:
		return r.Kind == replica.Private
	case replica.FrozenPart:
		return r.Class == replica.Frozen
	case replica.ReplicatedPart:
	}
	return r.Kind == replica.Replicated && r.Class != replica.Frozen
}

// Size is how many bytes of data the shard has.
func (l Layout) Size() uint64 {
	if len(l.Tensors) == 0 {
		return 0
	}
	return l.Tensors[len(l.Tensors)-1].End
}

// Spans calls use for each piece of the part's bytes [off, off+n) in order: from and to count from off; at is where the
// piece lies in the shard's data, or gap is true: alignment, zeros that the shard leaves out.
func (l Layout) Spans(off, n uint64, use func(from, to, at uint64, gap bool) error) error {
	pos, end := off, off+n
	i, _ := slices.BinarySearchFunc(l.Regions, off, func(r replica.Region, off uint64) int {
		if r.Offset+r.Bytes <= off {
			return -1
		}
		return 1
	})
	for pos < end {
		for i < len(l.Regions) && l.Regions[i].Bytes == 0 {
			i++
		}
		if i == len(l.Regions) {
			return use(pos-off, n, 0, true)
		}
		r, t := l.Regions[i], l.Tensors[i]
		if pos < r.Offset {
			stop := min(r.Offset, end)
			if err := use(pos-off, stop-off, 0, true); err != nil {
				return err
			}
			pos = stop
			continue
		}
		stop := min(r.Offset+r.Bytes, end)
		if err := use(pos-off, stop-off, t.Begin+pos-r.Offset, false); err != nil {
			return err
		}
		pos = stop
		i++
	}
	return nil
}

// Matches tells whether a parsed header has these tensors and no others.
func Matches(tensors []Tensor, h *Header) error {
	if len(h.Tensors) != len(tensors) {
		return fmt.Errorf("%d tensors, the manifest has %d", len(h.Tensors), len(tensors))
	}
	byName := make(map[string]Tensor, len(h.Tensors))
	for _, t := range h.Tensors {
		byName[t.Name] = t
	}
	for _, want := range tensors {
		if t, ok := byName[want.Name]; !ok || t.DType != want.DType || !slices.Equal(t.Shape, want.Shape) || t.Begin != want.Begin || t.End != want.End {
			return fmt.Errorf("tensor %q is %v, the manifest says %v", want.Name, t, want)
		}
	}
	return nil
}

// Hash is the digest of chunks, geometries and roots.
func Hash(b []byte) replica.Digest { return xxh3.Hash128(b).Bytes() }
