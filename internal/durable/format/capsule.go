package format

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/rng"
)

// capsule layout: magic, length of the text, the text, padding, blobs.
const (
	capsuleMagic = "RPCAP001"
	capsuleAlign = 64
)

// Capsule reads what replicad's Python package keeps small state in: a tree of plain values, of which some name blobs. Bytes before the first
// magic are passed over where there are exactly 8: the length that a region of changing size begins with.
func Capsule(b []byte) (text []byte, blob func(at, n uint64) ([]byte, bool), ok bool) {
	if len(b) >= 16 && string(b[8:16]) == capsuleMagic {
		n := binary.LittleEndian.Uint64(b)
		if n > uint64(len(b)-8) {
			return nil, nil, false
		}
		b = b[8 : 8+n]
	}
	if len(b) < 16 || string(b[:8]) != capsuleMagic {
		return nil, nil, false
	}
	n := binary.LittleEndian.Uint64(b[8:])
	if n > uint64(len(b)-16) {
		return nil, nil, false
	}
	blobs := b[min((16+n+capsuleAlign-1)/capsuleAlign*capsuleAlign, uint64(len(b))):]
	return b[16 : 16+n], func(at, n uint64) ([]byte, bool) {
		if at > uint64(len(blobs)) || n > uint64(len(blobs))-at {
			return nil, false
		}
		return blobs[at : at+n], true
	}, true
}

// LayoutRegion is the frozen region that says how a group's tensors lie over the ranks.
const LayoutRegion = "replicad.layout"

// layoutVersion is of what that region holds.
const layoutVersion = 1

// Shard is what replicad.layout says of one tensor: the whole, and where the group's piece lies in it.
type Shard struct {
	Shape      []uint64 `json:"shape"`
	Local      []uint64 `json:"local"`
	At         []uint64 `json:"offset"` // null where torch does not say
	Placements []string `json:"placements"`
	Mesh       []uint64 `json:"mesh"`
	Whole      string   `json:"-"` // the tensor's whole name, which the layout says apart
}

// says tells whether it says more of the tensor than its name.
func (s Shard) says() bool { return s.Shape != nil || len(s.Placements) > 0 }

// maxShards bounds the tensors of a layout.
const maxShards = replica.MaxRegions

// layout is what the region has: how tensors lie over ranks, and the order of dimensions in memory of those that keep another one than their shape's.
type layout struct {
	Version int              `json:"version"`
	Tensors map[string]Shard `json:"tensors"`
	Orders  map[string][]int `json:"orders"`
	// Names are the whole names of tensors that are too long for a region; Aliases further names of tensors, by whole names both.
	Names   map[string]string `json:"names"`
	Aliases map[string]string `json:"aliases"`
}

// NewLayout makes a layout that says names alone.
func NewLayout(names, aliases map[string]string) ([]byte, error) {
	text, err := json.Marshal(&layout{Version: layoutVersion, Tensors: map[string]Shard{}, Names: names, Aliases: aliases})
	if err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint64([]byte(capsuleMagic), uint64(len(text)))
	b = append(b, text...)
	return append(b, make([]byte, (capsuleAlign-len(b)%capsuleAlign)%capsuleAlign)...), nil
}

// ParseAliases reads of a group's replicad.layout which further names tensors have.
func ParseAliases(b []byte) (map[string]string, error) {
	l, err := parseLayout(b)
	if err != nil {
		return nil, err
	}
	return l.Aliases, nil
}

// MaxName bounds a tensor's whole name, in bytes.
const MaxName = 4096

// ParseOrders reads of a group's replicad.layout which tensors' bytes lie in another order than that of their shape.
func ParseOrders(b []byte) (map[string][]int, error) {
	l, err := parseLayout(b)
	if err != nil {
		return nil, err
	}
	return l.Orders, nil
}

// ParseLayout reads of a group's replicad.layout how its tensors lie over the ranks.
func ParseLayout(b []byte) (map[string]Shard, error) {
	l, err := parseLayout(b)
	if err != nil {
		return nil, err
	}
	for name, whole := range l.Names {
		s := l.Tensors[name]
		s.Whole = whole
		l.Tensors[name] = s
	}
	return l.Tensors, nil
}

func parseLayout(b []byte) (*layout, error) {
	text, _, ok := Capsule(b)
	if !ok {
		return nil, corrupt("%s: %d bytes are no capsule", LayoutRegion, len(b))
	}
	var l layout
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, corrupt("%s: %w", LayoutRegion, err)
	}
	if l.Version != layoutVersion {
		return nil, fmt.Errorf("%s: %w: version %d, this program reads %d", LayoutRegion, ErrNewer, l.Version, layoutVersion)
	}
	if len(l.Tensors) > maxShards {
		return nil, corrupt("%s: %d tensors, at most %d", LayoutRegion, len(l.Tensors), maxShards)
	}
	for _, names := range []map[string]string{l.Names, l.Aliases} {
		if len(names) > maxShards {
			return nil, corrupt("%s: %d names, at most %d", LayoutRegion, len(names), maxShards)
		}
		for name, whole := range names {
			if max(len(name), len(whole)) > MaxName || !utf8.ValidString(whole) {
				return nil, corrupt("%s: %.128q is called %.128q, of %d bytes: at most %d of UTF-8", LayoutRegion, name, whole, len(whole), MaxName)
			}
		}
	}
	if l.Tensors == nil {
		l.Tensors = make(map[string]Shard)
	}
	for name, s := range l.Tensors {
		if err := s.check(); err != nil {
			return nil, corrupt("%s: %.128q: %w", LayoutRegion, name, err)
		}
	}
	return &l, nil
}

func (s Shard) check() error {
	if max(len(s.Shape), len(s.Local), len(s.At), len(s.Placements), len(s.Mesh)) > 2*replica.MaxDims {
		return fmt.Errorf("more than %d dimensions", 2*replica.MaxDims)
	}
	for _, n := range slices.Concat(s.Shape, s.Local, s.At, s.Mesh) {
		if n > maxSpan {
			return fmt.Errorf("a dimension of %d", n)
		}
	}
	for _, p := range s.Placements {
		if len(p) > replica.MaxNameBytes {
			return fmt.Errorf("placement %.64q", p)
		}
	}
	return nil
}

// Generators are the states of a rank's random number generators, if the private region holds any.
func Generators(region []byte) (rng.States, bool) {
	text, blob, ok := Capsule(region)
	if !ok {
		return nil, false
	}
	var own struct {
		RNG *struct {
			At uint64 `json:"at"`
			N  uint64 `json:"n"`
		} `json:"rng"`
	}
	if json.Unmarshal(text, &own) != nil || own.RNG == nil {
		return nil, false
	}
	b, ok := blob(own.RNG.At, own.RNG.N)
	if !ok {
		return nil, false
	}
	states, err := rng.Parse(b)
	return states, err == nil
}

// maxLoaders bounds the text of loaders' states that are shown.
const maxLoaders = 4096

// Loaders is what a rank's data loaders say of where they are, as the text of the region has it.
func Loaders(region []byte) (json.RawMessage, bool) {
	text, _, ok := Capsule(region)
	if !ok {
		return nil, false
	}
	var own struct {
		Data json.RawMessage `json:"data"`
	}
	if json.Unmarshal(text, &own) != nil || len(own.Data) <= len("{}") || len(own.Data) > maxLoaders {
		return nil, false
	}
	return own.Data, true
}
