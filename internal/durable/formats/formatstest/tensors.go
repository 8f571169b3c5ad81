// Package formatstest makes tensors for tests of formats, and compares them. Their bytes follow from their names.
package formatstest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/replica"
)

// Tensor is one in memory. Its bytes follow from its name.
func Tensor(name string, dtype replica.DType, shape ...uint64) formats.Tensor {
	return Of(name, dtype, shape, nil)
}

// Of is a tensor of these bytes; nil: they follow from its name.
func Of(name string, dtype replica.DType, shape []uint64, b []byte) formats.Tensor {
	t := formats.Tensor{Name: name, DType: dtype, Shape: append([]uint64{}, shape...)}
	if b == nil {
		b = make([]byte, t.Bytes())
		var seed uint64
		for _, c := range []byte(name) {
			seed = seed*31 + uint64(c)
		}
		random := rand.New(rand.NewPCG(seed, uint64(dtype)))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
	}
	t.ReadAt = func(p []byte, off uint64) error {
		if off+uint64(len(p)) > uint64(len(b)) {
			return fmt.Errorf("%d bytes at %d of %d", len(p), off, len(b))
		}
		copy(p, b[off:])
		return nil
	}
	return t
}

// All has every element type, as a matrix, a number and nothing.
func All() (list []formats.Tensor) {
	for d := replica.U8; d.Size() > 0; d++ {
		list = append(list, Tensor(fmt.Sprintf("w.%v", d), d, 3, 5, 1), Tensor(fmt.Sprintf("nothing.%v", d), d, 3, 0))
		if d != replica.F4X2 { // a byte has two of them
			list = append(list, Tensor(fmt.Sprintf("number.%v", d), d))
		}
	}
	return list
}

// Bytes reads a tensor whole.
func Bytes(t testing.TB, x formats.Tensor) []byte {
	t.Helper()
	b := make([]byte, x.Bytes())
	if len(b) == 0 {
		return b
	}
	if err := x.ReadAt(b, 0); err != nil {
		t.Fatalf("%s: %v", x.Name, err)
	}
	return b
}

// Same tells whether two lists have the same tensors, in whatever order.
func Same(t testing.TB, got, want []formats.Tensor) {
	t.Helper()
	byName := make(map[string]formats.Tensor)
	for _, x := range got {
		byName[x.Name] = x
	}
	if len(got) != len(want) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
	for _, w := range want {
		g, ok := byName[w.Name]
		if !ok || g.DType != w.DType || fmt.Sprint(g.Shape) != fmt.Sprint(w.Shape) {
			t.Errorf("%s is %v%v, want %v%v", w.Name, g.DType, g.Shape, w.DType, w.Shape)
			continue
		}
		if string(Bytes(t, g)) != string(Bytes(t, w)) {
			t.Errorf("%s has other bytes", w.Name)
		}
	}
}
