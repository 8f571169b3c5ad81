// Package safetensors reads and writes what every file of the durable tier is: a safetensors header, strictly, and where the regions of a
// part lie behind it. Bytes alone: nothing here opens a file. It imports replica and xxh3.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/replicad/replicad/replica"
)

// MaxHeader bounds a safetensors header, in bytes, as the safetensors library does. Whatever regions a rank may register fit: a job that can
// be captured can be written.
const MaxHeader = 100_000_000

// What a header may make: each entry of a tensor or of the metadata takes many times its bytes in memory.
const (
	MaxTensors  = 1_000_000 // of a file, whoever wrote it; a part of a job has replica.MaxRegions at most
	MaxMetadata = 1 << 16   // entries beside the tensors
)

// Tensor is an entry of a safetensors header; Begin and End count from the end of the header.
type Tensor struct {
	Name       string
	DType      replica.DType
	Shape      []uint64
	Begin, End uint64
	// Refused is why no generation can hold the tensor, in a file of others; its type may be 0 then.
	Refused string
}

// Header is a parsed safetensors header: tensors in order of their bytes.
type Header struct {
	Metadata map[string]string
	Tensors  []Tensor
	Size     uint64 // of the length field and header together: where the data begins
}

// ErrFormat marks bytes that are no header, or one with holes, overlaps or numbers that lie.
var ErrFormat = errors.New("not a safetensors file that replicad accepts")

