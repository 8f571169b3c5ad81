package formats

import (
	"cmp"
	"errors"
	"slices"
	"sync"
)

// slab is how much of a tensor whose rows do not follow each other is put in order at once, and kept for the next read; most is how much of its file is
// read at once for that.
const (
	slab = 32 << 20
	most = 32 << 20
)

// Orders puts tensors in order whose bytes lie in another one than their shape's: transposed ones, those in channels_last, every second row. It keeps
// the last slabs, of all tensors together. Its methods may be called by several goroutines.
type Orders struct {
	slab uint64 // bytes; 0: as ever
	mu   sync.Mutex
	kept [2]slabOf // guarded by mu; the newest first. Two: those who read ahead come to the border of one by turns
	buf  []byte    // guarded by mu
}

// slabOf is a slab of a tensor, by its first byte.
type slabOf struct {
	of *strided
	at uint64
	b  []byte
}

// strided is a tensor, and where its elements lie: step i further in a dimension lies steps[i] elements further in the source.
type strided struct {
	size         uint64 // of an element
	shape, steps []uint64
	source       func(p []byte, off uint64) error
	split        int    // the dimension of which a slab has some; of those before it has one, of those behind all
	rows         uint64 // how many of it
	row          uint64 // bytes of one
}

// Read reads a tensor in the order of its shape from a source in which its first element lies at 0. No dimension is 0.
func (o *Orders) Read(size uint64, shape, steps []uint64, source func(p []byte, off uint64) error) func(p []byte, off uint64) error {
	s := &strided{size: size, shape: shape, steps: steps, source: source, row: size, rows: 1}
	slab := cmp.Or(o.slab, slab)
	for s.split = len(shape) - 1; s.split > 0 && s.row*shape[s.split] <= slab; s.split-- {
		s.row *= shape[s.split]
	}
	if s.split < 0 {
		return source // one element
	}
	s.rows = max(min(slab/s.row, shape[s.split]), 1)
	return func(p []byte, off uint64) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		for len(p) > 0 {
			k, err := o.slabLocked(s, off)
			if err != nil {
				return err
			}
			n := copy(p, k.b[off-k.at:])
			p, off = p[n:], off+uint64(n)
		}
		return nil
	}
}

// slabLocked is the slab that has a byte of a tensor.
func (o *Orders) slabLocked(s *strided, off uint64) (slabOf, error) {
	box := s.row * s.shape[s.split] // of one index of each dimension before
	at := off/box*box + off%box/(s.row*s.rows)*(s.row*s.rows)
	for i, k := range o.kept {
		if k.of == s && k.at == at {
			o.kept[0], o.kept[i] = o.kept[i], o.kept[0]
			return o.kept[0], nil
		}
	}
	n := min(s.row*s.rows, box-at%box)
	b := o.kept[1].b
	if uint64(cap(b)) < n {
		b = make([]byte, n)
	}
	k := slabOf{s, at, b[:n]}
	o.kept[1] = slabOf{}
	if err := o.fill(s, k); err != nil {
		return k, err
	}
	o.kept[0], o.kept[1] = k, o.kept[0]
	return k, nil
}

// dim is a dimension of a slab: how many, and how far one lies from the next in the source and in the slab.
type dim struct{ n, from, to uint64 }

// fill puts a slab in order.
func (o *Orders) fill(s *strided, k slabOf) error {
	var from uint64
	rest := k.at / s.row
	first := rest % s.shape[s.split]
	dims := []dim{{uint64(len(k.b)) / s.row, s.steps[s.split] * s.size, s.row}}
	from = first * s.steps[s.split] * s.size
	rest /= s.shape[s.split]
	for i := s.split - 1; i >= 0; i-- {
		from += rest % s.shape[i] * s.steps[i] * s.size
		rest /= s.shape[i]
	}
	to := s.row
	for i := s.split + 1; i < len(s.shape); i++ {
		to /= s.shape[i]
		dims = append(dims, dim{s.shape[i], s.steps[i] * s.size, to})
	}
	dims = slices.DeleteFunc(dims, func(d dim) bool { return d.n == 1 })
	slices.SortStableFunc(dims, func(a, b dim) int { return -cmp.Compare(a.from, b.from) }) // as they lie in the source
	return o.gather(s, dims, from, k.b, 0)
}

// gather reads the elements of dimensions from a place of the source on, at once where they lie close together.
func (o *Orders) gather(s *strided, dims []dim, from uint64, b []byte, to uint64) error {
	extent, have := s.size, s.size
	for _, d := range dims {
		extent += (d.n - 1) * d.from
		have *= d.n
	}
	if len(dims) == 0 || extent <= most && extent <= max(16*have, 64<<10) {
		if uint64(cap(o.buf)) < extent {
			o.buf = make([]byte, extent)
		}
		src := o.buf[:extent]
		if err := s.source(src, from); err != nil {
			return err
		}
		scatter(s.size, dims, src, b[to:])
		return nil
	}
	for i := range dims[0].n {
		if err := o.gather(s, dims[1:], from+i*dims[0].from, b, to+i*dims[0].to); err != nil {
			return err
		}
	}
	return nil
}

// scatter puts elements where they belong.
func scatter(size uint64, dims []dim, src, dst []byte) {
	if len(dims) == 0 {
		copy(dst[:size], src[:size])
		return
	}
	d := dims[0]
	if len(dims) > 1 {
		for i := range d.n {
			scatter(size, dims[1:], src[i*d.from:], dst[i*d.to:])
		}
		return
	}
	if d.from == size && d.to == size {
		copy(dst[:d.n*size], src[:d.n*size])
		return
	}
	var f, t uint64
	for range d.n {
		copy(dst[t:t+size], src[f:f+size])
		f, t = f+d.from, t+d.to
	}
}

// Reach is how many bytes of a source a tensor's elements reach over; an error tells which of its strides can't be. A tensor may take bytes several
// times (expanded ones do), as long as it has no more of them than it reaches over.
func Reach(size uint64, shape, steps []uint64) (uint64, error) {
	if len(shape) != len(steps) {
		return 0, errors.New("it has other numbers of dimensions and strides")
	}
	if slices.Contains(shape, 0) {
		return 0, nil
	}
	reach := size
	for i, d := range shape {
		if d > 1 && steps[i] > maxBytes/(d-1)/size {
			return 0, errors.New("its strides lead beyond any file")
		}
		if reach += (d - 1) * steps[i] * size; d > 1 && reach > maxBytes {
			return 0, errors.New("its strides lead beyond any file")
		}
	}
	return reach, nil
}

// Refused is an error of one tensor that no generation can hold, whatever its bytes: the others of the file may be taken.
type Refused struct{ Why string }

func (r Refused) Error() string { return r.Why }

// Left is what was left out of an import, and why.
type Left struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}
