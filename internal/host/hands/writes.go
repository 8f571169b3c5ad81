package hands

import (
	"context"
	"errors"
	"sync"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// ailing has the writer room hear of requests of a write that do not succeed.
func (h *Hands) ailing(to act.Room, a tier.Attempt) func(what string) {
	return func(what string) { h.Owner.Post(Answer{to, writer.Ailing{Attempt: a, What: what}}) }
}

// Write writes a shard to a store, which is this node's with what a job adds to it.
func (h *Hands) Write(to act.Room, w *writer.Write, store writer.Store) {
	tier := writer.Tier{Store: store, Spool: h.Spool, Rate: h.rate}
	h.Owner.Beside(func(ctx context.Context) any {
		info, err := w.Run(ctx, tier, h.ailing(to, w.Attempt))
		w.Info = info
		h.Owner.Post(Answer{to, act.Ended{Of: w, Err: err}})
		if w.Kept() {
			w.Release(ctx)
		}
		return nil
	})
}

// Discard removes what a durable write left. What it can't remove a sweep of the tier does.
func (h *Hands) Discard(to act.Room, d writer.Discard) {
	h.Owner.Beside(func(ctx context.Context) any {
		if err := h.Store.Discard(ctx, d.Attempt, d.Objects); err != nil {
			h.Log.Failed("durable", "remove what a skipped write left of job "+d.Name, err.Error())
		}
		return Answer{to, act.Ended{Of: d}}
	})
}

// Mark makes a generation exist. The room hears of it as soon as it exists: a store that stands still afterwards holds up no
// other write, and the next one says what ails it.
func (h *Hands) Mark(to act.Room, m writer.Mark) {
	h.Owner.Beside(func(ctx context.Context) any {
		is := writer.Marked{Mark: m}
		said := sync.OnceFunc(func() { h.Owner.Post(Answer{to, is}) })
		watched := tier.Watching(ctx, tier.Watch{Troubled: h.ailing(to, m.Attempt)})
		err := h.Store.CommitThen(watched, m.Attempt, m.Said, m.Roots, m.Objects, func() {
			if m.Keep == "" {
				said()
			}
		})
		if err == nil && m.Keep != "" { // who has asked for it waits for that too
			err = h.Store.Keep(ctx, m.Name, m.Job, m.Generation, m.Keep)
		}
		if err != nil {
			is.Failed, is.Fenced = writer.Text(err), errors.Is(err, tier.ErrFenced)
			return Answer{to, is}
		}
		said()
		return nil
	})
}

// Tier is the durable tier as a node needs it: a *tier.Tier.
type Tier interface {
	writer.Store
	mover.Disk
	// CommitThen makes a generation exist, and calls there once it does.
	CommitThen(ctx context.Context, a tier.Attempt, said tier.Said, roots map[replica.Part]replica.Digest, objects []replica.Stored,
		there func()) error
	// KeepFiles has a job's run carry files, unless it carries some: there is the SHA-256 of those that it carries then.
	KeepFiles(ctx context.Context, a tier.Attempt, tar *kept.Tar) (there string, err error)
	// Keep pins a generation for good.
	Keep(ctx context.Context, name string, id replica.JobID, g replica.Generation, why string) error
	Discard(ctx context.Context, a tier.Attempt, objects []string) error
	// Hangs says which call was given up and has not returned; nil: none.
	Hangs() error
}
