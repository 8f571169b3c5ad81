package pt

import (
	"archive/zip"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/pickles"
	"github.com/replicad/replicad/replica"
)

// ErrFormat marks a file that is none of torch.save's, or one that lies about what is in it.
var ErrFormat = errors.New("not a file of torch.save's that replicad accepts")

func bad(form string, args ...any) error {
	return fmt.Errorf("%w: "+form, append([]any{ErrFormat}, args...)...)
}

// Magic is how such a file begins.
const Magic = "PK\x03\x04"

// oldMagic is the number that a file from before torch 1.6 begins with, in whatever protocol.
const oldMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

// HeadBytes is how much of a file IsOld looks at.
const HeadBytes = 32

// IsOld tells whether a file that begins so is one from before torch 1.6.
func IsOld(head []byte) bool {
	head = head[:min(len(head), HeadBytes)]
	return len(head) > 0 && head[0] == 0x80 && bytes.Contains(head, []byte(oldMagic))
}

// Saved is what a file has: tensors by the path of their keys, and the paths of what is no tensor.
type Saved struct {
	Tensors []formats.Tensor
	Others  []string
	Left    []formats.Left // tensors that no generation can hold
	Opaque  []Opaque       // objects of classes that are not tensors': nothing of them was executed, and what is in them is left out
}

// Opaque is an object of a class.
type Opaque struct {
	Name  string `json:"name"`
	Class string `json:"class"`
}

// limits of what is read.
type limits struct {
	directory int // bytes of a zip that say what is in it
	visits    int // values that a saved object consists of
}

var usual = limits{directory: 128 << 20, visits: 4 << 20}

// budget reads so many bytes at most.
type budget struct {
	io.ReaderAt
	left, of int
}

func (b *budget) ReadAt(p []byte, off int64) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, fmt.Errorf("its list of files has more than %d bytes", b.of)
	}
	return b.ReaderAt.ReadAt(p, off)
}

// reader is a file of torch.save's.
type reader struct {
	src      io.ReaderAt
	size     int64
	folder   string // what all names of a zip begin with
	files    map[string]*zip.File
	locate   func(key string) (at, size int64, err error) // of a storage
	storages map[string]*storage
	orders   formats.Orders
	visits   int // how many more values may be looked at
}

// storage is where a tensor's bytes lie.
type storage struct {
	key      string
	class    pickles.Class
	elements uint64
	at, size int64
}

// Read reads what lies in a file of so many bytes. Tensors are read from src when they are asked for.
func Read(src io.ReaderAt, size int64) (*Saved, error) { return read(src, size, usual) }

func read(src io.ReaderAt, size int64, most limits) (*Saved, error) {
	begin := open
	if head := make([]byte, min(max(size, 0), HeadBytes)); readAt(src, head, 0) == nil && IsOld(head) {
		begin = openOld
	}
	v, r, err := begin(src, size, most)
	if err != nil {
		return nil, err
	}
	s := &Saved{}
	if err := r.flatten(s, "", v, 0); err != nil {
		return nil, err
	}
	if err := r.apart(); err != nil {
		return nil, err
	}
	return s, formats.Unique(s.Tensors)
}

// ReadOne reads a file that has one tensor. formats.Refused: it is none that a generation can hold.
func ReadOne(src io.ReaderAt, size int64) (t formats.Tensor, err error) {
	v, r, err := open(src, size, usual)
	if err != nil {
		return t, err
	}
	c, ok := v.(*pickles.Call)
	if !ok || !rebuilds(c) {
		return t, bad("a %T where a tensor belongs", v)
	}
	return r.tensor(c)
}

func open(src io.ReaderAt, size int64, most limits) (v any, r *reader, err error) {
	z, err := zip.NewReader(&budget{src, most.directory, most.directory}, size)
	if err != nil {
		return nil, nil, bad("%w", err)
	}
	r = &reader{src: src, size: size, visits: most.visits, files: make(map[string]*zip.File, len(z.File)), storages: make(map[string]*storage)}
	r.locate = func(key string) (at, size int64, err error) { return r.find("data/" + key) }
	for _, f := range z.File {
		if r.files[f.Name] != nil {
			return nil, nil, bad("it has two files called %.128q", f.Name)
		}
		r.files[f.Name] = f
		if dir, name := path.Split(f.Name); name == "data.pkl" && strings.Count(dir, "/") == 1 {
			r.folder = dir
		}
	}
	if r.files[r.folder+"constants.pkl"] != nil {
		return nil, nil, bad("it is a TorchScript program, whose code would have to run: save its state_dict() with torch.save")
	}
	if order, err := r.read("byteorder", 16); err == nil && string(order) != "little" {
		return nil, nil, bad("its numbers are %.16q-endian", order)
	}
	pickle, err := r.read("data.pkl", pickles.MaxBytes)
	if err != nil {
		return nil, nil, err
	}
	v, err = pickles.Load(pickle, pickles.Any)
	return v, r, err
}

