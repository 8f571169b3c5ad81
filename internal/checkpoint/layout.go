package checkpoint

import (
	"fmt"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/replicad/replicad/replica"
)

// layout says where a part's regions lie in its shard: the same bytes in the same order, without the alignment gaps.
type layout struct {
	regions []replica.Region // of the part, by offset
	tensors []tensor         // one a region
}

// newLayout lays out the regions that belong to the part of m, out of all regions of its rank.
func newLayout(m *replica.Manifest, all []replica.Region) (layout, error) {
	if got := hash((replica.Geometry{Regions: all}).DigestInput(m.Part.Kind)); got != m.Geometry {
		return layout{}, fmt.Errorf("%v: the %d regions given hash to %v, its manifest says geometry %v: pass all regions of the rank, in order", m.Part, len(all), got, m.Geometry)
	}
	var l layout
	for _, r := range all {
		if err := r.Check(); err != nil {
			return layout{}, err
		}
		if belongs(r, m.Part.Kind) {
			l.regions = append(l.regions, r)
		}
	}
	slices.SortStableFunc(l.regions, func(a, b replica.Region) int {
		if a.Offset != b.Offset {
			return cmpUint(a.Offset, b.Offset)
		}
		return int(min(a.Bytes, 1)) - int(min(b.Bytes, 1)) // an empty one shares its successor's place
	})
	var at, packed uint64
	for _, r := range l.regions {
		if r.Offset < at || r.Bytes > m.Bytes || r.Offset > m.Bytes-r.Bytes {
			return layout{}, fmt.Errorf("%v: region %q at %d of %d bytes overlaps another or lies outside the part's %d bytes", m.Part, r.Name, r.Offset, r.Bytes, m.Bytes)
		}
		at = r.Offset + r.Bytes
		l.tensors = append(l.tensors, tensor{r.Name, r.DType, r.Shape, packed, packed + r.Bytes})
		packed += r.Bytes
	}
	return l, nil
}

func belongs(r replica.Region, k replica.PartKind) bool {
	switch k {
	case replica.PrivatePart:
		return r.Kind == replica.Private
	case replica.FrozenPart:
		return r.Class == replica.Frozen
	case replica.ReplicatedPart:
	}
	return r.Kind == replica.Replicated && r.Class != replica.Frozen
}

// size is how many bytes of data the shard has.
func (l layout) size() uint64 {
	if len(l.tensors) == 0 {
		return 0
	}
	return l.tensors[len(l.tensors)-1].end
}

// spans calls use for each piece of the part's bytes [off, off+n) in order: from and to count from off; at is where the
// piece lies in the shard's data, or gap is true: alignment, zeros that the shard leaves out.
func (l layout) spans(off, n uint64, use func(from, to, at uint64, gap bool) error) error {
	pos, end := off, off+n
	i, _ := slices.BinarySearchFunc(l.regions, off, func(r replica.Region, off uint64) int {
		if r.Offset+r.Bytes <= off {
			return -1
		}
		return 1
	})
	for pos < end {
		for i < len(l.regions) && l.regions[i].Bytes == 0 {
			i++
		}
		if i == len(l.regions) {
			return use(pos-off, n, 0, true)
		}
		r, t := l.regions[i], l.tensors[i]
		if pos < r.Offset {
			stop := min(r.Offset, end)
			if err := use(pos-off, stop-off, 0, true); err != nil {
				return err
			}
			pos = stop
			continue
		}
		stop := min(r.Offset+r.Bytes, end)
		if err := use(pos-off, stop-off, t.begin+pos-r.Offset, false); err != nil {
			return err
		}
		pos = stop
		i++
	}
	return nil
}

// matches tells whether a parsed header is the one that this layout makes.
func (l layout) matches(h *header) error {
	if len(h.tensors) != len(l.tensors) {
		return fmt.Errorf("%d tensors, the manifest has %d", len(h.tensors), len(l.tensors))
	}
	byName := make(map[string]tensor, len(h.tensors))
	for _, t := range h.tensors {
		byName[t.name] = t
	}
	for _, want := range l.tensors {
		if t, ok := byName[want.name]; !ok || t.dtype != want.dtype || !slices.Equal(t.shape, want.shape) || t.begin != want.begin || t.end != want.end {
			return fmt.Errorf("tensor %q is %v, the manifest says %v", want.name, t, want)
		}
	}
	return nil
}

func hash(b []byte) replica.Digest { return xxh3.Hash128(b).Bytes() }
