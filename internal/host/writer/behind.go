package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// A daemon that ends while what is committed is in memory alone, and no leader has it written, leaves the parts that lie here in its spool: each with
// a note, as the parts of a write whose daemon died. No leader is needed for that, and nothing is written to the store, where another fleet may go on. A
// resume puts together what the spools of all nodes have of the generation.

// Laid is a part of a generation that lies in the spool, or is to.
type Laid struct {
	Job        replica.JobID
	Generation replica.Generation
	Part       replica.Part
}

// Behind is what is to be done to have in the spool what lies here of what a job has committed.
type Behind struct {
	There  []Laid         // of a durable write that is under way: it stays there
	Writes []*Write       // one for each part that is not there yet; Lay is to be called of each, and Drop or nothing
	Failed map[Laid]error // what can't be laid down
}

// Behind lists them: what this node would write first, since others have the rest. known are those that were laid before.
func (r *Room) Behind(now time.Time, v room.JobView, known func(Laid) bool) Behind {
	b := Behind{Failed: map[Laid]error{}}
	if !v.Job.Undurable() {
		return b
	}
	plan := lock.PlanShards(v.Job, func(replica.NodeName) bool { return true })
	if w := v.Job.Writer; w != nil && w.Generation == plan.Generation { // it has all roots; else the node may know those of a former commit alone
		r.behind(now, &b, v, *w, false, false, known)
	} else {
		committed := plan
		committed.Shards = heldOf(v, plan)
		r.behind(now, &b, v, committed, true, false, known)
	}
	if c := v.Candidate; c.Generation.Compare(v.Job.Committed) > 0 { // it may be committed, and the word of that not have come here
		plan.Generation, plan.Position = c.Generation, c.Position
		plan.Shards = heldOf(v, plan)
		r.behind(now, &b, v, plan, true, true, known)
	}
	return b
}

// heldOf are the parts that lie here of the generation of a plan, each with who would write it by an earlier one.
func heldOf(v room.JobView, plan replica.DurableWrite) (shards []replica.Shard) {
	for _, at := range v.Copies() {
		h := at.Held
		if h.Generation != plan.Generation || h.Part.Kind == replica.FrozenPart || slices.ContainsFunc(shards, func(s replica.Shard) bool { return s.Part == h.Part }) {
			continue
		}
		s := replica.Shard{Part: h.Part, Root: h.Root}
		if i := slices.IndexFunc(plan.Shards, func(s replica.Shard) bool { return s.Part == h.Part }); i >= 0 {
			s.Node = plan.Shards[i].Node
		}
		shards = append(shards, s)
	}
	return shards
}

func (r *Room) behind(now time.Time, b *Behind, v room.JobView, plan replica.DurableWrite, loose, candidate bool, known func(Laid) bool) {
	node := r.owner.Self().Node
	job := *v.Job
	plan.Number = job.Writes + 1
	job.Writer, v.Job = &plan, &job
	shards := slices.Clone(plan.Shards)
	slices.SortStableFunc(shards, func(x, y replica.Shard) int {
		switch {
		case x.Node == node && y.Node != node:
			return -1
		case x.Node != node && y.Node == node:
			return 1
		}
		return 0
	})
	for _, s := range shards {
		is := Laid{v.Job.ID, v.Job.Writer.Generation, s.Part}
		if known(is) {
			continue
		}
		if w := r.laying(is); w != nil {
			b.There = append(b.There, is)
			continue
		}
		if _, held := v.Find(nil, s.Part, is.Generation, s.Root); !held {
			continue
		}
		r.lays(now, b, v, s, loose, candidate)
	}
	if v.Job.Durable.IsZero() || v.Job.Durable.Epoch < v.Job.Grown { // else what is frozen was written with that
		r.freezes(now, b, v, candidate, known)
	}
}

