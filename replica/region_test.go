package replica

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
)

func region(name string, kind Kind, class Class, n uint64) Region {
	return Region{Name: name, DType: F32, Kind: kind, Class: class, Shape: []uint64{n}, Bytes: 4 * n}
}

func inWindow(r Region) Region {
	r.Flags = InWindow
	return r
}

func TestGeometry(t *testing.T) {
	in := []Region{
		region("volatile", Replicated, Volatile, 3),
		region("weights", Replicated, Window, 100),
		region("rng", Private, Volatile, 5),
		region("base", Replicated, Frozen, 1),
		region("adam", Replicated, Window, 1),
		region("cursor", Private, Window, 16),
		region("empty", Replicated, Window, 0),
		region("base2", Replicated, Frozen, 17),
	}
	g, err := NewGeometry(in)
	if err != nil {
		t.Fatal(err)
	}
	offsets := map[string]uint64{}
	for _, r := range g.Regions {
		offsets[r.Name] = r.Offset
	}
	// Window regions first, then volatile ones; private and frozen ones in areas of their own; each in order, 64-aligned.
	want := map[string]uint64{"weights": 0, "adam": 448, "empty": 512, "volatile": 512, "rng": 0, "cursor": 64, "base": 0, "base2": 64}
	if !reflect.DeepEqual(offsets, want) {
		t.Errorf("offsets %v, want %v", offsets, want)
	}
	if g.ReplicatedBytes != 576 || g.VolatileOffset != 512 || g.VolatileBytes != 64 || g.PrivateBytes != 128 || g.FrozenBytes != 192 {
		t.Errorf("sizes %+v", g)
	}
	if in[1].Offset != 0 || in[4].Offset != 0 {
		t.Error("the caller's regions were written to")
	}
}

// A region called __metadata__ committed durable generations that nobody could read: a safetensors header has that key itself.
func TestGeometryRefuses(t *testing.T) {
	ok := region("ok", Replicated, Window, 1)
	bad := func(change func(*Region)) []Region {
		r := region("bad", Replicated, Window, 1)
		change(&r)
		return []Region{ok, r}
	}
	huge := func(r *Region) { r.DType, r.Shape, r.Bytes = U8, []uint64{1 << 60}, 1<<60 }
	for name, regions := range map[string][]Region{
		"none":                nil,
		"same name":           {ok, ok},
		"no name":             bad(func(r *Region) { r.Name = "" }),
		"long name":           bad(func(r *Region) { r.Name = strings.Repeat("x", MaxRegionName+1) }),
		"control character":   bad(func(r *Region) { r.Name = "a\nb" }),
		"safetensors' key":    bad(func(r *Region) { r.Name = "__metadata__" }),
		"not UTF-8":           bad(func(r *Region) { r.Name = "a\xff" }),
		"half of a character": bad(func(r *Region) { r.Name = "é"[:1] }),
		"surrogate":           bad(func(r *Region) { r.Name = "\xed\xa0\x80" }),
		"unknown dtype":       bad(func(r *Region) { r.DType = 99 }),
		"dtype 0":             bad(func(r *Region) { r.DType = 0 }),
		"unknown kind":        bad(func(r *Region) { r.Kind = 2 }),
		"unknown class":       bad(func(r *Region) { r.Class = 3 }),
		"unknown flag":        bad(func(r *Region) { r.Flags = 4 }),
		"private and frozen":  bad(func(r *Region) { r.Kind, r.Class = Private, Frozen }),
		"too many dimensions": bad(func(r *Region) { r.Shape = make([]uint64, MaxDims+1) }),
		"shape and bytes":     bad(func(r *Region) { r.Bytes++ }),
		"shape overflows":     bad(func(r *Region) { r.Shape = []uint64{1 << 40, 1 << 40} }),
		"sizes overflow":      append(bad(huge), Region{Name: "more", DType: U8, Shape: []uint64{1 << 60}, Bytes: 1 << 60}),
	} {
		if g, err := NewGeometry(regions); err == nil {
			t.Errorf("%s: accepted as %+v", name, g)
		}
	}
}

