package format

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"

	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Kinds of this package's frames. Those before them were a layout's that nothing reads any more.
const (
	kindRegions = wire.FirstCheckpoint + 8
	kindPart    = wire.FirstCheckpoint + 9
)

// MaxParts bounds the parts of one object: those of a node's ranks. maxListed bounds their regions together, each counted for each part that
// refers to it: a small header may not make much work.
const (
	MaxParts  = 1 << 12
	maxListed = 1 << 22
)

// Source is one part to be written: its manifest, and all regions of its rank, in order.
type Source struct {
	Manifest replica.Manifest
	Regions  []replica.Region
}

// Packed is one part within an object.
type Packed struct {
	Manifest replica.Manifest
	Regions  []replica.Region // all of its rank
	Layout   safetensors.Layout
	At       uint64 // where its bytes begin, behind the header
	Prefix   string // of its tensors' names
}

// Object is a file: one part, or the private parts of a node's ranks.
type Object struct {
	Parts []Packed
	Head  uint64 // bytes of length field and header: where the data begins
	Data  uint64 // bytes behind the header
}

// partRecord is how the header holds a part's manifest. The part's regions can be told from those of the rank, which parts of a file may share.
type partRecord struct {
	Manifest replica.Manifest `cbor:"1,keyasint"`
	Regions  uint32           `cbor:"2,keyasint"` // which list
	Own      bool             `cbor:"3,keyasint"` // the manifest had its part's regions
}

// Canonical is the manifest of a frozen part as files have it: whoever writes it, of whichever cluster and for whichever generation, writes
// the same bytes.
func Canonical(m replica.Manifest) replica.Manifest {
	if m.Part.Kind == replica.FrozenPart {
		m.Cluster, m.Era, m.Generation, m.Rank, m.Incarnation, m.Lineage, m.Condemned = replica.ClusterID{}, 0, replica.Generation{}, 0, 0, nil, nil
	}
	return m
}

// NewObject lays parts out behind one another and makes the header of the file. Tensors of several private parts have the part's name before
// their own.
func NewObject(sources []Source) (*Object, []byte, error) {
	if len(sources) == 0 || len(sources) > MaxParts {
		return nil, nil, fmt.Errorf("an object of %d parts, want 1 to %d", len(sources), MaxParts)
	}
	meta := map[string]string{"format": "replicad", "version": fmt.Sprint(Number + 1), "job": sources[0].Manifest.Job.String()}
	var o Object
	var lists [][]replica.Region
	for i, s := range sources {
		s.Manifest = Canonical(s.Manifest)
		list := slices.IndexFunc(lists, func(l []replica.Region) bool { return slices.EqualFunc(l, s.Regions, sameRegion) })
		if list < 0 {
			list = len(lists)
			lists = append(lists, s.Regions)
			text, err := frame(kindRegions, s.Regions)
			if err != nil {
				return nil, nil, err
			}
			meta["regions."+strconv.Itoa(list)] = text
		}
		p, err := o.add(s.Manifest, s.Regions)
		if err != nil {
			return nil, nil, err
		}
		rec := partRecord{p.Manifest, uint32(list), len(p.Manifest.Regions) > 0}
		rec.Manifest.Regions = nil
		text, err := frame(kindPart, &rec)
		if err != nil {
			return nil, nil, err
		}
		meta["part."+strconv.Itoa(i)] = text
		if p.Manifest.Part.Kind != replica.FrozenPart {
			meta["generation"] = p.Manifest.Generation.String()
		}
	}
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	head, err := safetensors.AppendHeader(meta, o.tensors())
	if err != nil {
		return nil, nil, fmt.Errorf("%w; larger chunks make fewer digests (chunk_bytes)", err)
	}
	o.Head = uint64(len(head))
	return &o, head, nil
}

func sameRegion(a, b replica.Region) bool {
	return a.Name == b.Name && a.DType == b.DType && a.Kind == b.Kind && a.Class == b.Class && a.Flags == b.Flags && a.Bytes == b.Bytes && a.Offset == b.Offset && slices.Equal(a.Shape, b.Shape)
}

