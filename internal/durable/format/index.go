package format

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/replicad/replicad/internal/durable/sealed"
	"github.com/replicad/replicad/replica"
)

// Index says what a generation consists of: each part in a file, each tensor in its pieces.
type Index struct {
	Job        string             `json:"job"`
	Run        replica.JobID      `json:"run"`
	Generation replica.Generation `json:"generation"`
	Write      uint64             `json:"write"`
	Files      []File             `json:"files"`
	Parts      []PartAt           `json:"parts"`
	// Tensors are left out where they would not fit: the headers of the files say the same, but for the whole shapes.
	Tensors []Tensor `json:"tensors,omitempty"`
	// Beyond is what a group's layout says of names that are no tensors: of optimizers that lie over ranks by parameter.
	Beyond []Beyond `json:"beyond,omitempty"`
}

// File is one safetensors file.
type File struct {
	Key    string `json:"key"`            // below the run
	Twin   string `json:"twin,omitempty"` // of shared files: the same bytes once more
	Bytes  uint64 `json:"bytes"`
	Header uint64 `json:"header"` // bytes of length field and header
	SHA256 string `json:"sha256"`
	// Sealed is how many bytes lie before what is encrypted, if the file is: Bytes and SHA256 are of the file as it lies there, Header and all that an
	// index says of tensors of what lies in it. 0: it is not.
	Sealed uint64 `json:"sealed,omitempty"`
}

// Plain is how many bytes lie in the file; 0: its sizes fit no file.
func (f File) Plain() uint64 {
	if f.Sealed == 0 {
		return f.Bytes
	}
	n, ok := sealed.PlainSize(f.Bytes, f.Sealed)
	if !ok || f.Sealed > sealed.MaxEnvelope {
		return 0
	}
	return n
}

// PartAt is where a part lies.
type PartAt struct {
	Part       replica.Part   `json:"part"`
	File       int            `json:"file"` // which of Files
	Root       replica.Digest `json:"root"`
	FrozenRoot replica.Digest `json:"frozen_root"` // of the part that it needs beside it; zero: none
	Bytes      uint64         `json:"bytes"`       // of the part in memory, gaps included
	ChunkBytes uint32         `json:"chunk_bytes"`
}

// Tensor is a tensor over all ranks. Without placements nothing is known but its pieces: the program did not say how they belong together.
type Tensor struct {
	Name       string   `json:"name"`            // of its region
	Whole      string   `json:"whole,omitempty"` // the program's own, where that is too long for a region
	DType      string   `json:"dtype"`
	Class      string   `json:"class"`           // window, volatile, frozen, private
	Shape      []uint64 `json:"shape,omitempty"` // the whole tensor's
	Placements []string `json:"placements,omitempty"`
	Mesh       []uint64 `json:"mesh,omitempty"`
	Pieces     []Piece  `json:"pieces"`
}

// Called is the tensor's whole name.
func (t Tensor) Called() string { return cmp.Or(t.Whole, t.Name) }

// Piece is what one group, or one rank, has of a tensor.
type Piece struct {
	Index uint32   `json:"index"`        // the group's number; of private tensors the rank's
	File  int      `json:"file"`         // which of the index's Files
	From  uint64   `json:"from"`         // where its bytes begin in the file
	Bytes uint64   `json:"bytes"`        // of the piece
	Shape []uint64 `json:"shape"`        // of the piece
	At    []uint64 `json:"at,omitempty"` // where it begins in the whole; absent: the piece is the whole, or nobody knows
}

// Beyond is an entry of a group's layout that is no tensor's.
type Beyond struct {
	Group uint32 `json:"group"`
	Name  string `json:"name"`
	Shard Shard  `json:"shard"`
}

var classes = map[replica.Class]string{replica.Window: "window", replica.Volatile: "volatile", replica.Frozen: "frozen"}

