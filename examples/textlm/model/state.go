package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unsafe"
)

// Kind and class of a region, as replicad's protocol names them.
type (
	Kind  uint8
	Class uint8
	DType uint8
)

const (
	Replicated Kind = 0 // bit-identical on every rank of the shard's replica group
	Private    Kind = 1 // this rank's own

	Window   Class = 0 // changes only inside the optimizer window
	Volatile Class = 1 // changes in forward
	Frozen   Class = 2 // never changes

	U8  DType = 1
	F32 DType = 2
	U64 DType = 3
)

// Region is one named piece of the training state. Data is memory of the caller's (see Alloc) and stays where it is.
type Region struct {
	Name  string
	DType DType
	Kind  Kind
	Class Class
	Shape []uint64
	Data  []byte
}

// State is everything that a resumed run needs, and nothing else: whatever is not in here is recomputed each step.
type State struct {
	Regions []Region
	alloc   Alloc
}

// Alloc gives zeroed memory for a region, aligned to 8 bytes. A library that keeps the address of live state, as replicad's
// C client does, wants it outside the Go heap.
type Alloc func(name string, bytes int) ([]byte, error)

// Heap is ordinary memory.
func Heap(_ string, bytes int) ([]byte, error) {
	words := make([]uint64, (bytes+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes), nil
}

// f32 adds a region of float32 and returns it as a slice of them.
func (s *State) f32(name string, k Kind, c Class, shape ...int) ([]float32, error) {
	b, err := s.add(name, F32, 4, k, c, shape)
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4), err
}

func (s *State) u64(name string, k Kind, c Class, n int) ([]uint64, error) {
	b, err := s.add(name, U64, 8, k, c, []int{n})
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8), err
}

func (s *State) add(name string, t DType, size int, k Kind, c Class, shape []int) ([]byte, error) {
	n := size
	dims := make([]uint64, len(shape))
	for i, d := range shape {
		n *= d
		dims[i] = uint64(d)
	}
	b, err := s.alloc(name, n)
	if err != nil {
		return nil, fmt.Errorf("model: %d bytes for region %q: %w", n, name, err)
	}
	s.Regions = append(s.Regions, Region{Name: name, DType: t, Kind: k, Class: c, Shape: dims, Data: b})
	return b, nil
}

// Digest is the SHA-256 over the regions that want selects: their names and bytes, in order.
func (s *State) Digest(want func(Region) bool) string {
	h := sha256.New()
	for _, r := range s.Regions {
		if want(r) {
			fmt.Fprintf(h, "%s\x00%d\x00", r.Name, len(r.Data))
			h.Write(r.Data)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
