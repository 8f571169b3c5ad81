package convert

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/replica"
)

// box is a piece of a tensor that is read, and where it lies in the whole; no place: it is the whole.
type box struct {
	part      replica.Part
	at, shape []uint64
}

// pieces says of which pieces a whole consists. equal: where the program says nothing of a tensor, it is the same in all groups.
func pieces(t format.Tensor, equal bool) (shape []uint64, list []box, err error) {
	sorted := slices.SortedFunc(slices.Values(t.Pieces), func(a, b format.Piece) int { return cmp.Compare(a.Index, b.Index) })
	if len(sorted) == 0 {
		return nil, nil, fmt.Errorf("tensor %q has no pieces", t.Name)
	}
	first := sorted[0]
	one := []box{{part: partOf(t, first)}}
	whole := len(sorted) == 1 || equal
	if len(t.Placements) > 0 {
		whole = !slices.ContainsFunc(t.Placements, func(p string) bool { return p != "replicate" })
	}
	switch {
	case t.Class == "private":
		return first.Shape, one, nil
	case slices.Contains(t.Placements, "partial"):
		return nil, nil, fmt.Errorf("tensor %q is a partial sum on each of its ranks: no piece is the tensor; leave it out with --only", t.Name)
	case whole && slices.ContainsFunc(sorted, func(p format.Piece) bool { return !slices.Equal(p.Shape, first.Shape) }):
		return nil, nil, fmt.Errorf("tensor %q has other shapes in other groups, and the program does not say how these belong together; leave it out with --only", t.Name)
	case whole && (len(t.Placements) == 0 || first.At == nil || slices.Equal(first.Shape, t.Shape)):
		return first.Shape, one, nil
	case len(t.Placements) == 0:
		return nil, nil, fmt.Errorf("%d groups have a piece of tensor %q, and the program does not say how these belong together (%s); leave it out with --only", len(sorted), t.Name, format.LayoutRegion)
	}
	for _, p := range sorted {
		if len(p.At) != len(t.Shape) || len(p.Shape) != len(t.Shape) {
			return nil, nil, fmt.Errorf("tensor %q lies as %v over a mesh of %v, and nothing says where a piece begins: load it with the program's own layout; leave it out with --only", t.Name, t.Placements, t.Mesh)
		}
		b := box{part: partOf(t, p), at: p.At, shape: slices.Clone(p.Shape)}
		if slices.Contains(t.Placements, "flat shard") { // the last ones are padded
			for i := range b.shape {
				b.shape[i] = min(b.shape[i], max(t.Shape[i], b.at[i])-b.at[i])
				b.at = slices.Clone(b.at)
				b.at[i] = min(b.at[i], t.Shape[i])
			}
		}
		list = append(list, b)
	}
	return t.Shape, list, nil
}

func partOf(t format.Tensor, p format.Piece) replica.Part {
	switch t.Class {
	case "private":
		return replica.Part{Kind: replica.PrivatePart, Index: p.Index}
	case "frozen":
		return replica.Part{Kind: replica.FrozenPart, Index: p.Index}
	}
	return replica.Part{Kind: replica.ReplicatedPart, Index: p.Index}
}

// optimizers is how the Python package's names of optimizers' state begin; own those of what is none of the program's tensors; model those of a
// session's only model.
const (
	optimizers = "optim."
	own        = "replicad."
	model      = "model."
)

// Words of --only that are no patterns.
const (
	onlyModel   = "model"
	onlyTrained = "trained"
)

// chosen tells whether a tensor goes with an export.
func chosen(t format.Tensor, only []string) (bool, error) {
	if strings.HasPrefix(t.Name, own) {
		return false, nil
	}
	return fits(only, t.Class == "frozen", t.Called())
}

// fits tells whether a tensor of such names is one that all words and patterns take. One pattern behind "!" takes those that it does not fit.
func fits(only []string, frozen bool, names ...string) (bool, error) {
	for _, o := range only {
		pattern, not := strings.CutPrefix(o, "!")
		ok := false
		switch o {
		case onlyModel:
			ok = !strings.HasPrefix(names[0], optimizers)
		case onlyTrained:
			ok = !frozen
		default:
			for _, name := range names {
				is, err := path.Match(pattern, name)
				if err != nil {
					return false, fmt.Errorf("--only %.128q: %w: want model, trained, or a pattern of names as 'model.layers.*' or '!model.layers.*'", o, err)
				}
				ok = ok || is
			}
			ok = ok != not
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// Rename puts one beginning of names in another's place.
type Rename struct{ From, To string }

// ParseRename reads FROM=TO.
func ParseRename(s string) (r Rename, err error) {
	from, to, ok := strings.Cut(s, "=")
	if !ok {
		return r, fmt.Errorf("--map %.128q: want FROM=TO, beginnings of names, as =model. or model.=", s)
	}
	return Rename{from, to}, nil
}

// renamed is a name by the first rename that fits.
func renamed(name string, list []Rename) string {
	for _, r := range list {
		if rest, ok := strings.CutPrefix(name, r.From); ok {
			return r.To + rest
		}
	}
	return name
}
