package replica

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// DType is the element type of a region. The numbers are the contract with libreplicad and never change.
type DType uint8

// The element types, with safetensors' names where it has them.
const (
	U8 DType = iota + 1
	I8
	I16
	I32
	I64
	F16
	BF16
	F32
	F64
	Bool
	U16
	U32
	U64
	F8E4M3
	F8E5M2
	// Those from here on come from files; libreplicad has no names for them.
	C64
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	F4X2 // two numbers of 4 bits in a byte, which is what a shape counts, as torch does
)

var dtypes = [...]struct {
	name string
	size uint64
}{U8: {"U8", 1}, I8: {"I8", 1}, I16: {"I16", 2}, I32: {"I32", 4}, I64: {"I64", 8}, F16: {"F16", 2}, BF16: {"BF16", 2}, F32: {"F32", 4},
	F64: {"F64", 8}, Bool: {"BOOL", 1}, U16: {"U16", 2}, U32: {"U32", 4}, U64: {"U64", 8}, F8E4M3: {"F8_E4M3", 1}, F8E5M2: {"F8_E5M2", 1},
	C64: {"C64", 8}, F8E8M0: {"F8_E8M0", 1}, F8E4M3FNUZ: {"F8_E4M3FNUZ", 1}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 1}, F4X2: {"F4_X2", 1}}

// Size is the element's size in bytes; 0 for an unknown type.
func (d DType) Size() uint64 {
	if int(d) < len(dtypes) {
		return dtypes[d].size
	}
	return 0
}

