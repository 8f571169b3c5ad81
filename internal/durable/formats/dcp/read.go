package dcp

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/internal/durable/formats/pt"
	"github.com/replicad/replicad/replica"
)

// ErrFormat marks a folder that is none of DCP's, or one that lies about what is in it.
var ErrFormat = errors.New("not a folder of torch.distributed.checkpoint that replicad accepts")

func bad(form string, args ...any) error {
	return fmt.Errorf("%w: "+form, append([]any{ErrFormat}, args...)...)
}

// Saved is what .metadata says.
type Saved struct {
	Tensors []Tensor
	Others  []string // names of what is no tensor
	Left    []formats.Left
}

// Tensor is a tensor and the pieces that it lies in.
type Tensor struct {
	Name   string
	DType  replica.DType
	Shape  []uint64
	Pieces []Piece
}

// Piece is where a piece lies.
type Piece struct {
	At, Shape   []uint64
	File        string
	From, Bytes uint64
}

// usualVisits bounds how often values of .metadata are looked at: one record of a pickle may be put into any number of places, two bytes each.
const usualVisits = 16 << 20

// reader reads .metadata within a budget.
type reader struct {
	visits int // that are left
	of     int
}

// visit counts looks at so many values.
func (r *reader) visit(n int) error {
	if r.visits -= n; r.visits < 0 {
		return bad("its records stand for more than %d values: one record is used in very many places", r.of)
	}
	return nil
}

// Parse reads .metadata.
func Parse(b []byte) (*Saved, error) { return parse(b, usualVisits) }

func parse(b []byte, visits int) (*Saved, error) {
	v, err := pickles.Load(b, admitted)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", Metadata, err)
	}
	r := &reader{visits, visits}
	m, err := r.state(v, metadata, "Metadata")
	if err != nil {
		return nil, err
	}
	entries, ok := m["state_dict_metadata"].(*pickles.Dict)
	if !ok {
		return nil, bad("its state_dict_metadata is a %T", m["state_dict_metadata"])
	}
	lies, err := r.storage(m["storage_data"])
	if err != nil {
		return nil, err
	}
	s := &Saved{}
	for i, k := range entries.Keys {
		name, err := nameOf(k)
		if err == nil {
			err = r.visit(1)
		}
		if err != nil {
			return nil, err
		}
		if c, ok := entries.Values[i].(*pickles.Call); ok && c.Class.Name == "BytesStorageMetadata" {
			s.Others = append(s.Others, name)
			continue
		}
		t, err := r.tensor(name, entries.Values[i], lies)
		if refused, ok := errors.AsType[formats.Refused](err); ok {
			s.Left = append(s.Left, formats.Left{Name: name, Why: refused.Why})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %.128q: %w", name, err)
		}
		if s.Tensors = append(s.Tensors, t); len(s.Tensors) > formats.MaxTensors {
			return nil, bad("more than %d tensors", formats.MaxTensors)
		}
	}
	return s, apart(s.Tensors)
}

// admitted are the classes of .metadata, and of what its fields are.
func admitted(c pickles.Class) bool {
	if c.Module == metadata {
		switch c.Name {
		case "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING":
			return true
		}
		return false
	}
	switch c.String() {
	case filesystem + "._StorageInfo", "torch.Size", "torch.serialization._get_layout", "pathlib.PosixPath", "pathlib.WindowsPath", "pathlib._local.PosixPath":
		return true
	}
	return pt.IsType(c)
}

// state is what an object of a class was given, by field.
func (r *reader) state(v any, module, name string) (map[string]any, error) {
	c, ok := v.(*pickles.Call)
	if !ok || c.Class != (pickles.Class{Module: module, Name: name}) {
		return nil, bad("a %T where a %s belongs", v, name)
	}
	d, ok := c.State.(*pickles.Dict)
	if !ok {
		return nil, bad("a %s without fields", name)
	}
	if err := r.visit(len(d.Keys)); err != nil {
		return nil, err
	}
	fields := make(map[string]any, len(d.Keys))
	for i, k := range d.Keys {
		if s, ok := k.(string); ok {
			fields[s] = d.Values[i]
		}
	}
	return fields, nil
}

