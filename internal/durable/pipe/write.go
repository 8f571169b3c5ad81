package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
)

// epoch is that of all generations that are written here: a process begins a run of its own, and nobody resumes it in a later epoch.
const epoch replica.Epoch = 1

// State is the region that small state lies in: a capsule, in the private part of rank 0.
const State = "replicad.dcp"

// writing is a catalog that is written to.
type writing struct {
	c     *catalog.Catalog
	owner uint32
}

func (s *stream) writing(ctx context.Context, stores Stores, do func(w *writing) (any, error)) error {
	c, owner, done, err := stores.Write(ctx)
	if err != nil {
		return err
	}
	defer done()
	v, err := do(&writing{c, owner})
	if err != nil {
		return err
	}
	return s.say(v)
}

func fleet(name string) catalog.Fleet { return catalog.Fleet{Name: name, Epoch: epoch} }

// begin gives a run its place and its owner, and the attempt a number.
func (w *writing) begin(ctx context.Context, r *beginRequest) (any, error) {
	if err := w.c.Downgrades(ctx, r.Job); err != nil {
		return nil, usage.Wrong(err)
	}
	step, err := w.step(ctx, r)
	if err != nil {
		return nil, err
	}
	at, err := w.c.Begin(ctx, format.Run{Job: r.Job, ID: r.ID, Owner: w.owner, Began: r.Began, Program: r.Program})
	if err != nil {
		return nil, err
	}
	if err := w.c.Claim(ctx, at, fleet(r.Fleet)); err != nil {
		return nil, err
	}
	a := catalog.Attempt{Run: at, Generation: replica.Generation{Epoch: epoch, Step: step}}
	switch _, err := w.c.Holds(ctx, r.Job, r.ID, a.Generation); {
	case errors.Is(err, catalog.ErrNone):
	case err == nil || catalog.IsDamage(err):
		return nil, wrong("step %d of run %s of job %s is written already: give the next one another step", step, at.Run, r.Job)
	default:
		return nil, err
	}
	if a.Write, err = w.c.Unused(ctx, a, 1); err != nil {
		return nil, err
	}
	return attempt{at.Run, a.Generation, a.Write, r.World}, nil
}

// step is that of the generation that begins. A process that names none goes on where the job is, whoever wrote it: counted from the process's own first, an
// older step would become the newest.
func (w *writing) step(ctx context.Context, r *beginRequest) (replica.Step, error) {
	if r.Step != nil {
		return *r.Step, nil
	}
	list, err := w.c.List(ctx, r.Job)
	if err != nil {
		return 0, err
	}
	last := replica.Step(0)
	for _, l := range list {
		if l.State != catalog.Unfinished {
			last = max(last, l.Generation.Step, l.Row.Position.Step)
		}
	}
	if last >= replica.MaxStep {
		return 0, wrong("job %s is at step %d, the last there is: give a step", r.Job, last)
	}
	return last + 1, nil
}

// attempt finds what a request goes on with.
func (w *writing) attempt(ctx context.Context, r run, a attempt) (catalog.Attempt, error) {
	at, err := w.c.At(ctx, r.Job, r.ID)
	if err == nil && at.Run != a.Run {
		err = wrong("run %v of job %s lies in %s, not in %.80q", r.ID, r.Job, at.Run, a.Run)
	}
	return catalog.Attempt{Run: at, Generation: a.Generation, Write: a.Write}, err
}

// put writes what a rank has: its frozen part, which is its layout, and its tensors.
func (w *writing) put(ctx context.Context, s *stream, r *putRequest) (any, error) {
	a, err := w.attempt(ctx, r.run, r.attempt)
	if err != nil {
		return nil, err
	}
	g, err := geometry(r)
	if err != nil {
		return nil, usage.Wrong(err)
	}
	group, out := replica.GroupID(r.Rank), report{Rank: r.Rank}
	m := manifest(a, g, replica.OfGroup(group), g.ReplicatedBytes)
	if len(r.Layout) > 0 {
		frozen := seal(manifest(a, g, replica.FrozenOf(group), g.FrozenBytes), r.Layout)
		m.FrozenRoot = frozen.Manifest.Root
		frozen.Regions = g.Regions
		w, err := w.c.WriteFrozen(ctx, a.Run, frozen)
		if err != nil {
			return nil, err
		}
		out.Frozen = &w.File
	}
	f := &filler{in: s.in, m: &m}
	if f.layout, err = safetensors.NewLayout(&m, g.Regions); err != nil {
		return nil, err
	}
	if err := f.digest(); err != nil {
		return nil, err
	}
	if err := s.say(struct {
		Again bool `json:"again"`
	}{true}); err != nil {
		return nil, err
	}
	written, err := w.c.WriteGroup(ctx, a, catalog.Part{Manifest: m, Regions: g.Regions, Read: f.read})
	if err != nil {
		return nil, err
	}
	out.Group, out.Root, out.Geometry = written.File, m.Root, m.Geometry
	return out, nil
}