func (d DType) String() string {
	if d.Size() == 0 {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType reads a safetensors type name.
func ParseDType(s string) (DType, error) {
	for i, d := range dtypes {
		if d.size != 0 && d.name == s {
			return DType(i), nil
		}
	}
	return 0, fmt.Errorf("dtype %q is unknown", s)
}

// Kind tells whether a region is equal across its group or a rank's own.
type Kind uint8

// The kinds of regions.
const (
	Replicated Kind = 0 // equal across the replica group after the same step
	Private    Kind = 1 // this rank's own: RNG, sampler cursor, BatchNorm statistics that differ
)

// Class tells when a region may change (protocol section 4).
type Class uint8

// The classes of regions. A private region is copied at step_enter and so does not change inside the window, unless it has InWindow:
// the private part is then copied at step_exit. A private region of class Window must have InWindow.
const (
	Window   Class = 0 // changes only between step_enter and step_exit
	Volatile Class = 1 // may change at any time; a private one without InWindow only outside the window
	Frozen   Class = 2 // never changes; replicated only
)

// RegionFlags modify a region.
type RegionFlags uint32

// InWindow marks a private region that changes inside the optimizer window: the private part is then sealed at step_exit.
const InWindow RegionFlags = 1

// Region is a named piece of a rank's state. Offset is where it lies in its area (see Geometry), in bytes.
type Region struct {
	Name   string      `json:"name" cbor:"1,keyasint"`
	DType  DType       `json:"dtype" cbor:"2,keyasint"`
	Kind   Kind        `json:"kind" cbor:"3,keyasint"`
	Class  Class       `json:"class" cbor:"4,keyasint"`
	Flags  RegionFlags `json:"flags,omitempty" cbor:"5,keyasint,omitempty"`
	Shape  []uint64    `json:"shape" cbor:"6,keyasint"`
	Bytes  uint64      `json:"bytes" cbor:"7,keyasint"`
	Offset uint64      `json:"offset" cbor:"8,keyasint"`
}

// metadataKey is the one key of a safetensors header that names no tensor.
const metadataKey = "__metadata__"

// CheckRegionName tells what is wrong with a region's name. Manifests and safetensors headers hold names as UTF-8 text: a name that
// is none could be captured and never be written.
func CheckRegionName(name string) error {
	if len(name) == 0 || len(name) > MaxRegionName {
		return fmt.Errorf("region %q: want a name of 1 to %d bytes", name, MaxRegionName)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("region %q: its name is not UTF-8, and no manifest could hold it: give it another", name)
	}
	if name == metadataKey {
		return fmt.Errorf("region %q: safetensors files have a key of that name which is no tensor, so nobody could read this region back: give it another", name)
	}
	for i := range len(name) {
		if name[i] < 0x20 || name[i] == 0x7f {
			return fmt.Errorf("region %q: control character at %d", name, i)
		}
	}
	return nil
}

// Check tells what is wrong with a region on its own.
func (r Region) Check() error {
	if err := CheckRegionName(r.Name); err != nil {
		return err
	}
	if r.DType.Size() == 0 {
		return fmt.Errorf("region %q: unknown dtype %d", r.Name, r.DType)
	}
	if r.Kind > Private || r.Class > Frozen || r.Flags&^InWindow != 0 {
		return fmt.Errorf("region %q: unknown kind %d, class %d or flags %#x", r.Name, r.Kind, r.Class, r.Flags)
	}
	if r.Kind == Private && r.Class == Frozen {
		return fmt.Errorf("region %q: a frozen region is captured once for its whole group, so it can't be private: declare it replicated", r.Name)
	}
	if len(r.Shape) > MaxDims {
		return fmt.Errorf("region %q: %d dimensions, at most %d", r.Name, len(r.Shape), MaxDims)
	}
	n := r.DType.Size()
	for _, d := range r.Shape {
		if d != 0 && n > (1<<62)/d {
			return fmt.Errorf("region %q: shape %v overflows", r.Name, r.Shape)
		}
		n *= d
	}
	if n != r.Bytes {
		return fmt.Errorf("region %q: %d bytes, but shape %v of %v has %d", r.Name, r.Bytes, r.Shape, r.DType, n)
	}
	return nil
}

// Registrable tells why a region is not taken from a rank. Check is laxer: arenas and shards that hold such a one stay readable.
func (r Region) Registrable() error {
	if r.Kind == Private && r.Class == Window && r.Flags&InWindow == 0 {
		return fmt.Errorf("region %q: private and of class window, but a private region is copied when the step begins: set InWindow if the window changes it, or declare it volatile if it does not", r.Name)
	}
	if r.Kind != Private && r.Flags&InWindow != 0 {
		return fmt.Errorf("region %q: InWindow is for private regions: replicated ones are copied after the window anyway, leave it out", r.Name)
	}
	return r.Check()
}

// RegionAlign is the alignment of every region in its area, in bytes.
const RegionAlign = 64

// Geometry is the layout of a rank's state, fixed at attach. Regions lie in four areas, each in order of registration and
// 64-byte aligned: the replicated part holds the window regions, then the volatile ones; the private part and the frozen
// area hold theirs. The staging area repeats the volatile tail of the replicated part.
type Geometry struct {
	Regions []Region `json:"regions" cbor:"1,keyasint"` // in order of registration, offsets filled in
	// Sizes in bytes.
	ReplicatedBytes uint64 `json:"replicated_bytes" cbor:"2,keyasint"`
	VolatileOffset  uint64 `json:"volatile_offset" cbor:"3,keyasint"` // of the volatile tail in the replicated part
	VolatileBytes   uint64 `json:"volatile_bytes" cbor:"4,keyasint"`
	PrivateBytes    uint64 `json:"private_bytes" cbor:"5,keyasint"`
	FrozenBytes     uint64 `json:"frozen_bytes" cbor:"6,keyasint"`
}

// NewGeometry lays regions out and checks them: each on its own, names unique within a kind, sizes summed without overflow.
func NewGeometry(regions []Region) (Geometry, error) {
	if len(regions) == 0 || len(regions) > MaxRegions {
		return Geometry{}, fmt.Errorf("%d regions: want 1 to %d", len(regions), MaxRegions)
	}
	g := Geometry{Regions: make([]Region, len(regions))}
	copy(g.Regions, regions)
	seen := make(map[string]bool, len(regions))
	for _, r := range g.Regions {
		if err := r.Check(); err != nil {
			return Geometry{}, err
		}
		if seen[r.Name] {
			return Geometry{}, fmt.Errorf("region %q is registered twice: names must be unique", r.Name)
		}
		seen[r.Name] = true
	}
	place := func(want func(Region) bool, start uint64) (uint64, error) {
		at := start
		for i := range g.Regions {
			if r := &g.Regions[i]; want(*r) {
				r.Offset = at
				end, ok := addBytes(at, r.Bytes)
				if !ok || end > 1<<60 {
					return 0, fmt.Errorf("region %q: the regions' sizes overflow", r.Name)
				}
				at = (end + RegionAlign - 1) &^ (RegionAlign - 1)
			}
		}
		return at, nil
	}
	var err error
	if g.VolatileOffset, err = place(func(r Region) bool { return r.Kind == Replicated && r.Class == Window }, 0); err != nil {
		return Geometry{}, err
	}
	if g.ReplicatedBytes, err = place(func(r Region) bool { return r.Kind == Replicated && r.Class == Volatile }, g.VolatileOffset); err != nil {
		return Geometry{}, err
	}
	g.VolatileBytes = g.ReplicatedBytes - g.VolatileOffset
	if g.PrivateBytes, err = place(func(r Region) bool { return r.Kind == Private }, 0); err != nil {
		return Geometry{}, err
	}
	if g.FrozenBytes, err = place(func(r Region) bool { return r.Class == Frozen }, 0); err != nil {
		return Geometry{}, err
	}
	return g, nil
}

// RegionRecordBytes is the size of a region's fixed record, shared with C.
const RegionRecordBytes = 256

// AppendRegion appends the fixed record: name[128], dtype, kind, class, ndim (u8 each), flags u32, bytes u64, shape u64[8],
// offset u64, zeros to 256; little-endian.
func AppendRegion(b []byte, r Region) []byte {
	var rec [RegionRecordBytes]byte
	copy(rec[:MaxRegionName], r.Name)
	rec[128], rec[129], rec[130], rec[131] = byte(r.DType), byte(r.Kind), byte(r.Class), byte(len(r.Shape))
	binary.LittleEndian.PutUint32(rec[132:], uint32(r.Flags))
	binary.LittleEndian.PutUint64(rec[136:], r.Bytes)
	for i, d := range r.Shape {
		binary.LittleEndian.PutUint64(rec[144+8*i:], d)
	}
	binary.LittleEndian.PutUint64(rec[208:], r.Offset)
	return append(b, rec[:]...)
}

// ParseRegion reads a fixed record and checks it.
func ParseRegion(rec []byte) (Region, error) {
	if len(rec) != RegionRecordBytes {
		return Region{}, fmt.Errorf("region record of %d bytes, want %d", len(rec), RegionRecordBytes)
	}
	n := 0
	for n < 128 && rec[n] != 0 {
		n++
	}
	for _, c := range rec[n:128] {
		if c != 0 {
			return Region{}, fmt.Errorf("region record: bytes after the end of the name")
		}
	}
	r := Region{Name: string(rec[:n]), DType: DType(rec[128]), Kind: Kind(rec[129]), Class: Class(rec[130]),
		Flags: RegionFlags(binary.LittleEndian.Uint32(rec[132:])), Bytes: binary.LittleEndian.Uint64(rec[136:]), Offset: binary.LittleEndian.Uint64(rec[208:])}
	if rec[131] > MaxDims {
		return Region{}, fmt.Errorf("region %q: %d dimensions, at most %d", r.Name, rec[131], MaxDims)
	}
	r.Shape = make([]uint64, rec[131])
	for i := range MaxDims {
		d := binary.LittleEndian.Uint64(rec[144+8*i:])
		if i < len(r.Shape) {
			r.Shape[i] = d
		} else if d != 0 {
			return Region{}, fmt.Errorf("region %q: a dimension beyond the last is set", r.Name)
		}
	}
	for _, c := range rec[216:] {
		if c != 0 {
			return Region{}, fmt.Errorf("region %q: reserved bytes are set", r.Name)
		}
	}
	return r, r.Check()
}

// DigestInput is what the geometry digest of a kind of part is the XXH3-128 of: the records of that part's regions, in order.
// Ranks of a group must agree on the replicated one (which covers frozen regions too).
func (g Geometry) DigestInput(k PartKind) []byte {
	var b []byte
	for _, r := range g.Of(k) {
		b = AppendRegion(b, r)
	}
	return b
}

// Of lists the regions that a kind of part's geometry digest covers.
func (g Geometry) Of(k PartKind) []Region {
	var out []Region
	for _, r := range g.Regions {
		if (r.Kind == Private) == (k == PrivatePart) && (k != FrozenPart || r.Class == Frozen) {
			out = append(out, r)
		}
	}
	return out
}
