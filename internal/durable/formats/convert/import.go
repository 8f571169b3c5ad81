package convert

import (
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
	Map   []Rename // nil: a model's own names get the name that a session gives its only model
	Moved Moved
}

// Imported is what came of an import.
type Imported struct {
	Done
	Format     string             `json:"format"`
	Job        string             `json:"job"`
	Run        string             `json:"run"`
	Generation replica.Generation `json:"generation"`
}

// Import brings what lies at a path into a catalog, as a generation of one rank in a new run.
func Import(ctx context.Context, path string, cat *catalog.Catalog, into Into) (d Imported, err error) {
	s, err := open(path)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, s.folder.Close()) }()
	d.Format, d.Job, d.Generation = s.format, into.Job, replica.Generation{Epoch: 1, Step: into.Step}
	if err := s.rename(into.Map, &d.Done); err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	if err := fresh(ctx, cat, into.Job); err != nil {
		return d, err
	}
	into.Moved.counted(s.tensors, 2) // for the digests, and to be written
	g, err := newSealed(ctx, s.tensors, d.Generation)
	if err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
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

// rename gives the tensors the names that regions have, and says what was done.
func (s *source) rename(names []Rename, d *Done) error {
	if len(s.tensors) == 0 {
		return errors.New("it has no tensors")
	}
	if names == nil && s.bare {
		names = []Rename{{"", model}}
		d.Notes = append(d.Notes, fmt.Sprintf("each name got %q before it, as a session registers its model: --map FROM=TO gives others", model))
	}
	for i := range s.tensors {
		t := &s.tensors[i]
		was := t.Name
		if t.Name = short(renamed(was, names)); strings.HasPrefix(t.Name, own) {
			return fmt.Errorf("tensor %.128q: names that begin with %q are replicad's own: give others with --map FROM=TO", was, own)
		}
		if err := t.Check(); err != nil {
			return err
		}
		d.Tensors, d.Bytes = d.Tensors+1, d.Bytes+t.Bytes()
	}
	if n := len(s.others); n > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%d values that are no tensors were left out, as %q", n, replica.Line(s.others[0], 100)))
	}
	return formats.Unique(s.tensors)
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

// sealed are the parts of the generation: one group's, and the empty private part of its rank.
type sealed struct {
	generation replica.Generation
	shared     catalog.Part
	private    catalog.Part
	tensors    map[string]formats.Tensor
	layout     safetensors.Layout
	kept       []byte // a tar of files that the run is to carry; nil: none
}

// newSealed lays tensors out and reads all of them once, for the digests that lie before the bytes.
func newSealed(ctx context.Context, tensors []formats.Tensor, g replica.Generation) (*sealed, error) {
	s := &sealed{generation: g, tensors: make(map[string]formats.Tensor, len(tensors))}
	regions := make([]replica.Region, len(tensors))
	for i, t := range tensors {
		s.tensors[t.Name] = t
		regions[i] = replica.Region{Name: t.Name, DType: t.DType, Kind: replica.Replicated, Class: replica.Window, Shape: append([]uint64{}, t.Shape...), Bytes: t.Bytes()}
	}
	geometry, err := replica.NewGeometry(regions)
	if err != nil {
		return nil, err
	}
	s.private = s.part(geometry, replica.OfRank(0), 0)
	s.shared = s.part(geometry, replica.OfGroup(0), geometry.ReplicatedBytes)
	if s.layout, err = safetensors.NewLayout(&s.shared.Manifest, geometry.Regions); err != nil {
		return nil, err
	}
	r := s.ahead(ctx)
	defer r.close()
	s.shared.Read = r.next
	for _, p := range []*catalog.Part{&s.private, &s.shared} {
		if err := digest(ctx, p); err != nil {
			return nil, err
		}
	}
	return s, nil
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
func (s *sealed) write(ctx context.Context, cat *catalog.Catalog, into Into, from string) (run string, err error) {
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
	fleet := catalog.Fleet{Cluster: cluster, Name: importer, Epoch: s.generation.Epoch}
	if err := cat.Claim(ctx, r, fleet); err != nil {
		return "", err
	}
	if s.kept != nil {
		if _, err := cat.KeepFiles(ctx, r, func() ([]byte, error) { return s.kept, nil }); err != nil {
			return "", err
		}
	}
	a := catalog.Attempt{Run: r, Generation: s.generation, Write: 1}
	roots := make(map[replica.Part]replica.Digest)
	for _, p := range []*catalog.Part{&s.shared, &s.private} {
		p.Manifest.Job, p.Manifest.Cluster = id, cluster
		roots[p.Manifest.Part] = p.Manifest.Root
	}
	again := s.ahead(ctx)
	defer again.close()
	s.shared.Read = again.next
	group, err := cat.WriteGroup(ctx, a, s.shared)
	if err != nil {
		return "", err
	}
	private, err := cat.WriteObject(ctx, a, "private-0", s.private)
	if err != nil {
		return "", err
	}
	said := format.Commit{Owner: into.Owner, Position: replica.Position{Epoch: s.generation.Epoch, Step: s.generation.Step}, Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}},
		Options: replica.Options{}.WithDefaults(), Lineage: s.shared.Manifest.Lineage, Geometries: []replica.Digest{s.shared.Manifest.Geometry},
		Provenance: map[string]string{"imported": replica.Line(from, format.MaxText)}}
	if _, err = cat.Commit(ctx, a, fleet, said, roots, []format.Written{group, private}); err != nil {
		return r.Run, err
	}
	return r.Run, catalog.ReadBackNew(ctx, cat, r, s.generation)
}