// geometry lays out what a rank has.
func geometry(r *putRequest) (replica.Geometry, error) {
	var regions []replica.Region
	for _, t := range r.Tensors {
		dtype, err := replica.ParseDType(t.DType)
		if err != nil {
			return replica.Geometry{}, fmt.Errorf("tensor %.128q: %w", t.Name, err)
		}
		n := dtype.Size()
		for _, d := range t.Shape {
			if d != 0 && n > (1<<50)/d {
				return replica.Geometry{}, fmt.Errorf("tensor %.128q: shape %v is too large", t.Name, t.Shape)
			}
			n *= d
		}
		regions = append(regions, replica.Region{Name: t.Name, DType: dtype, Shape: t.Shape, Bytes: n})
	}
	if n := uint64(len(r.Layout)); n > 0 {
		regions = append(regions, replica.Region{Name: format.LayoutRegion, DType: replica.U8, Class: replica.Frozen, Shape: []uint64{n}, Bytes: n})
	}
	if len(regions) == 0 {
		return replica.Geometry{}, nil
	}
	return replica.NewGeometry(regions)
}

func manifest(a catalog.Attempt, g replica.Geometry, p replica.Part, bytes uint64) replica.Manifest {
	return replica.Manifest{
		Era: 1, Job: a.Run.ID, Part: p, Generation: a.Generation, Rank: replica.Rank(p.Index), Incarnation: 1, Bytes: bytes, ChunkBytes: replica.DefaultChunkBytes,
		Geometry: safetensors.Hash(g.DigestInput(p.Kind)), Lineage: replica.Lineage{{Epoch: epoch}}, Regions: g.Of(p.Kind),
	}
}

// seal makes a part of one region, whose bytes are given.
func seal(m replica.Manifest, b []byte) catalog.Part {
	all := make([]byte, m.Bytes) // areas are aligned
	copy(all, b)
	m.Chunks = nil
	for i := range replica.ChunkCount(m.Bytes, m.ChunkBytes) {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		m.Chunks = append(m.Chunks, safetensors.Hash(all[off:off+n]))
	}
	m.Root = safetensors.Hash(m.RootInput())
	return catalog.Part{Manifest: m, Read: func(i int, dst []byte) ([]byte, error) {
		off, n := replica.ChunkSpan(i, m.Bytes, m.ChunkBytes)
		return dst[:copy(dst[:n], all[off:off+n])], nil
	}}
}

// filler makes the chunks of a part from the bytes of its tensors, which come without gaps.
type filler struct {
	in     io.Reader
	m      *replica.Manifest
	layout safetensors.Layout
	next   int // chunk of the second time
}

// chunk reads the next one into b.
func (f *filler) chunk(i int, b []byte) error {
	off, n := replica.ChunkSpan(i, f.m.Bytes, f.m.ChunkBytes)
	return f.layout.Spans(off, n, func(from, to, _ uint64, gap bool) error {
		if gap {
			clear(b[from:to])
			return nil
		}
		_, err := io.ReadFull(f.in, b[from:to])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = wrong("the tensors' bytes end in chunk %d", i)
		}
		return err
	})
}

// digest reads all bytes once, and completes the manifest with their digests.
func (f *filler) digest() error {
	buf := make([]byte, min(f.m.Bytes, uint64(f.m.ChunkBytes)))
	f.m.Chunks = nil
	for i := range replica.ChunkCount(f.m.Bytes, f.m.ChunkBytes) {
		_, n := replica.ChunkSpan(i, f.m.Bytes, f.m.ChunkBytes)
		if err := f.chunk(i, buf[:n]); err != nil {
			return err
		}
		f.m.Chunks = append(f.m.Chunks, safetensors.Hash(buf[:n]))
	}
	f.m.Root = safetensors.Hash(f.m.RootInput())
	return nil
}

