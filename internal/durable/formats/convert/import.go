package convert

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/replica"
)

// Into is where an import goes.
type Into struct {
	Job   string
	Step  replica.Step
	Owner uint32
	Only  []string // words and patterns that all must fit: a tensor's name in the file, or the one that it gets
	Map   []Rename // nil: a model's own names get the name that a session gives its only model
	Moved Moved

	perGroup int // tensors; 0: as ever
}

// Imported is what came of an import.
type Imported struct {
	Done
	Format     string             `json:"format"`
	Job        string             `json:"job"`
	Run        string             `json:"run"`
	Generation replica.Generation `json:"generation"`
}

// Import brings what lies at a path into a catalog, as a generation of a new run: of one rank, or of one for so many tensors as a part of a job has.
func Import(ctx context.Context, path string, cat *catalog.Catalog, into Into) (d Imported, err error) {
	s, err := open(path)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, s.folder.Close()) }()
	d.Format, d.Job, d.Generation = s.format, into.Job, replica.Generation{Epoch: 1, Step: into.Step}
	if err := s.rename(into.Map, into.Only, &d.Done); err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	if err := fresh(ctx, cat, into.Job); err != nil {
		return d, err
	}
	into.Moved.counted(s.tensors, 2) // for the digests, and to be written
	g := &whole{generation: d.Generation, left: len(s.left) + len(s.opaque)}
	parts := split(s.tensors, cmp.Or(into.perGroup, perGroup), perNames)
	for i, tensors := range parts {
		one, err := newSealed(ctx, i, tensors, s.layout(i, tensors, parts), d.Generation)
		if err != nil {
			return d, fmt.Errorf("%s: %w", path, err)
		}
		g.groups = append(g.groups, one)
	}
	from := fmt.Sprintf("%s %s", s.format, path)
	g.kept = s.keep(&d.Done)
	if d.Run, err = g.write(ctx, cat, into, from); err != nil {
		return d, fmt.Errorf("import %s: %w", path, err)
	}
	if err := cat.Log(ctx, into.Job, format.Log{Verb: "import", Run: d.Run, Generations: []replica.Generation{d.Generation}, Why: "from " + from}); err != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("the import is whole, and `ckpt log` will not show it: %v", err))
	}
	return d, nil
}

// rename chooses tensors and gives them their names, and says what was done.
func (s *source) rename(names []Rename, only []string, d *Done) error {
	if names == nil && s.bare {
		names = []Rename{{"", model}}
		d.Notes = append(d.Notes, fmt.Sprintf("each name got %q before it, as a session registers its model: --map FROM=TO gives others", model))
	}
	var list []formats.Tensor
	found := len(s.tensors) + len(s.left)
	for _, t := range s.tensors {
		was := t.Name
		if t.Name = renamed(was, names); strings.HasPrefix(t.Name, own) {
			return fmt.Errorf("tensor %.128q: names that begin with %q are replicad's own: give others with --map FROM=TO", was, own)
		}
		ok, err := fits(only, false, t.Name, was)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := t.Check(); err != nil {
			s.left = append(s.left, formats.Left{Name: was, Why: err.Error()})
			continue
		}
		list = append(list, t)
		d.Tensors, d.Bytes = d.Tensors+1, d.Bytes+t.Bytes()
	}
	left := s.left[:0:0]
	for _, l := range s.left {
		if ok, err := fits(only, false, renamed(l.Name, names), l.Name); err != nil {
			return err
		} else if ok {
			left = append(left, l)
		}
	}
	s.tensors, s.left = list, left
	aliases := make(map[string]string, len(s.aliases))
	for alias, of := range s.aliases {
		aliases[renamed(alias, names)] = renamed(of, names)
	}
	s.aliases = aliases
	s.tell(d)
	if len(list) == 0 {
		return s.none(found)
	}
	return formats.Unique(s.tensors)
}

// told is how many of one kind are named.
const told = 20

