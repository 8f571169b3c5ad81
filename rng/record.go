package rng

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	magic       = "RPRNG001"
	headBytes   = len(magic) + 4
	recordBytes = 8

	// MaxRecords is far above 16 devices and a name for each data loader.
	MaxRecords = 1024
	// MaxName is the most bytes of a name.
	MaxName = 255
)

// ErrMalformed marks bytes that are no generator states, and states that no generator can be in.
var ErrMalformed = errors.New("malformed generator state")

// Place says whose generator a record is of.
type Place uint8

// The places, in the order of their records.
const (
	Python   Place = 1 // of module random; always there
	NumPy    Place = 2 // the global one of numpy.random
	Torch    Place = 3 // torch's default generator of the CPU
	CUDA     Place = 4 // a CUDA device's default generator, by its index
	Megatron Place = 5 // of Megatron's tracker, by name
	Named    Place = 6 // added by the program, by name
	Seeds    Place = 7 // what an added generator of numpy's spawns others from, by its name
)

// layout is the one that every generator of the place has; zero where they differ.
func (p Place) layout() Layout {
	switch p {
	case Python:
		return LayoutPython
	case NumPy:
		return LayoutRandomState
	case Torch:
		return LayoutTorchCPU
	case CUDA, Megatron:
		return LayoutTorchCUDA
	case Seeds:
		return LayoutSeeds
	case Named:
	}
	return 0
}

// Record is the state of one generator.
type Record struct {
	Place Place
	Name  string // of Megatron's and added generators; the index of a CUDA device; otherwise empty
	State State
}

// String is the generator's name in messages.
func (r Record) String() string {
	shown := strings.Trim(strconv.QuoteToGraphic(r.Name), `"`)
	switch r.Place {
	case Python:
		return "python's generator"
	case NumPy:
		return "numpy's global generator"
	case Torch:
		return "torch's CPU generator"
	case CUDA:
		return "the generator of CUDA device " + shown
	case Megatron:
		return "Megatron's generator '" + shown + "'"
	case Seeds:
		return "the seed sequence of the generator '" + shown + "'"
	case Named:
	}
	return "the generator '" + shown + "'"
}

// States are all generators of one rank.
type States []Record

// Parse reads what python's replicad.rng.get or Append made. Any other bytes are an ErrMalformed that names the generator.
func Parse(b []byte) (States, error) {
	if len(b) < headBytes || string(b[:len(magic)]) != magic {
		return nil, malformed("%d bytes that begin with %q, want %q", len(b), b[:min(len(b), len(magic))], magic)
	}
	count := binary.LittleEndian.Uint32(b[len(magic):])
	b = b[headBytes:]
	if count < 1 || count > MaxRecords || int(count) > len(b)/recordBytes {
		return nil, malformed("%d records in %d bytes, want 1 to %d", count, len(b), MaxRecords)
	}
	s := make(States, 0, count)
	for i := range int(count) {
		r, rest, err := parseRecord(b, i)
		if err != nil {
			return nil, err
		}
		s, b = append(s, r), rest
		if err := s.checkLast(); err != nil {
			return nil, err
		}
	}
	if len(b) > 0 {
		return nil, malformed("%d bytes after the last record", len(b))
	}
	return s, nil
}

func parseRecord(b []byte, i int) (r Record, rest []byte, err error) {
	if len(b) < recordBytes {
		return r, nil, malformed("record %d is cut short", i)
	}
	place, layout := Place(b[0]), Layout(b[1])
	name, size := int(binary.LittleEndian.Uint16(b[2:])), binary.LittleEndian.Uint32(b[4:])
	b = b[recordBytes:]
	if place < Python || place > Seeds || layout.Size() == 0 || name > MaxName {
		return r, nil, malformed("record %d has place %d, layout %d and a name of %d bytes", i, place, layout, name)
	}
	r = Record{Place: place, Name: string(b[:min(name, len(b))])}
	if err := layout.checkSize(int64(size)); err != nil {
		return r, nil, malformed("%v: %w", r, err)
	}
	end := name + int(size)
	if len(b) < end {
		return r, nil, malformed("%v: %d bytes of a state of %v, but %d are there", r, size, layout, len(b)-name)
	}
	if r.State, err = parseState(layout, b[name:end]); err != nil {
		return r, nil, malformed("%v: %w", r, err)
	}
	return r, b[end:], nil
}

// Check says what keeps the states from having an encoding.
func (s States) Check() error {
	if len(s) < 1 || len(s) > MaxRecords {
		return malformed("%d records, want 1 to %d", len(s), MaxRecords)
	}
	for i := range s {
		if err := s[:i+1].checkLast(); err != nil {
			return err
		}
	}
	return nil
}

// checkLast checks the last record, those before it being sound.
func (s States) checkLast() error {
	i := len(s) - 1
	r := s[i]
	var before Record // of no place
	if i > 0 {
		before = s[i-1]
	}
	if r.Place < Python || r.Place > Seeds || r.State == nil || len(r.Name) > MaxName || !utf8.ValidString(r.Name) {
		return malformed("record %d has place %d, a state of type %T and a name %q of %d bytes", i, r.Place, r.State, r.Name, len(r.Name))
	}
	if want := r.Place.layout(); want != 0 && r.State.Layout() != want {
		return malformed("%v: a state of %v, want %v", r, r.State.Layout(), want)
	}
	if (r.State.Layout() == LayoutSeeds) != (r.Place == Seeds) {
		return malformed("%v: a state of %v, which is none of a generator", r, r.State.Layout())
	}
	if r.Place == Seeds && !slices.ContainsFunc(s, func(of Record) bool { return of.Place == Named && of.Name == r.Name && spawns(of.State) }) {
		return malformed("%v: no generator of numpy's has that name", r)
	}
	if (i == 0) != (r.Place == Python) {
		return malformed("%v: is record %d; python's generator, and it alone, is the first", r, i)
	}
	switch r.Place {
	case CUDA:
		device := 0
		if before.Place == CUDA {
			device, _ = strconv.Atoi(before.Name)
			device++
		}
		if r.Name != strconv.Itoa(device) || before.Place > CUDA {
			return malformed("%v: want device %d here", r, device)
		}
	default:
		if (r.Place <= Torch) != (r.Name == "") {
			return malformed("%v: a name of %d bytes", r, len(r.Name))
		}
		if cmp.Or(cmp.Compare(before.Place, r.Place), cmp.Compare(before.Name, r.Name)) >= 0 {
			return malformed("%v: is there twice or out of order", r)
		}
	}
	if err := r.State.Check(); err != nil {
		return malformed("%v: %w", r, err)
	}
	return nil
}

// Append appends the one encoding of s, or returns dst and what Check says.
func (s States) Append(dst []byte) ([]byte, error) {
	if err := s.Check(); err != nil {
		return dst, err
	}
	dst = append(dst, magic...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s)))
	for _, r := range s {
		dst = append(dst, byte(r.Place), byte(r.State.Layout()))
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(r.Name)))
		size := len(dst)
		dst = binary.LittleEndian.AppendUint32(dst, 0)
		dst = append(dst, r.Name...)
		payload := len(dst)
		dst = r.State.append(dst)
		binary.LittleEndian.PutUint32(dst[size:], uint32(len(dst)-payload))
	}
	return dst, nil
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}
