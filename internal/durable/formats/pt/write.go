package pt

import (
	"archive/zip"
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
)

// Write writes a dict of tensors by name.
func Write(ctx context.Context, w io.Writer, tensors []formats.Tensor) error {
	p := pickles.NewWriter()
	p.Dict(func() {
		for i, t := range tensors {
			p.Text(t.Name)
			rebuild(p, t, i)
		}
	})
	return save(ctx, w, p.Bytes(), tensors)
}

// WriteOne writes one tensor.
func WriteOne(ctx context.Context, w io.Writer, t formats.Tensor) error {
	p := pickles.NewWriter()
	rebuild(p, t, 0)
	return save(ctx, w, p.Bytes(), []formats.Tensor{t})
}

// rebuild puts the call that makes a tensor of a storage of its own.
func rebuild(p *pickles.Writer, t formats.Tensor, key int) {
	storage, late := storageName(t.DType), storageName(t.DType) == ""
	elements := t.Bytes() / t.DType.Size()
	function := "_rebuild_tensor_v2"
	if late {
		function = "_rebuild_tensor_v3" // which is told the type: the storage has none
	}
	p.Call("torch._utils", function, func() {
		p.Ref(func() {
			p.Text("storage")
			if late {
				p.Class("torch.storage", "UntypedStorage")
				elements = t.Bytes()
			} else {
				p.Class("torch", storage)
			}
			p.Text(strconv.Itoa(key))
			p.Text("cpu")
			p.Int(elements)
		})
		p.Int(0)
		p.Ints(t.Shape)
		p.Ints(strides(t.Shape))
		p.Bool(false)
		p.Call("collections", "OrderedDict", func() {})
		if late {
			p.Class("torch", TypeName(t.DType))
		}
	})
}

// strides are those of rows that follow each other, in elements, as torch counts them.
func strides(shape []uint64) []uint64 {
	list, n := make([]uint64, len(shape)), uint64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		list[i] = n
		n *= max(shape[i], 1)
	}
	return list
}

// folder is what all names in the zip begin with.
const folder = "archive/"

// align is where the bytes of a file in the zip begin, as torch puts them: they are used where they lie.
const align = 64

func save(ctx context.Context, w io.Writer, pickle []byte, tensors []formats.Tensor) error {
	if len(pickle) > pickles.MaxBytes {
		return fmt.Errorf("%d tensors take a pickle of %d bytes, at most %d: leave some out with --only", len(tensors), len(pickle), pickles.MaxBytes)
	}
	a := newArchive(w)
	for _, f := range []struct {
		name string
		b    []byte
	}{{"data.pkl", pickle}, {"byteorder", []byte("little")}} {
		if err := a.file(f.name, uint64(len(f.b)), func(w io.Writer) error { _, err := w.Write(f.b); return err }); err != nil {
			return err
		}
	}
	for i, t := range tensors {
		if err := a.file("data/"+strconv.Itoa(i), t.Bytes(), func(w io.Writer) error { return formats.Stream(ctx, w, t) }); err != nil {
			return err
		}
	}
	if err := a.file("version", 2, func(w io.Writer) error { _, err := io.WriteString(w, "3\n"); return err }); err != nil {
		return err
	}
	if err := a.zip.Close(); err != nil {
		return err
	}
	return a.out.w.Flush()
}

// archive is a zip whose files are stored as they are, each at a multiple of align.
type archive struct {
	zip     *zip.Writer
	out     *counter
	trailer uint64 // bytes that follow the file before
}

func newArchive(w io.Writer) *archive {
	out := &counter{w: bufio.NewWriterSize(w, 64<<10)}
	return &archive{zip: zip.NewWriter(out), out: out}
}

// counter counts what is written.
type counter struct {
	w *bufio.Writer
	n uint64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += uint64(n)
	return n, err
}

// Sizes of the zip's own: the header of a file; what follows its bytes, if it is large enough too.
const (
	localHeader = 30
	trailer     = 16
	trailer64   = 24
	large       = 1<<32 - 1
)

func (a *archive) file(name string, size uint64, fill func(io.Writer) error) error {
	if err := a.zip.Flush(); err != nil {
		return err
	}
	name = folder + name
	at := a.out.n + a.trailer + localHeader + uint64(len(name)) + 4
	pad := (align - at%align) % align
	extra := binary.LittleEndian.AppendUint16([]byte("FB"), uint16(pad)) // as torch calls it
	w, err := a.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store, Extra: append(extra, make([]byte, pad)...)})
	if err != nil {
		return err
	}
	if err := a.zip.Flush(); err != nil {
		return err
	}
	if a.out.n%align != 0 {
		return fmt.Errorf("%s begins at %d, which is no multiple of %d", name, a.out.n, align)
	}
	if a.trailer = trailer; size >= large {
		a.trailer = trailer64
	}
	return fill(w)
}