// tell says what was left out, each class and each tensor by its name.
func (s *source) tell(d *Done) {
	if n := len(s.others); n > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%d values that are no tensors were left out, as %q", n, replica.Line(s.others[0], 100)))
	}
	first, count := make(map[string]string), make(map[string]int)
	var classes []string
	for _, o := range s.opaque {
		if count[o.Class]++; count[o.Class] == 1 {
			first[o.Class], classes = o.Name, append(classes, o.Class)
		}
	}
	for i, class := range classes {
		if i == told {
			d.Notes = append(d.Notes, fmt.Sprintf("and objects of %d more classes", len(classes)-told))
			break
		}
		d.Notes = append(d.Notes, fmt.Sprintf("%d objects of %q were left out with what is in them, and nothing of them was executed, as %q", count[class], replica.Line(class, 200), replica.Line(first[class], 100)))
	}
	for i, l := range s.left {
		if i == told {
			d.Notes = append(d.Notes, fmt.Sprintf("and %d more tensors were left out", len(s.left)-told))
			break
		}
		d.Notes = append(d.Notes, fmt.Sprintf("tensor %q was left out: %s", replica.Line(l.Name, 200), replica.Line(l.Why, 400)))
	}
	d.Left, d.Opaque = s.left, s.opaque
}

// none is why no tensor is left.
func (s *source) none(found int) error {
	switch {
	case len(s.left) > 0:
		return fmt.Errorf("it has no tensor that a generation can hold: %q: %s", replica.Line(s.left[0].Name, 200), replica.Line(s.left[0].Why, 400))
	case found > 0:
		return fmt.Errorf("none of its %d tensors fits --only", found)
	case len(s.opaque) > 0:
		return fmt.Errorf("it has no tensors beside objects of %q, and nothing of them was executed: load it with a program that you trust, and save its state_dict()", replica.Line(s.opaque[0].Class, 200))
	}
	return errors.New("it has no tensors")
}

// Bounds of a group of an import: so many tensors, and so many bytes of names.
const (
	perGroup = 1 << 15
	perNames = 8 << 20
)

// split parts tensors, in order.
func split(tensors []formats.Tensor, perGroup, perNames int) (list [][]formats.Tensor) {
	begin, names := 0, 0
	for i, t := range tensors {
		if i > begin && (i-begin == perGroup || names+len(t.Name) > perNames) {
			list = append(list, tensors[begin:i])
			begin, names = i, 0
		}
		names += len(t.Name)
	}
	return append(list, tensors[begin:])
}

// layout is what a group says of names; nil: no group has anything to say.
func (s *source) layout(group int, tensors []formats.Tensor, all [][]formats.Tensor) func() ([]byte, error) {
	long := func(t formats.Tensor) bool { return len(t.Name) > replica.MaxRegionName }
	if len(s.aliases) == 0 && !slices.ContainsFunc(all, func(list []formats.Tensor) bool { return slices.ContainsFunc(list, long) }) {
		return nil
	}
	names, aliases := make(map[string]string), make(map[string]string)
	for _, t := range tensors {
		if long(t) {
			names[short(t.Name)] = t.Name
		}
	}
	if group == 0 {
		aliases = s.aliases
	}
	return func() ([]byte, error) { return format.NewLayout(names, aliases) }
}

// short is a name as the Python package registers it: of one that is too long its end, which tells more, and a digest of the whole.
func short(name string) string {
	if len(name) <= replica.MaxRegionName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := name[len(name)-110:]
	for !utf8.RuneStart(end[0]) {
		end = end[1:]
	}
	return hex.EncodeToString(sum[:])[:16] + "~" + end
}

// fresh refuses a job that has generations: a new run would become its newest, which a fleet that resumes takes.
func fresh(ctx context.Context, cat *catalog.Catalog, job string) error {
	list, err := cat.List(ctx, job)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(l catalog.Listed) bool { return l.State != catalog.Unfinished }) {
		return fmt.Errorf("job %s has generations in %s, and what is imported would become the newest of them: give it another name with --job", job, cat.URL())
	}
	return nil
}