// maxName bounds a name, in bytes: one long text may be the name of everything.
const maxName = formats.MaxName

func nameOf(v any) (string, error) {
	name, ok := v.(string)
	if !ok || len(name) > maxName {
		return "", bad("a name that is a %T of %d bytes: want a text of at most %d", v, len(name), maxName)
	}
	return name, nil
}

// key of a piece: the tensor's name, and where the piece begins in it.
func key(name string, at []uint64) string { return fmt.Sprint(at) + name }

// storage reads where pieces lie.
func (r *reader) storage(v any) (map[string]Piece, error) {
	d, ok := v.(*pickles.Dict)
	if !ok {
		return nil, bad("its storage_data is a %T", v)
	}
	lies := make(map[string]Piece, len(d.Keys))
	for i, k := range d.Keys {
		index, err := r.state(k, metadata, "MetadataIndex")
		if err != nil {
			return nil, err
		}
		name, err := nameOf(index["fqn"])
		if err != nil {
			return nil, err
		}
		info, err := r.state(d.Values[i], filesystem, "_StorageInfo")
		if err != nil {
			return nil, fmt.Errorf("%.128q: %w", name, err)
		}
		if index["offset"] == nil { // of what is no tensor
			continue
		}
		p, err := lying(info)
		if err == nil {
			p.At, err = pt.Ints(index["offset"])
		}
		if err != nil {
			return nil, fmt.Errorf("%.128q: %w", name, err)
		}
		if _, twice := lies[key(name, p.At)]; twice {
			return nil, bad("the piece of %.128q at %v is there twice", name, p.At)
		}
		lies[key(name, p.At)] = p
	}
	return lies, nil
}

