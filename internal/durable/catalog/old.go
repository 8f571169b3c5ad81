package catalog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/safetensors"
	"github.com/replicad/replicad/internal/durable/store"
	"github.com/replicad/replicad/replica"
)

// Old reads a directory of the former layout, internal/checkpoint's, as the catalog of a store shows its own.
type Old struct {
	dir  string
	gate *checkpoint.Gate                 // every call to its file system passes it, also before it is opened
	st   atomic.Pointer[checkpoint.Store] // nil: it was not opened yet. What was found has opened it
}

// OpenOld opens a directory. ctx bounds how long its file system is waited for.
func OpenOld(ctx context.Context, dir string) (*Old, error) {
	o := OldLater(ctx, dir)
	if _, err := o.store(); err != nil {
		return nil, err
	}
	return o, nil
}

// OldLater is OpenOld for a directory that can't be opened now: each call to it tries that first.
func OldLater(ctx context.Context, dir string) *Old {
	return &Old{dir: dir, gate: checkpoint.NewGate(ctx, dir)}
}

// store is the directory, opened.
func (o *Old) store() (*checkpoint.Store, error) {
	if st := o.st.Load(); st != nil {
		return st, nil
	}
	st, err := checkpoint.OpenBehind(o.gate)
	if err != nil {
		return nil, err
	}
	if !o.st.CompareAndSwap(nil, st) { // somebody else was first
		return o.st.Load(), st.Close()
	}
	return st, nil
}

// Close closes the directory.
func (o *Old) Close() error {
	if st := o.st.Load(); st != nil {
		return st.Close()
	}
	return nil
}

// URL names the directory.
func (o *Old) URL() string { return "file://" + o.dir }

// Jobs lists the names that have runs of the former layout.
func (o *Old) Jobs(_ context.Context) (jobs []string, err error) {
	entries, err := o.gate.List("")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if replica.CheckJobName(e.Name()) != nil || !e.IsDir() {
			continue
		}
		runs, err := o.gate.List(e.Name())
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(runs, func(r os.DirEntry) bool { return oldRun(r.Name()) }) {
			jobs = append(jobs, e.Name())
		}
	}
	return jobs, nil
}

func oldRun(name string) bool {
	id, err := replica.ParseUUID(name)
	return err == nil && replica.JobID(id).String() == name
}

// Find lists the generations of a name, as checkpoint.Store does.
func (o *Old) Find(ctx context.Context, job string, id replica.JobID) (found []Found, skipped []Skipped, err error) {
	st, err := o.store()
	if err != nil {
		return nil, nil, err
	}
	list, passed, err := st.Find(job, id)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range list {
		f, err := o.found(ctx, m)
		if err == nil {
			found = append(found, f)
			continue
		}
		k := passedOver(oldPlace(job, m.Job), m.Generation, oldState(checkpoint.SkipKindOf(err)), err, nil)
		k.where = m.Path
		skipped = append(skipped, k)
	}
	for _, s := range passed {
		if s.Why == checkpoint.Stray {
			continue
		}
		dir, gen := path.Split(s.Path)
		uuid, err := replica.ParseUUID(path.Base(dir))
		if err != nil {
			continue
		}
		k := Skipped{Run: oldPlace(job, replica.JobID(uuid)), State: oldState(s.Why), Reason: s.Reason, Plain: s.Plain(), where: s.Path}
		if s.Whole != nil {
			if f, err := o.found(ctx, *s.Whole); err == nil {
				k.Whole = &f
			}
		}
		if _, err := fmt.Sscanf(gen, "%d-%d", &k.Generation.Epoch, &k.Generation.Step); err == nil {
			skipped = append(skipped, k)
		}
	}
	return found, skipped, nil
}

func oldState(why checkpoint.SkipKind) State {
	switch why {
	case checkpoint.Unfinished:
		return Unfinished
	case checkpoint.Unreadable:
		return Unreadable
	case checkpoint.Damaged, checkpoint.Stray:
	}
	return Damaged
}

func oldPlace(job string, id replica.JobID) Run {
	return Run{Place: format.Place{Job: job, Run: id.String()}, ID: id}
}

// found says of a marker what COMMIT and index would say.
func (o *Old) found(_ context.Context, m checkpoint.Found) (f Found, err error) {
	com := format.Commit{Job: m.JobName, Run: m.Job, Cluster: m.Cluster, Owner: m.Owner, Generation: m.Generation, Position: m.Position, Write: 1, Layout: m.Layout, Options: m.Options,
		Lineage: m.Lineage, Condemned: m.Condemned, Geometries: m.Geometries, Recipe: m.Recipe, Grown: m.Grown, Lacks: m.Lacks, At: int64(m.Written)}
	var files []format.Written
	layouts := make(map[uint32]map[string]format.Shard)
	for _, s := range m.Shards {
		w, lay, err := o.file(m, s)
		if err != nil {
			return f, err
		}
		com.Files++
		com.Bytes += s.Bytes
		files = append(files, w)
		if lay != nil {
			layouts[s.Part.Index] = lay
		}
	}
	run := oldPlace(m.JobName, m.Job)
	run.Order, run.Owner, run.Cluster = m.Written, m.Owner, m.Cluster
	f = Found{Commit: com, Run: run, Index: format.NewIndex(m.JobName, m.Job, m.Generation, 1, files, layouts), old: &m}
	if m.Read != nil && m.Read.At > 0 {
		f.Read = time.UnixMilli(int64(m.Read.At))
	}
	return f, nil
}