// lays holds a part that is to be laid down.
func (r *Room) lays(now time.Time, b *Behind, v room.JobView, s replica.Shard, loose, candidate bool) {
	w := &Write{Attempt: tier.AttemptOf(v.Job, r.owner.Cluster()), Object: tier.ObjectOf(r.owner.Self().Node, s.Part), Parts: []replica.Part{s.Part}, store: r.owner.Store(), seen: mark{at: now}, told: mark{at: now}, stop: make(chan struct{}), turn: make(chan struct{})}
	err := r.owner.Undurable()
	if err == nil {
		err = w.hold(now, r.owner, v, s)
	}
	if err != nil {
		b.Failed[w.Is()] = err
		return
	}
	w.note = w.noteOf(r.owner, v)
	w.note.Loose, w.note.Candidate = loose, candidate
	if s.Part.Kind == replica.FrozenPart {
		w.note.Roots = append(w.note.Roots, tier.Rooted{Part: s.Part, Root: s.Root})
	}
	b.Writes = append(b.Writes, w)
}

// freezes lays down the frozen parts that groups' parts here bind: no generation in the store has them yet.
func (r *Room) freezes(now time.Time, b *Behind, v room.JobView, candidate bool, known func(Laid) bool) {
	seen := map[replica.Part]bool{}
	for _, at := range v.Copies() {
		is := Laid{v.Job.ID, v.Job.Writer.Generation, replica.Part{Kind: replica.FrozenPart, Index: at.Held.Part.Index}}
		if at.Held.Generation != is.Generation || at.Held.Part.Kind != replica.ReplicatedPart || at.Info.FrozenRoot.IsZero() || seen[is.Part] || known(is) {
			continue
		}
		seen[is.Part] = true
		r.lays(now, b, v, replica.Shard{Part: is.Part, Root: at.Info.FrozenRoot}, true, candidate)
	}
}

// laying finds a durable write under way that has a part whole in the spool, and has it stay there when the daemon ends.
func (r *Room) laying(is Laid) *Write {
	j := r.jobs[is.Job]
	if j == nil {
		return nil
	}
	for _, w := range j.writes {
		if w.Generation == is.Generation && slices.Contains(w.Parts, is.Part) && w.stays() {
			return w
		}
	}
	return nil
}

// Is is what the write lays down.
func (w *Write) Is() Laid { return Laid{w.Job, w.Generation, w.Parts[0]} }

// Lay copies the part into the spool, with its note, and has both reach the disk. It lets go of the slot. Beside the owner.
func (w *Write) Lay(ctx context.Context, sp *spool.Spool) (err error) {
	defer w.close()
	if sp == nil {
		return errors.New("this daemon has no spool")
	}
	ctx, cancel := w.lasting(ctx)
	defer cancel(nil)
	lines, err := w.lines(ctx, sp)
	for _, l := range lines {
		if l.copy != nil {
			w.kept = append(w.kept, l.copy.into)
		}
	}
	defer func() {
		if err != nil {
			w.Drop(ctx)
		}
	}()
	if err != nil {
		return err
	}
	if on := w.road.Load(); on != nil && on.why != nil {
		return on.why
	}
	note := w.leaveNote(ctx, sp, lines)
	if note == nil {
		return errors.New("spool_dir has no room for it")
	}
	w.kept = append(w.kept, note)
	if err := w.spools(ctx, lines); err != nil {
		return err
	}
	for _, p := range w.kept {
		if err := p.Sync(ctx); err != nil {
			return fmt.Errorf("%v: %w", w.Parts[0], err)
		}
	}
	return nil
}

// Drop removes what Lay has laid down.
func (w *Write) Drop(ctx context.Context) {
	remove(ctx, w.kept)
	w.kept = nil
}

// What becomes of the parts of a Write in the spool when it is over.
const (
	inPart  int32 = iota // they are not whole yet
	inSpool              // they go with the write
	staying              // they stay: the daemon that ends counts on them
	removed
)

// stays has what the write has in the spool stay there, where it is whole.
func (w *Write) stays() bool {
	return w.laid.Load() == staying || w.laid.CompareAndSwap(inSpool, staying)
}

// goes has it be removed with the write again: the generation is durable.
func (w *Write) goes() { w.laid.CompareAndSwap(staying, inSpool) }

// removes tells whether it is to be removed now.
func (w *Write) removes() bool {
	for {
		at := w.laid.Load()
		if at == staying {
			return false
		}
		if w.laid.CompareAndSwap(at, removed) {
			return true
		}
	}
}