// add lays one more part out. Its manifest must hash to its root.
func (o *Object) add(m replica.Manifest, regions []replica.Region) (*Packed, error) {
	listed := len(regions)
	for _, p := range o.Parts {
		listed += len(p.Regions)
	}
	if listed > maxListed {
		return nil, fmt.Errorf("%d regions in %d parts of one file, at most %d: pack fewer parts together", listed, len(o.Parts)+1, maxListed)
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	if got := safetensors.Hash(m.RootInput()); got != m.Root {
		return nil, fmt.Errorf("%v: its manifest says root %v and hashes to %v", m.Part, m.Root, got)
	}
	l, err := safetensors.NewLayout(&m, regions)
	if err != nil {
		return nil, err
	}
	if m.Regions != nil && !slices.EqualFunc(m.Regions, (replica.Geometry{Regions: regions}).Of(m.Part.Kind), sameRegion) {
		return nil, fmt.Errorf("%v: its manifest lists other regions than its rank has", m.Part)
	}
	p := Packed{Manifest: m, Regions: regions, Layout: l, At: o.Data}
	if m.Part.Kind == replica.PrivatePart {
		p.Prefix = fmt.Sprintf("private-%d/", m.Part.Index)
	}
	o.Parts = append(o.Parts, p)
	o.Data += l.Size()
	return &o.Parts[len(o.Parts)-1], nil
}

// check tells whether the parts may lie in one file.
func (o *Object) check() error {
	first := o.Parts[0].Manifest
	seen := make(map[replica.Part]bool, len(o.Parts))
	for _, p := range o.Parts {
		m := p.Manifest
		switch {
		case seen[m.Part]:
			return fmt.Errorf("%v is there twice", m.Part)
		case len(o.Parts) > 1 && m.Part.Kind != replica.PrivatePart:
			return fmt.Errorf("%v lies in a file with others: only private parts may", m.Part)
		case m.Job != first.Job || m.Cluster != first.Cluster || m.Generation != first.Generation:
			return fmt.Errorf("%v is of job %v, generation %v; %v beside it of job %v, generation %v", m.Part, m.Job, m.Generation, first.Part, first.Job, first.Generation)
		}
		seen[m.Part] = true
	}
	if n := len(o.tensors()); n > replica.MaxRegions {
		return fmt.Errorf("%d tensors in one file, at most %d: pack fewer parts together", n, replica.MaxRegions)
	}
	return nil
}

// tensors are all of the file, as its header lists them.
func (o *Object) tensors() []safetensors.Tensor {
	var out []safetensors.Tensor
	for _, p := range o.Parts {
		for _, t := range p.Layout.Tensors {
			out = append(out, safetensors.Tensor{Name: p.Prefix + t.Name, DType: t.DType, Shape: t.Shape, Begin: p.At + t.Begin, End: p.At + t.End})
		}
	}
	return out
}

// Size is the whole file's, in bytes.
func (o *Object) Size() uint64 { return o.Head + o.Data }

// Part finds a part.
func (o *Object) Part(p replica.Part) (*Packed, bool) {
	for i := range o.Parts {
		if o.Parts[i].Manifest.Part == p {
			return &o.Parts[i], true
		}
	}
	return nil, false
}

// ParseObject reads the first bytes of a file of so many: length field and header, whole. Manifests hash to their roots, regions to their
// geometry, and the tensors are the ones that they make; whether these are the roots of a generation its index tells.
func ParseObject(head []byte, size uint64) (*Object, error) {
	if len(head) < 8 {
		return nil, corrupt("%d bytes are no header", len(head))
	}
	n, err := safetensors.HeaderLength([8]byte(head[:8]))
	if err != nil {
		return nil, corrupt("%w", err)
	}
	if n != uint64(len(head)-8) || size < uint64(len(head)) {
		return nil, corrupt("header of %d bytes in %d, of a file of %d", n, len(head)-8, size)
	}
	h, err := safetensors.ParseHeader(head[8:], size-uint64(len(head)))
	if err != nil {
		return nil, corrupt("%w", err)
	}
	o, err := fromMetadata(h.Metadata)
	if err != nil {
		return nil, err
	}
	if o.Head = h.Size; o.Size() != size {
		return nil, corrupt("its parts have %d bytes, the file %d", o.Size(), size)
	}
	if err := safetensors.Matches(o.tensors(), h); err != nil {
		return nil, corrupt("%w", err)
	}
	return o, nil
}

// HeadBytes is how long the header of a file is, with its length field, by the first 8 bytes.
func HeadBytes(first [8]byte) (uint64, error) {
	n, err := safetensors.HeaderLength(first)
	if err != nil {
		return 0, corrupt("%w", err)
	}
	return 8 + n, nil
}

func fromMetadata(meta map[string]string) (*Object, error) {
	if meta["format"] != "replicad" {
		return nil, corrupt("its metadata is not replicad's")
	}
	version, err := strconv.Atoi(meta["version"])
	if err == nil && version > Number+1 {
		return nil, fmt.Errorf("%w: files of version %d, this program reads up to %d", ErrNewer, version, Number+1)
	}
	if err != nil || version != Number+1 {
		return nil, corrupt("files of version %.16q", meta["version"])
	}
	var o Object
	lists := make(map[uint32][]replica.Region)
	for i := range MaxParts + 1 {
		text, ok := meta["part."+strconv.Itoa(i)]
		if !ok {
			break
		}
		var rec partRecord
		if err := unframe(kindPart, text, &rec); err != nil {
			return nil, corrupt("part %d: %w", i, err)
		}
		regions, ok := lists[rec.Regions]
		if !ok {
			if err := unframe(kindRegions, meta["regions."+strconv.FormatUint(uint64(rec.Regions), 10)], &regions); err != nil {
				return nil, corrupt("regions of part %d: %w", i, err)
			}
			lists[rec.Regions] = regions
		}
		if rec.Own {
			rec.Manifest.Regions = (replica.Geometry{Regions: regions}).Of(rec.Manifest.Part.Kind)
		}
		if _, err := o.add(rec.Manifest, regions); err != nil {
			return nil, corrupt("%w", err)
		}
	}
	if len(o.Parts) == 0 || len(o.Parts) > MaxParts || meta["job"] != o.Parts[0].Manifest.Job.String() {
		return nil, corrupt("%d parts, of job %.40q", len(o.Parts), meta["job"])
	}
	if err := o.check(); err != nil {
		return nil, corrupt("%w", err)
	}
	return &o, nil
}

// frame writes a value as text: a frame, with its checksum, in base64.
func frame(k wire.Kind, v any) (string, error) {
	b, err := wire.Append(nil, k, v)
	return base64.StdEncoding.EncodeToString(b), err
}

func unframe(k wire.Kind, text string, v any) error {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return err
	}
	return wire.Decode(b, k, v)
}