// Written is a file and what its header says.
type Written struct {
	File   File
	Object *Object
	Layout []byte // what the layout region of a frozen part in it holds, where who wrote it says so; nil: it is read
}

// NewIndex lists files with their parts and tensors. layouts are what the groups' replicad.layout regions hold, by group; a group without one
// says nothing of its tensors but that they are there.
func NewIndex(job string, run replica.JobID, g replica.Generation, write uint64, files []Written, layouts map[uint32]map[string]Shard) *Index {
	x := &Index{Job: job, Run: run, Generation: g, Write: write}
	type id struct {
		private bool
		name    string
	}
	at := make(map[id]int)
	met := make(map[uint32]map[string]bool)
	for i, w := range files {
		x.Files = append(x.Files, w.File)
		for _, p := range w.Object.Parts {
			m := p.Manifest
			x.Parts = append(x.Parts, PartAt{m.Part, i, m.Root, m.FrozenRoot, m.Bytes, m.ChunkBytes})
			private := m.Part.Kind == replica.PrivatePart
			for j, t := range p.Layout.Tensors {
				class := classes[p.Layout.Regions[j].Class]
				if private {
					class = "private"
				}
				key := id{private, t.Name}
				n, ok := at[key]
				if !ok {
					n = len(x.Tensors)
					at[key] = n
					x.Tensors = append(x.Tensors, Tensor{Name: t.Name, DType: t.DType.String(), Class: class})
				}
				piece := Piece{Index: m.Part.Index, File: i, From: w.Object.Head + p.At + t.Begin, Bytes: t.End - t.Begin, Shape: append([]uint64{}, t.Shape...)}
				s, ok := layouts[m.Part.Index][t.Name]
				if ok && s.Whole != "" {
					x.Tensors[n].Whole = s.Whole
				}
				if ok && s.says() && !private {
					x.Tensors[n].Shape, x.Tensors[n].Placements, x.Tensors[n].Mesh, piece.At = s.Shape, s.Placements, s.Mesh, s.At
					if met[m.Part.Index] == nil {
						met[m.Part.Index] = make(map[string]bool)
					}
					met[m.Part.Index][t.Name] = true
				}
				x.Tensors[n].Pieces = append(x.Tensors[n].Pieces, piece)
			}
		}
	}
	for _, group := range slices.Sorted(maps.Keys(layouts)) {
		for _, name := range slices.Sorted(maps.Keys(layouts[group])) {
			if !met[group][name] && layouts[group][name].says() {
				x.Beyond = append(x.Beyond, Beyond{group, name, layouts[group][name]})
			}
		}
	}
	for i := range x.Tensors {
		x.Tensors[i].whole()
	}
	slices.SortFunc(x.Tensors, func(a, b Tensor) int {
		if p, q := a.Class == "private", b.Class == "private"; p != q {
			return map[bool]int{false: -1, true: 1}[p]
		}
		return strings.Compare(a.Name, b.Name)
	})
	return x
}

// whole fills in the shape of a tensor that one group alone has, which is the piece's.
func (t *Tensor) whole() {
	if t.Shape == nil && len(t.Pieces) == 1 {
		t.Shape = t.Pieces[0].Shape
	}
}

// Seal writes the index; without its tensors where they make it too large.
func (x *Index) Seal() ([]byte, error) {
	b, err := Seal("index", x)
	if err != nil && len(x.Tensors) > 0 {
		bare := *x
		bare.Tensors, bare.Beyond = nil, nil
		return Seal("index", &bare)
	}
	return b, err
}

// CheckIndex tells whether bytes, as they lie in a store, are the index that a COMMIT names.
func CheckIndex(b []byte, c *Commit) error {
	if uint64(len(b)) != c.Index.Bytes || Sum(b) != c.Index.SHA256 {
		return corrupt("index: %d bytes, or their SHA-256, are not what COMMIT names", len(b))
	}
	return nil
}