// read gives a chunk of the second time, in order.
func (f *filler) read(i int, dst []byte) ([]byte, error) {
	if i != f.next {
		return nil, fmt.Errorf("chunk %d is asked for, the next one that comes is %d", i, f.next)
	}
	f.next++
	_, n := replica.ChunkSpan(i, f.m.Bytes, f.m.ChunkBytes)
	if err := f.chunk(i, dst[:n]); err != nil {
		return nil, err
	}
	if safetensors.Hash(dst[:n]) != f.m.Chunks[i] {
		return nil, wrong("%s changed while it was written: save from one thread, and train on when the save, or its staging, has ended", strings.Join(f.within(i), ", "))
	}
	return dst[:n], nil
}

// within names the tensors that a chunk has bytes of.
func (f *filler) within(i int) (names []string) {
	off, n := replica.ChunkSpan(i, f.m.Bytes, f.m.ChunkBytes)
	for _, r := range f.layout.Regions {
		if r.Bytes > 0 && r.Offset < off+n && r.Offset+r.Bytes > off && len(names) < 8 {
			names = append(names, r.Name)
		}
	}
	return names
}

// commit writes the private parts of all ranks, and COMMIT.
func (w *writing) commit(ctx context.Context, r *commitRequest) (any, error) {
	a, err := w.attempt(ctx, r.run, r.attempt)
	if err != nil {
		return nil, err
	}
	files, roots, err := w.private(ctx, a, r)
	if err != nil {
		return nil, err
	}
	said := format.Commit{
		Owner: w.owner, Position: replica.Position{Epoch: epoch, Step: a.Generation.Step}, Layout: replica.Apart(r.World), Options: replica.Options{}.WithDefaults(),
		Lineage: replica.Lineage{{Epoch: epoch}}, Metrics: r.Metrics, Notes: r.Notes, Provenance: r.Provenance,
	}
	for i, p := range r.Reports {
		roots[replica.OfGroup(replica.GroupID(i))] = p.Root
		said.Geometries = append(said.Geometries, p.Geometry)
		files = append(files, format.Written{File: p.Group})
		if p.Frozen != nil {
			files = append(files, format.Written{File: *p.Frozen})
		}
	}
	com, err := w.c.Commit(ctx, a, fleet(r.Fleet), said, roots, files)
	if err == nil {
		err = w.c.ReadBackNew(ctx, a.Run, a.Generation)
	}
	if err != nil {
		return nil, err
	}
	return struct {
		Where string `json:"where"`
		Bytes uint64 `json:"bytes"`
	}{a.Run.Under(format.StepName(com.Generation)), com.Bytes}, nil
}

// private writes the private parts: a generation has one of each rank. All but the first are empty.
func (w *writing) private(ctx context.Context, a catalog.Attempt, r *commitRequest) (files []format.Written, roots map[replica.Part]replica.Digest, err error) {
	roots = make(map[replica.Part]replica.Digest)
	for first := uint32(0); first < r.World; first += format.MaxParts {
		var parts []catalog.Part
		for rank := first; rank < min(r.World, first+format.MaxParts); rank++ {
			var g replica.Geometry
			var b []byte
			if n := uint64(len(r.Private)); rank == 0 && n > 0 {
				b = r.Private
				if g, err = replica.NewGeometry([]replica.Region{{Name: State, DType: replica.U8, Kind: replica.Private, Class: replica.Volatile, Shape: []uint64{n}, Bytes: n}}); err != nil {
					return nil, nil, err
				}
			}
			p := seal(manifest(a, g, replica.OfRank(replica.Rank(rank)), g.PrivateBytes), b)
			p.Regions = g.Regions
			parts = append(parts, p)
			roots[p.Manifest.Part] = p.Manifest.Root
		}
		f, err := w.c.WriteObject(ctx, a, fmt.Sprintf("private-%d", first), parts...)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, f)
	}
	return files, roots, nil
}