// rebuilds tells whether a call makes a tensor.
func rebuilds(c *pickles.Call) bool {
	return (c.Class.Module == "torch._utils" || c.Class.Module == "torch._tensor") && strings.HasPrefix(c.Class.Name, "_rebuild")
}

// find is where a file of the zip lies.
func (r *reader) find(name string) (at, size int64, err error) {
	f := r.files[r.folder+name]
	if f == nil || r.folder == "" {
		return 0, 0, bad("it has no file %.128q", name)
	}
	if f.Method != zip.Store || f.Flags&1 != 0 || f.CompressedSize64 != f.UncompressedSize64 {
		return 0, 0, bad("%.128q in it is compressed or encrypted, which torch.save does not do: unpack it, and zip it without compression (zip -0)", name)
	}
	if at, err = f.DataOffset(); err != nil {
		return 0, 0, bad("%.128q: %w", name, err)
	}
	if at > r.size || f.UncompressedSize64 > uint64(r.size-at) {
		return 0, 0, bad("%.128q at %d has %d bytes, the file ends at %d: it is cut", name, at, f.UncompressedSize64, r.size)
	}
	return at, int64(f.UncompressedSize64), nil
}

// read reads a small file of the zip.
func (r *reader) read(name string, most int64) ([]byte, error) {
	at, size, err := r.find(name)
	if err != nil {
		return nil, err
	}
	if size > most {
		return nil, bad("%.128q has %d bytes, at most %d", name, size, most)
	}
	b := make([]byte, size)
	return b, readAt(r.src, b, at)
}

func readAt(src io.ReaderAt, b []byte, at int64) error {
	if n, err := src.ReadAt(b, at); n < len(b) {
		return fmt.Errorf("%d bytes at %d: %w", len(b), at, err)
	}
	return nil
}

// Values are never printed but by their types: one may hold itself, or a million others.

// Bounds of what a saved object may consist of.
const (
	maxDeep   = 32
	maxPath   = formats.MaxName // bytes of the keys that lead to a value: one long key may be used again and again
	maxOthers = 1 << 20         // values that are no tensors, and tensors that are left out
)

// flatten lists the tensors of dicts and lists below a path.
func (r *reader) flatten(s *Saved, at string, v any, deep int) error {
	if len(at) > maxPath {
		return bad("the keys %.128q... have %d bytes together, at most %d", at, len(at), maxPath)
	}
	if r.visits--; deep > maxDeep || r.visits < 0 {
		return bad("%.128q lies %d deep, or in too many values: it refers to itself", at, deep)
	}
	under := func(key string) string {
		if at == "" {
			return key
		}
		return at + "." + key
	}
	switch o := v.(type) {
	case *pickles.Dict:
		for i, k := range o.Keys {
			key, ok := keyText(k)
			if !ok {
				s.Left = append(s.Left, formats.Left{Name: under("?"), Why: fmt.Sprintf("what is in it has a %T for a key: want texts or numbers", k)})
				continue
			}
			if err := r.flatten(s, under(key), o.Values[i], deep+1); err != nil {
				return err
			}
		}
		return nil
	case *pickles.List:
		return r.each(s, o.Items, under, deep)
	case pickles.Tuple:
		return r.each(s, o, under, deep)
	case *pickles.Call:
		if !rebuilds(o) {
			if !plain[o.Class.String()] {
				s.Opaque = append(s.Opaque, Opaque{at, o.Class.String()})
				return s.bounded()
			}
			break
		}
		t, err := r.tensor(o)
		if refused, ok := errors.AsType[formats.Refused](err); ok {
			s.Left = append(s.Left, formats.Left{Name: at, Why: refused.Why})
			return s.bounded()
		}
		if err != nil {
			return fmt.Errorf("%.128q: %w", at, err)
		}
		if t.Name = at; len(s.Tensors) == formats.MaxTensors {
			return bad("more than %d tensors", formats.MaxTensors)
		}
		s.Tensors = append(s.Tensors, t)
		return nil
	}
	s.Others = append(s.Others, at)
	return s.bounded()
}

// bounded refuses very many values that are no tensors.
func (s *Saved) bounded() error {
	if len(s.Others)+len(s.Left)+len(s.Opaque) > maxOthers {
		return bad("more than %d values that are no tensors", maxOthers)
	}
	return nil
}

