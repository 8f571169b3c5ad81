//go:build cgo

package libreplicad

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is live state that C may keep pointers to: mapped pages outside Go's heap, zero at first. A part of one (see Slice)
// shares its pages.
type Memory struct {
	bytes []byte
	whole []byte // what Free unmaps; nil in a slice of another
}

// Alloc maps bytes of memory.
func Alloc(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("allocate %d bytes of live memory: negative", bytes)
	}
	page := unix.Getpagesize()
	whole, err := unix.Mmap(-1, 0, max(page, (bytes+page-1)/page*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of live memory: %w", bytes, err)
	}
	_ = unix.Madvise(whole, unix.MADV_HUGEPAGE) // only a hint: copies are faster over huge pages
	return &Memory{bytes: whole[:bytes:bytes], whole: whole}, nil
}

// AllocFloat32s maps n float32.
func AllocFloat32s(n int) (*Memory, []float32, error) {
	m, err := Alloc(n * 4)
	if err != nil {
		return nil, nil, err
	}
	return m, m.Float32s(), nil
}

// AllocUint64s maps n uint64.
func AllocUint64s(n int) (*Memory, []uint64, error) {
	m, err := Alloc(n * 8)
	if err != nil {
		return nil, nil, err
	}
	return m, m.Uint64s(), nil
}

// Bytes is the memory itself.
func (m *Memory) Bytes() []byte { return m.bytes }

// Float32s is the memory as float32; a remainder of less than one is left out.
func (m *Memory) Float32s() []float32 { return view[float32](m.bytes) }

// Uint64s is the memory as uint64; a remainder of less than one is left out.
func (m *Memory) Uint64s() []uint64 { return view[uint64](m.bytes) }

// Slice is a part of the memory, for one region of many; off must keep the alignment of what is viewed in it.
func (m *Memory) Slice(off, n int) *Memory { return &Memory{bytes: m.bytes[off : off+n : off+n]} }

// Free unmaps the memory, after the session that registered it was closed. Views of it must not be used any more.
func (m *Memory) Free() error {
	whole := m.whole
	m.bytes, m.whole = nil, nil
	if whole == nil {
		return nil
	}
	return unix.Munmap(whole)
}

func view[T float32 | uint64](b []byte) []T {
	var t T
	if n := len(b) / int(unsafe.Sizeof(t)); n > 0 {
		return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
	}
	return nil
}
