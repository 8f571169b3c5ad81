package replica

import (
	"fmt"
	"slices"
	"strings"
)

// A text names so many differences, and no more than fit so many bytes (but one), before it counts the rest: a rank's error has
// room for 511 with the remedy that follows.
const (
	maxDiff      = 4
	maxDiffBytes = 200
)

// DiffGeometry says by name how what a rank registers differs from what its group, or an earlier process of the rank, has:
// of the regions of one kind of part. Empty: not at all.
func DiffGeometry(want, got Geometry, of PartKind) string {
	theirs := make(map[string]Region)
	for _, r := range want.Of(of) {
		theirs[r.Name] = r
	}
	var out []string
	for _, r := range got.Of(of) {
		w, known := theirs[r.Name]
		delete(theirs, r.Name)
		switch {
		case !known:
			out = append(out, fmt.Sprintf("%q is extra", r.Name))
		case w.DType != r.DType:
			out = append(out, fmt.Sprintf("%q is %v, was %v", r.Name, r.DType, w.DType))
		case !slices.Equal(w.Shape, r.Shape):
			out = append(out, fmt.Sprintf("%q has shape %v, had %v", r.Name, r.Shape, w.Shape))
		case w.Class != r.Class || w.Flags != r.Flags:
			out = append(out, fmt.Sprintf("%q changes at another time (class %d, was %d)", r.Name, r.Class, w.Class))
		}
	}
	for _, r := range want.Of(of) {
		if _, missing := theirs[r.Name]; missing {
			out = append(out, fmt.Sprintf("%q is missing", r.Name))
		}
	}
	if len(out) == 0 {
		if names(want.Of(of)) != names(got.Of(of)) {
			return "the same regions come in another order"
		}
		return ""
	}
	named, room := 0, maxDiffBytes
	for named < min(len(out), maxDiff) && (named == 0 || len(out[named]) <= room) {
		room -= len(out[named]) + len("; ")
		named++
	}
	if more := len(out) - named; more > 0 {
		out = append(out[:named], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, "; ")
}

func names(regions []Region) string {
	var b strings.Builder
	for _, r := range regions {
		b.WriteString(r.Name)
		b.WriteByte(0)
	}
	return b.String()
}