// plain are classes of values, as texts and numbers are.
var plain = map[string]bool{"torch.Size": true, "torch.device": true, "builtins.set": true, "builtins.frozenset": true, "__builtin__.set": true}

func (r *reader) each(s *Saved, list []any, under func(string) string, deep int) error {
	for i, v := range list {
		if err := r.flatten(s, under(strconv.Itoa(i)), v, deep+1); err != nil {
			return err
		}
	}
	return nil
}

func keyText(k any) (string, bool) {
	switch k := k.(type) {
	case string:
		return k, true
	case int64:
		return strconv.FormatInt(k, 10), true
	}
	return "", false
}

func refused(form string, args ...any) error { return formats.Refused{Why: fmt.Sprintf(form, args...)} }

// subclasses are those of tensors that are nothing more.
var subclasses = map[string]bool{"torch.nn.parameter.Parameter": true, "torch.nn.parameter.Buffer": true, "torch.Tensor": true, "torch._tensor.Tensor": true}

// bare is the call that makes the tensor within a parameter, or a buffer.
func bare(c *pickles.Call) (*pickles.Call, error) {
	switch {
	case (c.Class.Name == "_rebuild_parameter" || c.Class.Name == "_rebuild_parameter_with_state") && len(c.Args) > 0:
		inner, ok := c.Args[0].(*pickles.Call)
		if !ok {
			return nil, bad("a parameter of a %T", c.Args[0])
		}
		return inner, nil
	case c.Class.Name == "_rebuild_from_type_v2" && len(c.Args) >= 3:
		function, ok := c.Args[0].(pickles.Class)
		class, ok2 := c.Args[1].(pickles.Class)
		args, ok3 := c.Args[2].(pickles.Tuple)
		if !ok || !ok2 || !ok3 {
			return nil, bad("a tensor of a %T, a %T and a %T", c.Args[0], c.Args[1], c.Args[2])
		}
		if !subclasses[class.String()] {
			return nil, refused("a tensor of class %.128q, whose bytes may say something else than its values", class.String())
		}
		return &pickles.Call{Class: function, Args: args}, nil
	}
	return c, nil
}

