package dcp

import (
	"context"
	"fmt"
	"io"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/internal/durable/formats/pt"
)

// Names in a folder.
const (
	Metadata = ".metadata"
	data     = "__0_0.distcp"
)

// The modules that have the classes of .metadata.
const (
	metadata   = "torch.distributed.checkpoint.metadata"
	filesystem = "torch.distributed.checkpoint.filesystem"
)

// WriteFolder writes tensors into a folder that is there, each as one piece. .metadata comes last.
func WriteFolder(ctx context.Context, dir string, tensors []formats.Tensor) error {
	var s Saved
	err := formats.WriteFile(dir, data, func(w io.Writer) error {
		at := counter{w: w}
		for _, t := range tensors {
			p := Piece{At: make([]uint64, len(t.Shape)), Shape: t.Shape, File: data, From: at.n}
			if err := pt.WriteOne(ctx, &at, t); err != nil {
				return err
			}
			p.Bytes = at.n - p.From
			s.Tensors = append(s.Tensors, Tensor{t.Name, t.DType, t.Shape, []Piece{p}})
		}
		return nil
	})
	if err != nil {
		return err
	}
	b := s.describe()
	if len(b) > pickles.MaxBytes {
		return fmt.Errorf("%d tensors take a %s of %d bytes, at most %d: leave some out with --only", len(tensors), Metadata, len(b), pickles.MaxBytes)
	}
	return formats.WriteFile(dir, Metadata, func(w io.Writer) error { _, err := w.Write(b); return err })
}

type counter struct {
	w io.Writer
	n uint64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += uint64(n)
	return n, err
}

// scribe writes .metadata.
type scribe struct{ *pickles.Writer }

// describe is .metadata.
func (s *Saved) describe() []byte {
	p := scribe{pickles.NewWriter()}
	p.object(metadata, "Metadata", "state_dict_metadata", func() {
		p.Dict(func() {
			for _, t := range s.Tensors {
				p.Name(t.Name)
				p.tensor(t)
			}
		})
	}, "planner_data", func() { // where each name lies in the state dict
		p.Dict(func() {
			for _, t := range s.Tensors {
				p.Name(t.Name)
				p.Tuple(func() { p.Name(t.Name) })
			}
		})
	}, "storage_data", func() {
		p.Dict(func() {
			for _, t := range s.Tensors {
				for i, x := range t.Pieces {
					p.object(metadata, "MetadataIndex", "fqn", t.Name, "offset", x.At, "index", uint64(i))
					p.object(filesystem, "_StorageInfo", "relative_path", x.File, "offset", x.From, "length", x.Bytes)
				}
			}
		})
	}, "storage_meta", p.None)
	return p.Bytes()
}

// object puts an object of these fields: names and values by turns.
func (p scribe) object(module, class string, fields ...any) {
	p.Object(module, class, func() {
		p.Dict(func() {
			for i := 0; i < len(fields); i += 2 {
				p.Name(fields[i].(string))
				switch v := fields[i+1].(type) {
				case string:
					p.Name(v)
				case uint64:
					p.Int(v)
				case []uint64:
					p.Call("torch", "Size", func() { p.Ints(v) })
				case func():
					v()
				}
			}
		})
	})
}

func (p scribe) tensor(t Tensor) {
	p.object(metadata, "TensorStorageMetadata", "properties", func() { p.properties(t) }, "size", t.Shape, "chunks", func() {
		p.List(func() {
			for _, x := range t.Pieces {
				p.object(metadata, "ChunkStorageMetadata", "offsets", x.At, "sizes", x.Shape)
			}
		})
	})
}

// properties are the type, and what is the same for every tensor that is read: its layout, that it asks for no gradient, its order of dimensions,
// and that its memory is not pinned.
func (p scribe) properties(t Tensor) {
	p.Object(metadata, "TensorProperties", func() {
		p.Tuple(func() {
			p.Class("torch", pt.TypeName(t.DType))
			p.Call("torch.serialization", "_get_layout", func() { p.Name("torch.strided") })
			p.Bool(false)
			p.Call(metadata, "_MEM_FORMAT_ENCODING", func() { p.Int(0) })
			p.Bool(false)
		})
	})
}