func badFormat(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// HeaderLength reads the first 8 bytes.
func HeaderLength(b [8]byte) (uint64, error) {
	n := binary.LittleEndian.Uint64(b[:])
	if n < 2 || n > MaxHeader {
		return 0, badFormat("header of %d bytes, want 2 to %d", n, MaxHeader)
	}
	return n, nil
}

// ParseHeader reads the header's JSON strictly; data is the length of what follows it. Refused are: duplicate keys,
// unknown fields and types, shapes whose product overflows or is not what the offsets say, holes, overlaps (of empty
// tensors too), bytes that belong to no tensor, and metadata that is not string to string.
func ParseHeader(b []byte, data uint64) (*Header, error) {
	return parseHeader(b, data, MaxTensors, false)
}

// ParseForeign is ParseHeader for files of others: types that have no name here, and more dimensions than a generation has, are marked in their tensor.
func ParseForeign(b []byte, data uint64) (*Header, error) {
	return parseHeader(b, data, MaxTensors, true)
}

func parseHeader(b []byte, data uint64, most int, foreign bool) (*Header, error) {
	if len(b) < 2 || len(b) > MaxHeader || b[0] != '{' {
		return nil, badFormat("header of %d bytes does not begin with {", len(b))
	}
	if !utf8.Valid(b) || !json.Valid(b) {
		return nil, badFormat("header is not JSON in UTF-8")
	}
	if trimmed := bytes.TrimRight(b, " "); trimmed[len(trimmed)-1] != '}' {
		return nil, badFormat("header ends in something else than spaces")
	}
	p := parser{json.NewDecoder(bytes.NewReader(b)), foreign}
	p.UseNumber()
	h := &Header{Size: 8 + uint64(len(b))}
	err := p.object(func(key string) error {
		if key == "__metadata__" {
			h.Metadata = make(map[string]string)
			return p.object(func(k string) error {
				if len(h.Metadata) >= MaxMetadata {
					return badFormat("more than %d entries of metadata", MaxMetadata)
				}
				v, err := p.text()
				h.Metadata[k] = v
				return err
			})
		}
		if len(h.Tensors) >= most {
			return badFormat("more than %d tensors", most)
		}
		t, err := p.tensor(key)
		h.Tensors = append(h.Tensors, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, h.check(data)
}

// check compares shapes with offsets, and offsets with each other and the file.
func (h *Header) check(data uint64) error {
	slices.SortStableFunc(h.Tensors, func(a, b Tensor) int {
		if a.Begin != b.Begin {
			return cmpUint(a.Begin, b.Begin)
		}
		return cmpUint(a.End, b.End)
	})
	at := uint64(0)
	for _, t := range h.Tensors {
		n, ok := t.bytes()
		if t.DType == 0 { // foreign: only the place can be judged
			n, ok = t.End-t.Begin, true
		}
		if !ok {
			return badFormat("tensor %.128q: shape %v overflows", t.Name, t.Shape)
		}
		if t.End < t.Begin || t.End-t.Begin != n {
			return badFormat("tensor %q: offsets [%d, %d], but shape %v of %v has %d bytes", t.Name, t.Begin, t.End, t.Shape, t.DType, n)
		}
		if t.Begin != at {
			return badFormat("tensor %q begins at %d, the one before ends at %d", t.Name, t.Begin, at)
		}
		at = t.End
	}
	if at != data {
		return badFormat("tensors end at %d, the file has %d bytes of data", at, data)
	}
	return nil
}

func (t Tensor) bytes() (uint64, bool) {
	n := t.DType.Size()
	for _, d := range t.Shape {
		if d != 0 && n > (1<<62)/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

func cmpUint(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}

// parser reads exactly the shapes that a header may have.
type parser struct {
	*json.Decoder
	foreign bool
}

func (p parser) delim(want json.Delim) error {
	tok, err := p.Token()
	if err != nil {
		return badFormat("%v", err)
	}
	if tok != want {
		return badFormat("%v where %v belongs", tok, want)
	}
	return nil
}

// object calls field for each key, which must read the value. Duplicate keys are refused.
func (p parser) object(field func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for p.More() {
		key, err := p.text()
		if err != nil {
			return err
		}
		if seen[key] {
			return badFormat("key %q is there twice", key)
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p parser) text() (string, error) {
	tok, err := p.Token()
	if err != nil {
		return "", badFormat("%v", err)
	}
	s, ok := tok.(string)
	if !ok {
		return "", badFormat("%v where a string belongs", tok)
	}
	return s, nil
}

func (p parser) numbers(most int) ([]uint64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []uint64{}
	for p.More() {
		tok, err := p.Token()
		if err != nil {
			return nil, badFormat("%v", err)
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, badFormat("%v where a number belongs", tok)
		}
		n, err := strconv.ParseUint(num.String(), 10, 64)
		if err != nil {
			return nil, badFormat("number %v: want an integer from 0 to 2^64-1", num)
		}
		if len(list) == most {
			return nil, badFormat("more than %d numbers in a list", most)
		}
		list = append(list, n)
	}
	return list, p.delim(']')
}

func (p parser) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	var offsets []uint64
	err := p.object(func(key string) (err error) {
		switch key {
		case "dtype":
			var s string
			if s, err = p.text(); err == nil {
				if t.DType, err = parseType(s); err != nil && p.foreign && len(s) <= maxTypeName {
					t.Refused, err = err.Error(), nil
				}
				if err != nil {
					err = badFormat("tensor %q: %v", name, err)
				}
			}
		case "shape":
			most := replica.MaxDims
			if p.foreign {
				most = maxForeignDims
			}
			if t.Shape, err = p.numbers(most); err == nil && len(t.Shape) > replica.MaxDims {
				t.Refused = fmt.Sprintf("%d dimensions, at most %d", len(t.Shape), replica.MaxDims)
			}
		case "data_offsets":
			offsets, err = p.numbers(2)
		default:
			err = badFormat("tensor %q: unknown field %q", name, key)
		}
		return err
	})
	if err != nil {
		return t, err
	}
	if t.DType == 0 && t.Refused == "" || t.Shape == nil || len(offsets) != 2 {
		return t, badFormat("tensor %q: dtype, shape and two data_offsets are needed", name)
	}
	t.Begin, t.End = offsets[0], offsets[1]
	if t.DType == replica.F4X2 {
		shape, ok := pairs(t.Shape)
		switch {
		case ok:
			t.Shape = shape
		case p.foreign:
			t.DType, t.Refused = 0, fmt.Sprintf("shape %v of F4, whose rows are no whole bytes", t.Shape)
		default:
			return t, badFormat("tensor %q: shape %v of F4, whose rows are no whole bytes", name, t.Shape)
		}
	}
	return t, nil
}

// Bounds of what is only told of a foreign tensor.
const (
	maxTypeName    = 32
	maxForeignDims = 64
)

// fours is what files call numbers of 4 bits, which their shapes count one by one.
const fours = "F4"

func parseType(s string) (replica.DType, error) {
	if s == fours {
		return replica.F4X2, nil
	}
	d, err := replica.ParseDType(s)
	if d == replica.F4X2 {
		return 0, fmt.Errorf("dtype %q is unknown", s)
	}
	return d, err
}

func typeName(d replica.DType) string {
	if d == replica.F4X2 {
		return fours
	}
	return d.String()
}

// pairs is a shape of numbers of 4 bits in bytes, and single the other way.
func pairs(shape []uint64) ([]uint64, bool) {
	if len(shape) == 0 || shape[len(shape)-1]%2 != 0 {
		return nil, false
	}
	out := slices.Clone(shape)
	out[len(out)-1] /= 2
	return out, true
}

func single(shape []uint64) ([]uint64, error) {
	if len(shape) == 0 || shape[len(shape)-1] > 1<<62 {
		return nil, fmt.Errorf("shape %v of F4, whose rows safetensors can't count", shape)
	}
	out := slices.Clone(shape)
	out[len(out)-1] *= 2
	return out, nil
}

// AppendHeader makes length field and header, padded so that the data begins at a multiple of 64 bytes.
func AppendHeader(metadata map[string]string, tensors []Tensor) ([]byte, error) {
	if metadata == nil {
		metadata = map[string]string{} // null would not be read back
	}
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteString(`{"__metadata__":`)
	meta, err := json.Marshal(metadata) // keys sorted: equal parts make equal files
	if err != nil {
		return nil, err
	}
	b.Write(meta)
	for _, t := range tensors {
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		dims := append([]uint64{}, t.Shape...)
		if t.DType == replica.F4X2 {
			if dims, err = single(dims); err != nil {
				return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
			}
		}
		shape, err := json.Marshal(dims)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `,%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, typeName(t.DType), shape, t.Begin, t.End)
	}
	b.WriteByte('}')
	for b.Len()%64 != 0 {
		b.WriteByte(' ')
	}
	out := b.Bytes()
	if len(out)-8 > MaxHeader {
		return nil, fmt.Errorf("safetensors header of %d bytes for %d regions, at most %d: use fewer regions or shorter names", len(out)-8, len(tensors), MaxHeader)
	}
	binary.LittleEndian.PutUint64(out, uint64(len(out)-8))
	return out, nil
}