// whole is the generation: a group for so many tensors as one has.
type whole struct {
	generation replica.Generation
	groups     []*sealed
	kept       []byte // a tar of files that the run is to carry; nil: none
	left       int    // tensors and objects that were left out
}

// sealed are the parts of one group, and of its rank: the group's, what it says of names, and an empty private one.
type sealed struct {
	generation replica.Generation
	shared     catalog.Part
	private    catalog.Part
	names      *catalog.Part // frozen; nil: there is nothing to say
	said       []byte        // in it: who has no key cannot read it back
	tensors    map[string]formats.Tensor
	layout     safetensors.Layout
}

// newSealed lays tensors out and reads all of them once, for the digests that lie before the bytes.
func newSealed(ctx context.Context, group int, tensors []formats.Tensor, names func() ([]byte, error), g replica.Generation) (*sealed, error) {
	s := &sealed{generation: g, tensors: make(map[string]formats.Tensor, len(tensors))}
	regions := make([]replica.Region, len(tensors), len(tensors)+1)
	for i, t := range tensors {
		name := short(t.Name)
		s.tensors[name] = t
		regions[i] = replica.Region{Name: name, DType: t.DType, Kind: replica.Replicated, Class: replica.Window, Shape: append([]uint64{}, t.Shape...), Bytes: t.Bytes()}
	}
	var text []byte
	if names != nil {
		var err error
		if text, err = names(); err != nil {
			return nil, err
		}
		n := uint64(len(text))
		regions = append(regions, replica.Region{Name: format.LayoutRegion, DType: replica.U8, Class: replica.Frozen, Shape: []uint64{n}, Bytes: n})
	}
	geometry, err := replica.NewGeometry(regions)
	if err != nil {
		return nil, err
	}
	id := replica.GroupID(group)
	s.private = s.part(geometry, replica.OfRank(replica.Rank(group)), 0)
	s.shared = s.part(geometry, replica.OfGroup(id), geometry.ReplicatedBytes)
	if s.layout, err = safetensors.NewLayout(&s.shared.Manifest, geometry.Regions); err != nil {
		return nil, err
	}
	r := s.ahead(ctx)
	defer r.close()
	s.shared.Read = r.next
	parts := []*catalog.Part{&s.private}
	if text != nil {
		frozen := s.part(geometry, replica.FrozenOf(id), geometry.FrozenBytes)
		all := append(text, make([]byte, geometry.FrozenBytes-uint64(len(text)))...) // areas are aligned
		frozen.Read = func(i int, dst []byte) ([]byte, error) {
			off, n := replica.ChunkSpan(i, frozen.Manifest.Bytes, frozen.Manifest.ChunkBytes)
			return dst[:copy(dst[:n], all[off:off+n])], nil
		}
		s.names, s.said = &frozen, text
		parts = append(parts, s.names)
	}
	for _, p := range parts {
		if err := digest(ctx, p); err != nil {
			return nil, err
		}
	}
	if s.names != nil {
		s.shared.Manifest.FrozenRoot = s.names.Manifest.Root
	}
	return s, digest(ctx, &s.shared)
}

func (s *sealed) part(g replica.Geometry, part replica.Part, size uint64) catalog.Part {
	return catalog.Part{Regions: g.Regions, Manifest: replica.Manifest{Part: part, Generation: s.generation, Geometry: safetensors.Hash(g.DigestInput(part.Kind)), Bytes: size,
		ChunkBytes: replica.DefaultChunkBytes, Lineage: replica.Lineage{{Epoch: s.generation.Epoch}}, Regions: g.Of(part.Kind)}}
}

// digest makes a manifest whole.
func digest(ctx context.Context, p *catalog.Part) error {
	m := &p.Manifest
	buf := make([]byte, m.ChunkBytes)
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		b, err := p.Read(i, buf)
		if err != nil {
			return err
		}
		m.Chunks = append(m.Chunks, safetensors.Hash(b))
	}
	m.Root = safetensors.Hash(m.RootInput())
	return nil
}

