package host

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// shardWritten is the end of writing one shard.
type shardWritten control.ShardReport

// shardReturned is the same, of a write whose goroutine has come back.
type shardReturned struct {
	of     *shardWrite
	report shardWritten
}

// shardGrows is how far writing one shard is.
type shardGrows control.ShardReport

// markerWritten is the end of writing a commit marker.
type markerWritten control.MarkedReport

// durable writes the shards that the durable write under way wants from this node.
func (h *Host) durable(lj *localJob) {
	w := lj.job.Writer
	if w == nil {
		clear(lj.written)
		lj.writes.endBut(replica.Generation{})
		return
	}
	lj.writes.endBut(w.Generation)
	// The view between two writes may have passed this node by: what it did for the earlier one says nothing of this one.
	maps.DeleteFunc(lj.written, func(_ replica.Part, r control.ShardReport) bool { return r.Generation != w.Generation })
	for _, s := range w.Shards {
		if s.Node != h.self.Name || lj.writes[s.Part] != nil {
			continue
		}
		of := &shardWrite{generation: w.Generation, seenAt: time.Now()}
		lj.writes[s.Part] = of
		r := control.ShardReport{Job: lj.job.ID, Generation: w.Generation, Part: s.Part}
		var reader, frozen *holding.Reader
		var regions []replica.Region
		err := mover.ErrNoDisk
		if h.store != nil {
			err = h.hung.complaint(time.Now())
		}
		if err == nil {
			reader, frozen, regions, err = h.shardSource(lj, w.Generation, s)
		}
		if err != nil {
			r.Failed = err.Error()
			h.shardWritten(shardWritten(r))
			continue
		}
		name := lj.job.Name
		of.hold(reader, frozen)
		h.spawn(func(ctx context.Context) Event {
			defer of.close()
			read := of.counting(func(written uint64) {
				g := r
				g.Written = written
				h.Post(shardGrows(g))
			})
			var fr *checkpoint.Frozen
			if frozen != nil {
				fr = &checkpoint.Frozen{Manifest: frozen.Manifest(), Regions: regions, Read: read(frozen.ReadChunk, false)}
			}
			info, err := h.store.WriteShard(ctx, name, reader.Manifest(), regions, fr, read(reader.ReadChunk, true))
			if err != nil {
				r.Failed = err.Error()
			}
			r.Info = info
			return shardReturned{of, shardWritten(r)}
		})
	}
}

// shardSource holds what a shard is written from.
func (h *Host) shardSource(lj *localJob, g replica.Generation, s replica.Shard) (reader, frozen *holding.Reader, regions []replica.Region, err error) {
	at, ok := lj.view().Find(nil, s.Part, g, s.Root)
	if !ok {
		return nil, nil, nil, fmt.Errorf("%v of generation %v is not held here any more", s.Part, g)
	}
	if reader, err = h.reader(lj, at); err != nil {
		return nil, nil, nil, err
	}
	if !at.Info.FrozenRoot.IsZero() {
		f, ok := lj.view().Find(at.Arena, replica.Part{Kind: replica.FrozenPart, Index: s.Part.Index}, g, at.Info.FrozenRoot)
		if !ok {
			reader.Drop()
			return nil, nil, nil, fmt.Errorf("the frozen part of %v is not held here", s.Part)
		}
		if frozen, err = h.reader(lj, f); err != nil {
			reader.Drop()
			return nil, nil, nil, err
		}
	}
	return reader, frozen, at.Arena.Geometry().Regions, nil
}

func (h *Host) shardWritten(ev shardWritten) {
	lj := h.jobs[ev.Job]
	if lj == nil || lj.job.Writer == nil || lj.job.Writer.Generation != ev.Generation {
		return
	}
	lj.written[ev.Part] = control.ShardReport(ev)
	h.send(control.ShardReport(ev))
}

// shardReturned takes the end of a write, also of one that was given up: its file system answers again.
func (h *Host) shardReturned(ev shardReturned) {
	h.hung.returned(ev.of)
	h.shardWritten(ev.report)
}

// lookAtWrites lets go of what was read whole, and gives up a write that stands still while a commit waits: the slot that it holds may be
// the one that the candidate lacks. A file system that hangs would stop the job's commits for as long.
func (h *Host) lookAtWrites(lj *localJob, now time.Time) {
	late := now.Sub(lj.waitsFrom(lj.job.Position))
	waits := lj.awaited(lj.job) && late >= writeIdle
	for part, w := range lj.writes {
		if w.look(now); !waits || !w.holds() {
			continue
		}
		if !w.idle(now) {
			h.sayLate(lj, part, w, now, late)
			continue
		}
		w.end()
		h.hung.add(w, now)
		why := fmt.Sprintf("no byte was written for %v while the commit of step %d waited: the slot that it held is free for that. See what ails the file system of durable_dir", now.Sub(w.seenAt).Round(time.Second), lj.candidate.Position.Step)
		h.shardWritten(shardWritten{Job: lj.job.ID, Generation: w.generation, Part: part, Failed: why})
		h.retain(lj)
	}
}

// sayLate tells the leader that a write which moves holds up the commit: that is no fault, and not silent.
func (h *Host) sayLate(lj *localJob, part replica.Part, w *shardWrite, now time.Time, late time.Duration) {
	if w.seen == 0 || now.Sub(w.lateAt) < lateEvery || !w.crowds(lj.candidate.Generation) {
		return
	}
	w.lateAt = now
	h.send(control.ShardReport{Job: lj.job.ID, Generation: w.generation, Part: part, Written: uint64(w.seen), LateMS: uint64(late.Milliseconds())})
}

func (h *Host) shardGrows(ev shardGrows) {
	if lj := h.jobs[ev.Job]; lj != nil && lj.job.Writer != nil && lj.job.Writer.Generation == ev.Generation {
		h.send(control.ShardReport(ev))
	}
}

// writeMarker writes the commit marker: the write that makes the generation exist.
func (h *Host) writeMarker(o control.MarkerOrder) {
	lj := h.jobs[o.Job]
	if lj == nil || lj.job.Writer == nil || lj.job.Writer.Generation != o.Generation {
		return
	}
	if h.store == nil {
		h.send(control.MarkedReport{Job: o.Job, Generation: o.Generation, Failed: mover.ErrNoDisk.Error()})
		return
	}
	job := lj.job
	geometries, recipe := laidOut(job)
	mark := checkpoint.Marker{JobName: job.Name, Job: job.ID, Generation: o.Generation, Position: job.Writer.Position, Layout: job.Layout, Options: job.Options, Lineage: job.Lineage, Condemned: job.Condemned, Geometries: geometries, Recipe: recipe, Grown: job.Grown, Owner: job.Owner, Lacks: o.Lacks}
	for _, s := range o.Shards {
		mark.Shards = append(mark.Shards, s.Info)
	}
	keep := h.cfg.DurableKeep
	h.spawn(func(ctx context.Context) Event {
		ev := markerWritten{Job: o.Job, Generation: o.Generation}
		if err := h.store.WriteMarker(ctx, mark); err != nil {
			ev.Failed = err.Error()
		} else if err := h.store.Prune(job.Name, job.ID, keep); err != nil {
			h.log.Failed("durable", "prune job "+job.Name, err.Error())
		}
		return ev
	})
}

// laidOut is how what a job has committed is laid out: while it grows, as before.
func laidOut(job *replica.Job) (geometries []replica.Digest, recipe []byte) {
	if g := job.Growth; g != nil {
		return g.Geometries, g.Recipe
	}
	return job.GroupGeometry, job.Recipe
}