// ParseIndex reads the index that a COMMIT names. open decrypts one that is encrypted.
func ParseIndex(b []byte, c *Commit, open func(b []byte) ([]byte, error)) (*Index, error) {
	if err := CheckIndex(b, c); err != nil {
		return nil, err
	}
	if c.Sealed != nil {
		var err error
		if b, err = open(b); err != nil {
			return nil, err
		}
	}
	var x Index
	if err := unseal("index", b, &x); err != nil {
		return nil, err
	}
	if x.Job != c.Job || x.Run != c.Run || x.Generation != c.Generation || x.Write != c.Write {
		return nil, corrupt("index: it is of job %s, run %v, generation %v, write %d", x.Job, x.Run, x.Generation, x.Write)
	}
	if err := x.check(c); err != nil {
		return nil, corrupt("index: %w", err)
	}
	return &x, nil
}

func (x *Index) check(c *Commit) error {
	if err := x.checkFiles(c); err != nil {
		return err
	}
	if c.Sealed != nil && !slices.Equal(x.Files, c.Sealed.Files) {
		return errors.New("its files are not those that COMMIT lists")
	}
	have := make(map[replica.Part]int, len(x.Parts))
	frozen := make(map[replica.Digest]bool)
	for i, p := range x.Parts {
		if _, twice := have[p.Part]; twice || p.Part.Kind > replica.FrozenPart || p.File < 0 || p.File >= len(x.Files) || p.ChunkBytes == 0 {
			return fmt.Errorf("%v is there twice, or in file %d of %d", p.Part, p.File, len(x.Files))
		}
		shared := ParseName(x.Files[p.File].Key)
		if (shared.Kind == SharedKind) != (p.Part.Kind == replica.FrozenPart) || shared.Kind == SharedKind && (shared.Root != p.Root || shared.Group != p.Part.Index) {
			return fmt.Errorf("%v lies in %s", p.Part, x.Files[p.File].Key)
		}
		have[p.Part] = i
		frozen[p.Root] = frozen[p.Root] || p.Part.Kind == replica.FrozenPart
	}
	for rank, group := range c.Layout.Groups {
		for _, p := range []replica.Part{replica.OfGroup(group), replica.OfRank(replica.Rank(rank))} {
			if _, ok := have[p]; !ok {
				return fmt.Errorf("it has no %v", p)
			}
		}
	}
	for _, p := range x.Parts {
		if !p.FrozenRoot.IsZero() && !frozen[p.FrozenRoot] {
			return fmt.Errorf("%v needs the frozen part %v, which it does not have", p.Part, p.FrozenRoot)
		}
	}
	room := make([]uint64, len(x.Files)) // no two tensors share bytes
	for i, f := range x.Files {
		room[i] = f.Plain() - f.Header
	}
	for _, t := range x.Tensors {
		if err := x.checkTensor(t, room); err != nil {
			return fmt.Errorf("tensor %.128q: %w", t.Name, err)
		}
	}
	return nil
}

func (x *Index) checkFiles(c *Commit) error {
	var sum uint64
	var shared []string
	seen := make(map[string]bool, len(x.Files))
	for _, f := range x.Files {
		n := ParseName(f.Key)
		own := n.Kind == ShardKind && n.Generation == x.Generation && n.Write == x.Write && f.Twin == ""
		if n.Kind == SharedKind {
			twin := n
			twin.Twin = 'b'
			own = n.Twin == 'a' && f.Twin == twin.String()
			shared = append(shared, f.Key, f.Twin)
		}
		if !own || seen[f.Key] || !isHex(f.SHA256, 64) || f.Header < 8 || f.Header > f.Plain() || f.Bytes > maxSpan<<10 || (f.Sealed == 0) != (c.Sealed == nil) {
			return fmt.Errorf("file %.80q (twin %.80q) of %d bytes, header %d, does not belong to write %d of %v", f.Key, f.Twin, f.Bytes, f.Header, x.Write, x.Generation)
		}
		seen[f.Key] = true
		sum += f.Bytes
	}
	if sum != c.Bytes || len(x.Files) != c.Files || !slices.Equal(shared, c.Frozen) {
		return fmt.Errorf("%d files of %d bytes, %d of them shared; COMMIT says %d, %d, %d", len(x.Files), sum, len(shared)/2, c.Files, c.Bytes, len(c.Frozen)/2)
	}
	return nil
}