// read makes a chunk of the group's part: the tensors' bytes, and zeros between them.
func (s *sealed) read(i int, dst []byte) ([]byte, error) {
	m := &s.shared.Manifest
	off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
	dst = dst[:n]
	clear(dst)
	first, _ := slices.BinarySearchFunc(s.layout.Regions, off, func(r replica.Region, off uint64) int {
		if r.Offset+r.Bytes <= off {
			return -1
		}
		return 1
	})
	for _, r := range s.layout.Regions[first:] {
		if r.Offset >= off+n {
			break
		}
		from, to := max(r.Offset, off), min(r.Offset+r.Bytes, off+n)
		if from == to {
			continue
		}
		if err := s.tensors[r.Name].ReadAt(dst[from-off:to-off], from-r.Offset); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", r.Name, err)
		}
	}
	return dst, nil
}

// importer is how an import calls itself among fleets.
const importer = "ckpt import"

// write makes the generation exist.
func (g *whole) write(ctx context.Context, cat *catalog.Catalog, into Into, from string) (run string, err error) {
	var id replica.JobID
	var cluster replica.ClusterID
	_, _ = rand.Read(id[:]) // it never fails
	_, _ = rand.Read(cluster[:])
	r, err := cat.Begin(ctx, format.Run{Job: into.Job, ID: id, Owner: into.Owner, From: from})
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil { // what did not become a generation leaves nothing
			_, gone := cat.Clear(context.WithoutCancel(ctx), r, 0)
			err = errors.Join(err, gone)
		}
	}()
	fleet := catalog.Fleet{Cluster: cluster, Name: importer, Epoch: g.generation.Epoch}
	if err := cat.Claim(ctx, r, fleet); err != nil {
		return "", err
	}
	if g.kept != nil {
		if _, err := cat.KeepFiles(ctx, r, func() ([]byte, error) { return g.kept, nil }); err != nil {
			return "", err
		}
	}
	a := catalog.Attempt{Run: r, Generation: g.generation, Write: 1}
	roots := make(map[replica.Part]replica.Digest)
	said := format.Commit{Owner: into.Owner, Position: replica.Position{Epoch: g.generation.Epoch, Step: g.generation.Step}, Layout: replica.Apart(uint32(len(g.groups))),
		Options: replica.Options{}.WithDefaults(), Lineage: g.groups[0].shared.Manifest.Lineage, Provenance: map[string]string{"imported": replica.Line(from, format.MaxText)}}
	if g.left > 0 {
		said.Provenance["left out"] = fmt.Sprintf("%d tensors or objects", g.left)
	}
	var files []format.Written
	var private []catalog.Part
	for _, s := range g.groups {
		said.Geometries = append(said.Geometries, s.shared.Manifest.Geometry)
		list, err := s.write(ctx, cat, a, id, cluster, roots)
		if err != nil {
			return "", err
		}
		files, private = append(files, list...), append(private, s.private)
	}
	own, err := cat.WriteObject(ctx, a, "private-0", private...)
	if err != nil {
		return "", err
	}
	if _, err = cat.Commit(ctx, a, fleet, said, roots, append(files, own)); err != nil {
		return r.Run, err
	}
	return r.Run, cat.ReadBackNew(ctx, r, g.generation)
}

// write writes a group's files.
func (s *sealed) write(ctx context.Context, cat *catalog.Catalog, a catalog.Attempt, id replica.JobID, cluster replica.ClusterID, roots map[replica.Part]replica.Digest) (files []format.Written, err error) {
	for _, p := range []*catalog.Part{&s.shared, &s.private} {
		p.Manifest.Job, p.Manifest.Cluster = id, cluster
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	if s.names != nil {
		s.names.Manifest.Job, s.names.Manifest.Cluster = id, cluster
		w, err := cat.WriteFrozen(ctx, a.Run, *s.names)
		if err != nil {
			return nil, err
		}
		w.Layout = s.said
		files = append(files, w)
	}
	again := s.ahead(ctx)
	defer again.close()
	s.shared.Read = again.next
	w, err := cat.WriteGroup(ctx, a, s.shared)
	return append(files, w), err
}