func lying(info map[string]any) (p Piece, err error) {
	if d, ok := info["transform_descriptors"]; ok && d != nil {
		if l, ok := d.(*pickles.List); !ok || len(l.Items) > 0 {
			return p, bad("it went through transforms (compression, encryption): save it without them")
		}
	}
	file, ok := info["relative_path"].(string)
	from, ok2 := info["offset"].(int64)
	bytes, ok3 := info["length"].(int64)
	if !ok || !ok2 || !ok3 || from < 0 || bytes < 0 || strings.ContainsAny(file, `/\`) {
		return p, bad("it lies in %.128q, which is no name of a file of the folder, or at a %T of it, or has a %T of bytes, or fewer than 0", file, info["offset"], info["length"])
	}
	return Piece{File: file, From: uint64(from), Bytes: uint64(bytes)}, nil
}

func (r *reader) tensor(name string, v any, lies map[string]Piece) (t Tensor, err error) {
	m, err := r.state(v, metadata, "TensorStorageMetadata")
	if err != nil {
		return t, err
	}
	if t.Name, t.DType = name, typeOf(m["properties"]); t.DType == 0 {
		return t, formats.Refused{Why: "it is of a type that a generation has no name for"}
	}
	if t.Shape, err = pt.Ints(m["size"]); err != nil {
		return t, bad("%w", err)
	}
	if len(t.Shape) > replica.MaxDims {
		return t, formats.Refused{Why: fmt.Sprintf("%d dimensions, at most %d", len(t.Shape), replica.MaxDims)}
	}
	chunks, ok := m["chunks"].(*pickles.List)
	if !ok {
		return t, bad("its chunks are a %T", m["chunks"])
	}
	for _, c := range chunks.Items {
		fields, err := r.state(c, metadata, "ChunkStorageMetadata")
		if err != nil {
			return t, err
		}
		at, err := pt.Ints(fields["offsets"])
		shape, err2 := pt.Ints(fields["sizes"])
		if err := errors.Join(err, err2); err != nil {
			return t, bad("%w", err)
		}
		p, ok := lies[key(name, at)]
		if !ok {
			return t, bad("its piece at %v lies nowhere", at)
		}
		if p.Shape != nil {
			return t, bad("its piece at %v is listed twice", at)
		}
		p.Shape = shape
		lies[key(name, at)] = p
		t.Pieces = append(t.Pieces, p)
	}
	return t, nil
}

// typeOf is the element type that properties name.
func typeOf(v any) replica.DType {
	c, ok := v.(*pickles.Call)
	if !ok || c.Class.Name != "TensorProperties" {
		return 0
	}
	if s, ok := c.State.(pickles.Tuple); ok && len(s) > 0 {
		return pt.TypeOf(s[0])
	}
	return 0
}

// apart refuses pieces that lie over each other in a file.
func apart(tensors []Tensor) error {
	var list []Piece
	for _, t := range tensors {
		list = append(list, t.Pieces...)
	}
	slices.SortFunc(list, func(a, b Piece) int { return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.From, b.From)) })
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; a.File == b.File && b.From < a.From+a.Bytes {
			return bad("two pieces lie over each other at %d of %.128q", b.From, b.File)
		}
	}
	return nil
}

// ReadFolder lists the tensors of a folder, put together from their pieces; and what .metadata says beside them.
func ReadFolder(f *formats.Folder) (tensors []formats.Tensor, s *Saved, err error) {
	b, err := f.Small(Metadata, pickles.MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	if s, err = Parse(b); err != nil {
		return nil, nil, err
	}
	for _, t := range s.Tensors {
		whole, err := whole(f, t)
		if refused, ok := errors.AsType[formats.Refused](err); ok {
			s.Left = append(s.Left, formats.Left{Name: t.Name, Why: refused.Why})
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %.128q: %w", t.Name, err)
		}
		tensors = append(tensors, whole)
	}
	return tensors, s, nil
}

func whole(f *formats.Folder, t Tensor) (formats.Tensor, error) {
	pieces := make([]formats.Piece, len(t.Pieces))
	for i, p := range t.Pieces {
		var err error
		if pieces[i], err = open(f, t, p); err != nil {
			return formats.Tensor{}, fmt.Errorf("the piece at %v: %w", p.At, err)
		}
	}
	read, err := formats.Whole(t.DType.Size(), t.Shape, pieces)
	return formats.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, ReadAt: read}, err
}

// part reads a part of a file of a folder.
type part struct {
	f    *formats.Folder
	file string
	from int64
}

func (p part) ReadAt(b []byte, off int64) (int, error) {
	if err := p.f.ReadAt(p.file, b, p.from+off); err != nil {
		return 0, err
	}
	return len(b), nil
}

// open finds a piece in its file.
func open(f *formats.Folder, t Tensor, p Piece) (out formats.Piece, err error) {
	o, err := f.Open(p.File)
	if err != nil {
		return out, err
	}
	if p.From > uint64(o.Size) || p.Bytes > uint64(o.Size)-p.From {
		return out, bad("%s has %d bytes, the piece is said to lie at %d with %d: it is cut", p.File, o.Size, p.From, p.Bytes)
	}
	src := io.NewSectionReader(part{f, p.File, int64(p.From)}, 0, int64(p.Bytes))
	piece, err := pt.ReadOne(src, int64(p.Bytes))
	if err != nil {
		return out, fmt.Errorf("%s at %d: %w", p.File, p.From, err)
	}
	if piece.DType != t.DType || !slices.Equal(piece.Shape, p.Shape) {
		return out, bad("%s at %d has a %v%v, %s says %v%v", p.File, p.From, piece.DType, piece.Shape, Metadata, t.DType, p.Shape)
	}
	return formats.Piece{At: p.At, Shape: p.Shape, ReadAt: piece.ReadAt}, nil
}