// checkTensor takes what the pieces have from the room of their files.
func (x *Index) checkTensor(t Tensor, room []uint64) error {
	dtype, err := replica.ParseDType(t.DType)
	if err != nil {
		return err
	}
	if len(t.Whole) > MaxName || !utf8.ValidString(t.Whole) {
		return fmt.Errorf("it is called %.128q, of %d bytes: at most %d of UTF-8", t.Whole, len(t.Whole), MaxName)
	}
	if err := t.checkWhole(dtype); err != nil {
		return err
	}
	seen := make(map[uint32]bool, len(t.Pieces))
	for _, p := range t.Pieces {
		if seen[p.Index] {
			return fmt.Errorf("two pieces of %d", p.Index)
		}
		seen[p.Index] = true
		n, ok := dtype.Size(), true
		for _, d := range p.Shape {
			if ok = ok && (d == 0 || n <= maxSpan<<20/d); ok {
				n *= d
			}
		}
		if !ok || n != p.Bytes || p.File < 0 || p.File >= len(x.Files) || len(p.Shape) > replica.MaxDims {
			return fmt.Errorf("a piece of %d bytes, shape %v, in file %d", p.Bytes, p.Shape, p.File)
		}
		if f := x.Files[p.File]; p.From < f.Header || p.From > f.Plain() || p.Bytes > f.Plain()-p.From {
			return fmt.Errorf("a piece at %d of %d bytes, in a file of %d", p.From, p.Bytes, f.Plain())
		}
		if p.Bytes > room[p.File] {
			return fmt.Errorf("a piece of %d bytes, where other tensors leave %d of file %d", p.Bytes, room[p.File], p.File)
		}
		room[p.File] -= p.Bytes
		if len(p.At) > 2*replica.MaxDims {
			return fmt.Errorf("a piece that begins at %v", p.At)
		}
	}
	return nil
}

// checkWhole tells whether the whole tensor can be of its pieces: each rank of the mesh has as much as one of them at most.
func (t Tensor) checkWhole(dtype replica.DType) error {
	if len(t.Shape) > 2*replica.MaxDims || len(t.Placements) > 2*replica.MaxDims || len(t.Mesh) > 2*replica.MaxDims {
		return fmt.Errorf("shape %v, placements %.200q, mesh %v: at most %d of each", t.Shape, t.Placements, t.Mesh, 2*replica.MaxDims)
	}
	if t.Shape == nil || slices.Contains(t.Shape, 0) {
		return nil
	}
	var have uint64
	for _, p := range t.Pieces {
		have = min(have+p.Bytes, maxSpan<<10)
	}
	ranks := uint64(1)
	for _, d := range t.Mesh {
		ranks *= min(max(d, 1), replica.MaxRanks)
		ranks = min(ranks, replica.MaxRanks)
	}
	most := min(have, maxSpan<<3) * ranks // 2^63 at most
	n := dtype.Size()
	for _, d := range t.Shape {
		if d > most/n {
			return fmt.Errorf("shape %v of %v over a mesh of %v, whose pieces have %d bytes", t.Shape, dtype, t.Mesh, have)
		}
		n *= d
	}
	return nil
}

// Part finds a part.
func (x *Index) Part(p replica.Part) (PartAt, bool) {
	i := slices.IndexFunc(x.Parts, func(a PartAt) bool { return a.Part == p })
	if i < 0 {
		return PartAt{}, false
	}
	return x.Parts[i], true
}
