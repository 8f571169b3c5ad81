package formats

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// twin puts a tensor in order element by element.
func twin(size uint64, shape, steps []uint64, src []byte) (out []byte) {
	n, _ := Product(shape)
	for e := range n {
		var at uint64
		for i := len(shape) - 1; i >= 0; i-- {
			at += e % shape[i] * steps[i]
			e /= shape[i]
		}
		out = append(out, src[at*size:(at+1)*size]...)
	}
	return out
}

func TestOrdersAsATwin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	all := []*Orders{{}, {slab: 1}, {slab: 40}, {slab: 200}} // of many tensors each: slabs of one are no slabs of another
	for turn := range 600 {
		o := all[turn%len(all)]
		size := []uint64{1, 2, 4, 8}[random.IntN(4)]
		dims := random.IntN(5)
		shape := make([]uint64, dims)
		for i := range shape {
			shape[i] = 1 + random.Uint64N(6)
		}
		steps, step := make([]uint64, dims), uint64(1)
		for _, i := range random.Perm(dims) { // some order, with gaps; now and then one that stands still
			steps[i] = step * (1 + random.Uint64N(3))
			if random.IntN(8) == 0 {
				steps[i] = 0
				continue
			}
			step = steps[i] * shape[i]
		}
		reach, err := Reach(size, shape, steps)
		if err != nil {
			t.Fatal(err)
		}
		src := make([]byte, reach)
		for i := range src {
			src[i] = byte(random.Uint32())
		}
		read := o.Read(size, shape, steps, func(p []byte, off uint64) error {
			if off+uint64(len(p)) > reach {
				return fmt.Errorf("%d bytes at %d of %d", len(p), off, reach)
			}
			copy(p, src[off:])
			return nil
		})
		want := twin(size, shape, steps, src)
		for range 3 {
			from := random.Uint64N(uint64(len(want)))
			got := make([]byte, 1+random.Uint64N(uint64(len(want))-from))
			if err := read(got, from); err != nil || !bytes.Equal(got, want[from:from+uint64(len(got))]) {
				t.Fatalf("turn %d: %v %v of %d at %d: %v", turn, shape, steps, size, from, err)
			}
		}
	}
}

// TestOrdersOfLargeTensors: those of several slabs, read by several at once, take few reads of the source.
func TestOrdersOfLargeTensors(t *testing.T) {
	const rows, columns = 300, 1700 // of 4 bytes: 2 MB
	src := make([]byte, rows*columns*4)
	for i := range src {
		src[i] = byte(i * 7 / 3)
	}
	var mu sync.Mutex
	reads := 0
	o := Orders{slab: 500 << 10}
	read := o.Read(4, []uint64{columns, rows}, []uint64{1, columns}, func(p []byte, off uint64) error {
		mu.Lock()
		reads++
		mu.Unlock()
		copy(p, src[off:])
		return nil
	})
	var wg sync.WaitGroup
	for lane := range 4 {
		wg.Go(func() {
			b := make([]byte, 16<<10)
			for at := uint64(lane) << 14; at < uint64(len(src)); at += 4 << 14 {
				b = b[:min(uint64(cap(b)), uint64(len(src))-at)]
				if err := read(b, at); err != nil {
					t.Error(err)
					return
				}
				for i := uint64(0); i < uint64(len(b)); i += 4 {
					e := (at + i) / 4
					from := (e%rows*columns + e/rows) * 4
					if !slices.Equal(b[i:i+4], src[from:from+4]) {
						t.Errorf("element %d", e)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if reads > 8*rows {
		t.Errorf("%d reads", reads)
	}
}

func TestReach(t *testing.T) {
	for _, c := range []struct {
		shape, steps []uint64
		reach        uint64
		ok           bool
	}{
		{nil, nil, 4, true}, {[]uint64{2, 3}, []uint64{3, 1}, 24, true}, {[]uint64{2, 3}, []uint64{1, 2}, 24, true}, {[]uint64{5}, []uint64{0}, 4, true},
		{[]uint64{0, 3}, []uint64{1 << 63, 1}, 0, true}, {[]uint64{1, 3}, []uint64{1 << 63, 1}, 12, true}, {[]uint64{2}, []uint64{1 << 62}, 0, false},
		{[]uint64{1 << 40, 1 << 40}, []uint64{1 << 40, 1}, 0, false}, {[]uint64{2}, nil, 0, false},
	} {
		if got, err := Reach(4, c.shape, c.steps); got != c.reach && c.ok || (err == nil) != c.ok {
			t.Errorf("%v %v: %d, %v", c.shape, c.steps, got, err)
		}
	}
}