// tensor is what a call would have made.
func (r *reader) tensor(c *pickles.Call) (t formats.Tensor, err error) {
	for range 2 { // a parameter of a type
		if c, err = bare(c); err != nil {
			return t, err
		}
	}
	least := map[string]int{"_rebuild_tensor": 4, "_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7}[c.Class.Name]
	if least == 0 {
		return t, refused("%.128q makes no tensor whose bytes are its values (sparse, quantised and nested ones are such)", c.Class.String())
	}
	if len(c.Args) < least {
		return t, bad("%v with %d arguments makes no tensor", c.Class, len(c.Args))
	}
	v3 := least == 7
	if least > 4 && flags(c.Args[6:], v3) {
		return t, refused("a view with flags (conjugate or negative), whose bytes are not its values: call .resolve_conj().resolve_neg() before it is saved")
	}
	ref, ok := c.Args[0].(pickles.Ref)
	if !ok {
		return t, bad("a tensor of a %T, not of a storage", c.Args[0])
	}
	st, err := r.storage(ref)
	if err != nil {
		return t, err
	}
	var class any = st.class
	if t.DType = storageOf(st.class); v3 {
		class, t.DType = c.Args[6], TypeOf(c.Args[6])
	}
	if t.DType == 0 {
		return t, refused("a tensor of type %.64v, which a generation has no name for", class)
	}
	skip, ok := c.Args[1].(int64)
	shape, err := Ints(c.Args[2])
	steps, err2 := Ints(c.Args[3])
	if err := errors.Join(err, err2); err != nil || !ok || skip < 0 {
		return t, bad("a tensor at a %T of its storage, with a shape of a %T and strides of a %T: %w", c.Args[1], c.Args[2], c.Args[3], err)
	}
	if len(shape) > replica.MaxDims {
		return t, refused("%d dimensions, at most %d", len(shape), replica.MaxDims)
	}
	return r.placed(t.DType, shape, steps, uint64(skip), st)
}

// placed is a tensor of a type that lies in a storage.
func (r *reader) placed(dtype replica.DType, shape, steps []uint64, skip uint64, st *storage) (t formats.Tensor, err error) {
	size := dtype.Size()
	n, ok := formats.Size(dtype, shape)
	reach, err := formats.Reach(size, shape, steps)
	if !ok || err != nil || skip > math.MaxInt64/16 || skip*size+reach > uint64(st.size) && n > 0 {
		return t, bad("a tensor of shape %v with strides %v at %d of its storage, which has %d bytes", shape, steps, skip, st.size)
	}
	if n > reach && n > smallest {
		return t, refused("a tensor of shape %v with strides %v (expanded) has %d bytes and %d in its file: call .contiguous() before it is saved", shape, steps, n, reach)
	}
	src, from := r.src, st.at+int64(skip*size) // not r: a folder has many files
	t = formats.Tensor{DType: dtype, Shape: shape, ReadAt: func(p []byte, off uint64) error { return readAt(src, p, from+int64(off)) }}
	if !contiguous(shape, steps) {
		t.ReadAt = r.orders.Read(size, shape, steps, t.ReadAt)
	}
	return t, nil
}

// smallest is how many bytes an expanded tensor may have that has fewer in its file: what a small file makes must be small.
const smallest = 64 << 10

// storage is what a reference names: ("storage", class, key, location, elements), in the older format with a view behind it.
func (r *reader) storage(ref pickles.Ref) (*storage, error) {
	class, key, n, err := named(ref)
	if err != nil {
		return nil, err
	}
	if st := r.storages[key]; st != nil {
		if st.class != class || st.elements != n {
			return nil, bad("storage %.40q is of two types or sizes", key)
		}
		return st, nil
	}
	at, have, err := r.locate(key)
	if err != nil {
		return nil, err
	}
	if size := elementSize(class); n > math.MaxInt64/16 || n*size != uint64(have) {
		return nil, bad("storage %.40q has %d bytes, %d elements of %d are said to be there", key, have, n, size)
	}
	st := &storage{key, class, n, at, have}
	r.storages[key] = st
	return st, nil
}

// named is what a reference to a storage says.
func named(ref pickles.Ref) (class pickles.Class, key string, elements uint64, err error) {
	id, ok := ref.ID.(pickles.Tuple)
	if !ok || len(id) != 5 && len(id) != 6 || id[0] != "storage" {
		return class, "", 0, bad("a reference that names no storage")
	}
	if len(id) == 6 && id[5] != nil {
		return class, "", 0, refused("its storage is a view of another, as torch before 0.4 saved them")
	}
	class, ok = id[1].(pickles.Class)
	key, ok2 := id[2].(string)
	n, ok3 := id[4].(int64)
	if !ok || !ok2 || !ok3 || n < 0 {
		return class, "", 0, bad("a storage of a %T, with a key that is a %T and elements that are a %T, or fewer than 0", id[1], id[2], id[4])
	}
	if elementSize(class) == 0 {
		return class, "", 0, refused("its storage is a %.128q, which none of torch's types have", class.String())
	}
	return class, key, uint64(n), nil
}

// apart refuses storages that lie over each other.
func (r *reader) apart() error {
	var list []*storage
	for _, st := range r.storages {
		if st.size > 0 {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b *storage) int { return cmp.Compare(a.at, b.at) })
	for i := 1; i < len(list); i++ {
		if a, b := list[i-1], list[i]; b.at < a.at+a.size {
			return bad("storages %.40q and %.40q lie over each other", a.key, b.key)
		}
	}
	return nil
}

// maxDims is how many dimensions torch has.
const maxDims = 64

// Ints reads a tuple, or a torch.Size, of numbers that are not negative.
func Ints(v any) ([]uint64, error) {
	if c, ok := v.(*pickles.Call); ok && c.Class == (pickles.Class{Module: "torch", Name: "Size"}) && len(c.Args) == 1 {
		v = c.Args[0]
	}
	items, ok := v.(pickles.Tuple)
	if l, isList := v.(*pickles.List); isList {
		items, ok = l.Items, true
	}
	if !ok || len(items) > maxDims {
		return nil, fmt.Errorf("a %T of %d where at most %d numbers belong", v, len(items), maxDims)
	}
	list := make([]uint64, len(items))
	for i, x := range items {
		n, ok := x.(int64)
		if !ok || n < 0 {
			return nil, fmt.Errorf("a %T, or less than 0, where a number belongs", x)
		}
		list[i] = uint64(n)
	}
	return list, nil
}

// contiguous tells whether rows follow each other. The step of a dimension of one says nothing, nor do any where nothing is there.
func contiguous(shape, steps []uint64) bool {
	if len(shape) != len(steps) {
		return false
	}
	if slices.Contains(shape, 0) {
		return true
	}
	for i, want := range strides(shape) {
		if shape[i] != 1 && steps[i] != want {
			return false
		}
	}
	return true
}

// flags tells whether the last arguments of a tensor say more of it than its bytes: a dict of a view's flags. Of v3 the type comes before it.
func flags(more []any, v3 bool) bool {
	if v3 {
		more = more[1:]
	}
	for _, m := range more {
		if d, is := m.(*pickles.Dict); m != nil && (!is || len(d.Keys) > 0) {
			return true
		}
	}
	return false
}
