package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
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

// Region is one named piece of the training state. Data lies outside the Go heap and stays where it is until State.Close,
// so that C may keep its address.
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
	maps    [][]byte
}

// f32 adds a region of float32 and returns it as a slice of them.
func (s *State) f32(name string, k Kind, c Class, shape ...int) []float32 {
	b := s.add(name, F32, 4, k, c, shape)
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func (s *State) u64(name string, k Kind, c Class, n int) []uint64 {
	b := s.add(name, U64, 8, k, c, []int{n})
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// add maps zeroed pages for one region. It panics when the kernel has none left: there is no training without state.
func (s *State) add(name string, t DType, size int, k Kind, c Class, shape []int) []byte {
	n := size
	dims := make([]uint64, len(shape))
	for i, d := range shape {
		n *= d
		dims[i] = uint64(d)
	}
	m, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		panic(fmt.Sprintf("model: map %d bytes for region %q: %v", n, name, err))
	}
	s.maps = append(s.maps, m)
	s.Regions = append(s.Regions, Region{Name: name, DType: t, Kind: k, Class: c, Shape: dims, Data: m[:n]})
	return m[:n]
}

// Close unmaps everything; nobody may use the model or its regions afterwards.
func (s *State) Close() {
	for _, m := range s.maps {
		_ = unix.Munmap(m) // of exactly what Mmap gave: it can't fail
	}
	s.maps, s.Regions = nil, nil
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