// TestPrivateInTheWindowSaysSo: a private region is copied when the step begins, so that one which changes inside the window must say so.
func TestPrivateInTheWindowSaysSo(t *testing.T) {
	for _, r := range []Region{region("rng", Private, Volatile, 1), inWindow(region("rng", Private, Volatile, 1)), inWindow(region("rng", Private, Window, 1))} {
		if err := r.Registrable(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, c := range []struct {
		r    Region
		says []string
	}{
		{region("rng", Private, Window, 1), []string{`"rng"`, "copied when the step begins", "InWindow", "volatile"}},
		{inWindow(region("w", Replicated, Frozen, 1)), []string{`"w"`, "for private regions"}},
		{region("", Private, Volatile, 1), []string{"want a name"}},
	} {
		err := c.r.Registrable()
		if err == nil {
			t.Errorf("%+v is taken", c.r)
			continue
		}
		for _, says := range c.says {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q does not say %q", err, says)
			}
		}
	}
	if err := region("rng", Private, Window, 1).Check(); err != nil {
		t.Errorf("what an earlier release wrote is not read: %v", err)
	}
}

func TestDigestInput(t *testing.T) {
	g, err := NewGeometry([]Region{region("w", Replicated, Window, 1), region("p", Private, Window, 1), region("f", Replicated, Frozen, 1)})
	if err != nil {
		t.Fatal(err)
	}
	for kind, names := range map[PartKind][]string{ReplicatedPart: {"w", "f"}, PrivatePart: {"p"}, FrozenPart: {"f"}} {
		in := g.DigestInput(kind)
		if len(in) != len(names)*RegionRecordBytes {
			t.Errorf("kind %d: %d bytes, want the records of %v", kind, len(in), names)
			continue
		}
		for i, n := range names {
			if r, err := ParseRegion(in[i*RegionRecordBytes : (i+1)*RegionRecordBytes]); err != nil || r.Name != n {
				t.Errorf("kind %d, record %d: %q, %v, want %q", kind, i, r.Name, err, n)
			}
		}
	}
}

// TestRegionRecordGolden fixes the bytes that C shares.
func TestRegionRecordGolden(t *testing.T) {
	b := AppendRegion(nil, Region{Name: "w", DType: F32, Kind: Private, Class: Volatile, Flags: InWindow, Shape: []uint64{2, 3}, Bytes: 24, Offset: 64})
	want := make([]byte, RegionRecordBytes)
	want[0] = 'w'
	want[128], want[129], want[130], want[131], want[132] = 8, 1, 1, 2, 1
	want[136], want[144], want[152], want[208] = 24, 2, 3, 64
	if !bytes.Equal(b, want) {
		t.Errorf("record\n%x\nwant\n%x", b, want)
	}
}

// FuzzParseRegion: whatever parses is consistent and writes back to the same bytes.
func FuzzParseRegion(f *testing.F) {
	f.Add(AppendRegion(nil, region("weights", Replicated, Window, 7)))
	f.Add(AppendRegion(nil, Region{Name: strings.Repeat("n", MaxRegionName), DType: F8E5M2, Kind: Private, Flags: InWindow, Shape: []uint64{1, 2, 3, 4, 1, 1, 1, 1}, Bytes: 24, Offset: math.MaxUint64}))
	f.Add(AppendRegion(nil, Region{Name: "scalar", DType: F64, Bytes: 8, Shape: []uint64{}}))
	f.Add(make([]byte, RegionRecordBytes))
	f.Add([]byte("short"))
	broken := AppendRegion(nil, region("late", Replicated, Window, 7))
	broken[200] = 1 // a dimension beyond the last
	f.Add(broken)
	f.Fuzz(func(t *testing.T, rec []byte) {
		r, err := ParseRegion(rec)
		if err != nil {
			return
		}
		if err := r.Check(); err != nil {
			t.Fatalf("parsed, but: %v", err)
		}
		if again := AppendRegion(nil, r); !bytes.Equal(again, rec) {
			t.Fatalf("%x writes back as %x", rec, again)
		}
	})
}

// TestParseRegionEveryByte flips every byte of a record: it is refused, or reads as another region, never as the same.
func TestParseRegionEveryByte(t *testing.T) {
	orig := region("weights", Replicated, Window, 7)
	rec := AppendRegion(nil, orig)
	for i := range rec {
		b := bytes.Clone(rec)
		b[i] ^= 0x5a
		if r, err := ParseRegion(b); err == nil && reflect.DeepEqual(r, orig) {
			t.Errorf("byte %d makes no difference", i)
		}
	}
}

func TestDTypes(t *testing.T) {
	sizes := map[string]uint64{"U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8, "BOOL": 1, "U16": 2, "U32": 4, "U64": 8, "F8_E4M3": 1, "F8_E5M2": 1,
		"C64": 8, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "F4_X2": 1}
	for name, size := range sizes {
		d, err := ParseDType(name)
		if err != nil || d.Size() != size || d.String() != name {
			t.Errorf("%s: %v, %d bytes, %v", name, d, d.Size(), err)
		}
	}
	if d, err := ParseDType(""); err == nil {
		t.Errorf("an empty dtype is %v", d)
	}
	if U8 != 1 || F8E5M2 != 15 || F4X2 != 20 {
		t.Error("dtype numbers are the contract with libreplicad")
	}
}
