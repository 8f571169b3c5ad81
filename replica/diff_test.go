package replica

import (
	"strings"
	"testing"
)

func TestDiffGeometry(t *testing.T) {
	region := func(name string, d DType, shape ...uint64) Region {
		n := d.Size()
		for _, s := range shape {
			n *= s
		}
		return Region{Name: name, DType: d, Shape: shape, Bytes: n}
	}
	geometry := func(regions ...Region) Geometry {
		g, err := NewGeometry(regions)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	a, b := region("a", F32, 2, 3), region("b", F32, 4)
	own := region("rng", U8, 9)
	own.Kind = Private
	for _, c := range []struct {
		what      string
		want, got Geometry
		of        PartKind
		text      string
	}{
		{"equal", geometry(a, b), geometry(a, b), ReplicatedPart, ""},
		{"another private part", geometry(a, own), geometry(a), ReplicatedPart, ""},
		{"private missing", geometry(a, own), geometry(a), PrivatePart, `"rng" is missing`},
		{"shape", geometry(a, b), geometry(region("a", F32, 3, 2), b), ReplicatedPart, `"a" has shape [3 2], had [2 3]`},
		{"dtype", geometry(a, b), geometry(region("a", F16, 2, 3), b), ReplicatedPart, `"a" is F16, was F32`},
		{"extra and missing", geometry(a, b), geometry(a, region("c", F32, 1)), ReplicatedPart, `"c" is extra; "b" is missing`},
		{"order", geometry(a, b), geometry(b, a), ReplicatedPart, "the same regions come in another order"},
		{"many", geometry(a), geometry(region("1", U8, 1), region("2", U8, 1), region("3", U8, 1), region("4", U8, 1), region("5", U8, 1)), ReplicatedPart, `"1" is extra; "2" is extra; "3" is extra; "4" is extra; and 2 more`},
		{"long names", geometry(a), geometry(a, region(strings.Repeat("l", 120), U8, 1), region(strings.Repeat("m", 120), U8, 1)), ReplicatedPart, `"` + strings.Repeat("l", 120) + `" is extra; and 1 more`},
	} {
		if got := DiffGeometry(c.want, c.got, c.of); got != c.text {
			t.Errorf("%s: %q, want %q", c.what, got, c.text)
		}
	}
}
