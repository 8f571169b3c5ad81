package formats

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/replicad/replicad/replica"
)

// Limits of a file's tensors.
const (
	MaxTensors = 1_000_000
	MaxName    = 4096 // bytes of a name
)

// Tensor is a whole tensor: what it is, and how its bytes are read.
type Tensor struct {
	Name  string
	DType replica.DType
	Shape []uint64
	// ReadAt fills p with the tensor's bytes from off on. It is asked for bytes within the tensor alone. Tensors of files may be read by several
	// goroutines, those of a generation by one at a time.
	ReadAt func(p []byte, off uint64) error
}

// Bytes is the tensor's size.
func (t Tensor) Bytes() uint64 {
	n, _ := Size(t.DType, t.Shape) // checked where the tensor was made
	return n
}

// Check tells why a tensor that others wrote is none that a generation or another format can hold.
func (t Tensor) Check() error {
	if len(t.Name) > MaxName {
		return fmt.Errorf("tensor %.128q: a name of %d bytes, at most %d", t.Name, len(t.Name), MaxName)
	}
	if t.Name == "" || !utf8.ValidString(t.Name) || strings.ContainsFunc(t.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) || t.Name == "__metadata__" {
		return fmt.Errorf("tensor %.128q: want a name of 1 to %d bytes of UTF-8 without control characters, and none that safetensors files have for themselves", t.Name, MaxName)
	}
	if len(t.Shape) > replica.MaxDims {
		return fmt.Errorf("tensor %q: %d dimensions, at most %d", t.Name, len(t.Shape), replica.MaxDims)
	}
	if t.DType == replica.F4X2 && len(t.Shape) == 0 {
		return fmt.Errorf("tensor %q: a byte of two numbers of 4 bits, which is no number", t.Name)
	}
	if _, ok := Size(t.DType, t.Shape); !ok {
		return fmt.Errorf("tensor %q: %v%v has a size that no tensor has", t.Name, t.DType, t.Shape)
	}
	return nil
}

// maxBytes bounds a tensor, so that sums of sizes do not overflow.
const maxBytes = 1 << 50

// Size is the size of a tensor in bytes; not ok where it has none.
func Size(dtype replica.DType, shape []uint64) (n uint64, ok bool) {
	if n, ok = Product(shape); !ok || n > maxBytes/8 {
		return 0, false
	}
	return n * dtype.Size(), dtype.Size() > 0
}

// Product is the number of elements of a shape; not ok where it, or that of the dimensions that are not 0, is beyond any tensor's.
func Product(shape []uint64) (n uint64, ok bool) {
	n = 1
	for _, d := range shape {
		if d > maxBytes/n {
			return 0, false
		}
		n *= max(d, 1)
	}
	if slices.Contains(shape, 0) {
		return 0, true
	}
	return n, true
}

// block is how much of a tensor is read at once.
const block = 8 << 20

var blocks = sync.Pool{New: func() any { b := make([]byte, block); return &b }}

// Stream writes a tensor, a block after the other; the next one is read while one is written.
func Stream(ctx context.Context, w io.Writer, t Tensor) error {
	size := t.Bytes()
	if size <= block {
		b := blocks.Get().(*[]byte)
		defer blocks.Put(b)
		return write(ctx, w, t, (*b)[:size])
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	full := make(chan []byte)
	free := make(chan []byte, 2)
	for range cap(free) {
		b := blocks.Get().(*[]byte)
		defer blocks.Put(b)
		free <- *b
	}
	var wg sync.WaitGroup
	defer wg.Wait() // before the blocks are somebody else's
	wg.Go(func() {
		defer close(full)
		for off := uint64(0); off < size; off += block {
			var b []byte
			select {
			case b = <-free:
			case <-ctx.Done():
				return
			}
			b = b[:min(block, size-off)]
			if err := t.ReadAt(b, off); err != nil {
				cancel(fmt.Errorf("tensor %q: %w", t.Name, err))
				return
			}
			select {
			case full <- b:
			case <-ctx.Done():
				return
			}
		}
	})
	for b := range full {
		if _, err := w.Write(b); err != nil {
			cancel(err)
			break
		}
		free <- b[:block]
	}
	return context.Cause(ctx)
}

func write(ctx context.Context, w io.Writer, t Tensor, b []byte) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if len(b) == 0 {
		return nil
	}
	if err := t.ReadAt(b, 0); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	_, err := w.Write(b)
	return err
}

// Unique tells which name is there twice.
func Unique(tensors []Tensor) error {
	seen := make(map[string]bool, len(tensors))
	for _, t := range tensors {
		if seen[t.Name] {
			return fmt.Errorf("two tensors are called %q: --map FROM=TO gives names", t.Name)
		}
		seen[t.Name] = true
	}
	return nil
}