func (o *Old) file(m checkpoint.Found, s replica.ShardInfo) (w format.Written, lay map[string]format.Shard, err error) {
	sh, err := o.st.Load().OpenShard(m, s.Part)
	if err != nil {
		return w, nil, err
	}
	defer sh.Close()
	man := sh.Manifest()
	l, err := safetensors.NewLayout(&man, sh.Regions())
	if err != nil {
		return w, nil, err
	}
	p := format.Packed{Manifest: man, Regions: sh.Regions(), Layout: l}
	head := s.Bytes - l.Size()
	w = format.Written{File: format.File{Key: s.File, Bytes: s.Bytes, Header: head}, Object: &format.Object{Parts: []format.Packed{p}, Head: head, Data: l.Size()}}
	if s.Part.Kind == replica.FrozenPart {
		if b, err := regionOf(man, l.Regions, format.LayoutRegion, sh.ReadChunk); err == nil {
			lay, _ = format.ParseLayout(b) // one that cannot be read says nothing
		}
	}
	return w, lay, nil
}

// List says what there is of a name.
func (o *Old) List(ctx context.Context, job string) (list []Listed, err error) {
	if err := replica.CheckJobName(job); err != nil {
		return nil, err
	}
	switch _, err := o.gate.Look(job); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, checkpoint.ErrSilent):
		return nil, err
	}
	st, err := o.store()
	if err != nil {
		return nil, err
	}
	found, skipped, err := st.Find(job, replica.JobID{})
	if err != nil {
		return nil, err
	}
	for _, m := range found {
		list = append(list, oldRow(job, m))
	}
	for _, s := range skipped {
		dir, gen := path.Split(s.Path)
		uuid, err := replica.ParseUUID(path.Base(dir))
		var g replica.Generation
		if n, serr := fmt.Sscanf(gen, "%d-%d", &g.Epoch, &g.Step); s.Why == checkpoint.Stray || err != nil || serr != nil || n != 2 {
			continue
		}
		l := Listed{Run: oldPlace(job, replica.JobID(uuid)), Generation: g, Row: format.Row{Generation: g}, Old: true}
		if s.Whole != nil {
			l = oldRow(job, *s.Whole)
		}
		l.State, l.Why = oldState(s.Why), s.Reason
		list = append(list, l)
	}
	return list, nil
}

// oldRow is the line of a generation whose files are all there.
func oldRow(job string, m checkpoint.Found) Listed {
	row := format.Row{Generation: m.Generation, Position: m.Position, Write: 1, At: int64(m.Written)}
	for _, s := range m.Shards {
		row.Bytes += s.Bytes
	}
	run := oldPlace(job, m.Job)
	run.Order, run.Owner, run.Cluster = m.Written, m.Owner, m.Cluster
	l := Listed{Run: run, Generation: m.Generation, State: Unread, Row: row, Old: true}
	if m.Read != nil && m.Read.At > 0 {
		l.State, l.Read = Good, time.UnixMilli(int64(m.Read.At))
	}
	return l
}

// OpenShard opens a part.
func (o *Old) OpenShard(_ context.Context, f Found, part replica.Part) (checkpoint.ShardReader, error) {
	return o.st.Load().OpenShard(*f.old, part)
}

// Verify reads a generation whole, and leaves beside it what came of that, as daemons do.
func (o *Old) Verify(ctx context.Context, f Found, progress func(read, of uint64)) ([]Fault, error) {
	var read atomic.Uint64
	err := o.st.Load().ReadBack(ctx, *f.old, checkpoint.How{Pace: func(_ context.Context, n int) error {
		if progress != nil {
			progress(min(read.Add(uint64(n)), f.Bytes), f.Bytes)
		}
		return nil
	}})
	if o.deleted(f, err) {
		return nil, errDeleted
	}
	if err != nil {
		return []Fault{{Key: strings.TrimPrefix(f.old.Path, f.Job+"/"), What: err.Error()}}, err
	}
	return nil, nil
}

// Copy writes a generation into a store, in the present layout. It mends none there.
func (o *Old) Copy(ctx context.Context, f Found, to *Catalog) (mended bool, err error) {
	if f.At == 0 {
		f.At = time.Unix(0, 0).UnixMilli() // a marker of the first version said no time
	}
	if err := importOld(ctx, o, f, to); err != nil {
		return false, fmt.Errorf("copy generation %v of job %s to %s: %w", f.Generation, f.Job, to.URL(), err)
	}
	return false, nil
}

// ReadBack reads a generation whole, and leaves beside it what came of that, as the daemons that wrote it did.
func (o *Old) ReadBack(ctx context.Context, f Found, cold bool, pace func(ctx context.Context, bytes int) error) error {
	err := o.st.Load().ReadBack(ctx, *f.old, checkpoint.How{Cold: cold, Pace: pace})
	if o.deleted(f, err) {
		return errDeleted
	}
	if d, bad := checkpoint.DamageOf(err); bad {
		return &damage{d.File, d.Chunk, d.What, fmt.Errorf("%w: %w", store.ErrCorrupt, err)}
	}
	return err
}

// deleted tells whether a read failed since its generation was deleted meanwhile: its marker goes first.
func (o *Old) deleted(f Found, why error) bool {
	return why != nil && errors.Is(o.Holds(f.Job, f.Commit.Run, f.Generation), os.ErrNotExist)
}

// Holds tells whether a generation is committed, and has failed no read since.
func (o *Old) Holds(job string, id replica.JobID, g replica.Generation) error {
	st, err := o.store()
	if err != nil {
		return err
	}
	return st.Holds(job, id, g)
}

// Remove removes a generation.
func (o *Old) Remove(f Listed) error { return o.st.Load().Remove(f.Run.Job, f.Run.ID, f.Generation) }
