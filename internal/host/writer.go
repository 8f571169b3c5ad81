package host

import (
	"context"
	"errors"
	"sync"

	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// Open holds a copy, to be read as a part of the job.
func (h rooms) Open(job *replica.Job, at holding.Copy) (*holding.Reader, error) {
	return h.reader(job, at)
}

// Undurable says why this node can write nothing that lasts; nil: it can.
func (h rooms) Undurable() error {
	if h.store == nil {
		return mover.ErrNoDisk
	}
	return nil
}

// Hangs says which call to the store was given up and has not returned; nil: none.
func (h rooms) Hangs() error { return h.store.Hangs() }

// Store names the store, for people.
func (h rooms) Store() string {
	if h.cfg.InBucket() {
		return h.cfg.Durable
	}
	return "the file system of durable_dir"
}

// ailing has the writer room hear of requests of a write that do not succeed.
func (h *Host) ailing(a tier.Attempt) func(what string) {
	return func(what string) { h.Post(answer{h.writer, writer.Ailing{Attempt: a, What: what}}) }
}

// writeShard writes a shard beside the host.
func (h *Host) writeShard(w *writer.Write) {
	store := writer.Store(h.store)
	if j := h.jobs.of(w.Job); j != nil {
		store = j.Launched().Store(h.store, func(k launchers.Kept) { h.Post(k) })
	}
	to := writer.Tier{Store: store, Spool: h.spool, Rate: h.durableRate}
	h.spawn(func(ctx context.Context) Event {
		info, err := w.Run(ctx, to, h.ailing(w.Attempt))
		h.Post(answer{h.writer, writer.Returned{Write: w, Info: info, Err: err}})
		if w.Kept() {
			w.Release(ctx)
		}
		return nil
	})
}

// discard removes what a durable write left, beside the host. What it can't remove a sweep of the tier does.
func (h *Host) discard(d writer.Discard) {
	h.spawn(func(ctx context.Context) Event {
		if err := h.store.Discard(ctx, d.Attempt, d.Objects); err != nil {
			h.log.Failed("durable", "remove what a skipped write left of job "+d.Name, err.Error())
		}
		return answer{h.writer, writer.Discarded{Discard: d}}
	})
}

// writeMarker makes a generation exist, beside the host. The room hears of it as soon as it exists: a store that stands still afterwards holds up no
// other write, and the next one says what ails it.
func (h *Host) writeMarker(m writer.Mark) {
	h.spawn(func(ctx context.Context) Event {
		is := writer.Marked{Mark: m}
		said := sync.OnceFunc(func() { h.Post(answer{h.writer, is}) })
		err := h.store.CommitThen(tier.Watching(ctx, tier.Watch{Troubled: h.ailing(m.Attempt)}), m.Attempt, m.Said, m.Roots, m.Objects, func() {
			if m.Keep == "" {
				said()
			}
		})
		if err == nil && m.Keep != "" { // who has asked for it waits for that too
			err = h.store.Keep(ctx, m.Name, m.Job, m.Generation, m.Keep)
		}
		if err != nil {
			is.Failed, is.Fenced = writer.Text(err), errors.Is(err, tier.ErrFenced)
			return answer{h.writer, is}
		}
		said()
		return nil
	})
}

// Tier is the durable tier as a host needs it: a *tier.Tier.
type Tier interface {
	writer.Store
	mover.Disk
	// CommitThen makes a generation exist, and calls there once it does.
	CommitThen(ctx context.Context, a tier.Attempt, said tier.Said, roots map[replica.Part]replica.Digest, objects []replica.Stored, there func()) error
	// KeepFiles has a job's run carry files, unless it carries some: there is the SHA-256 of those that it carries then.
	KeepFiles(ctx context.Context, a tier.Attempt, tar *kept.Tar) (there string, err error)
	// Keep pins a generation for good.
	Keep(ctx context.Context, name string, id replica.JobID, g replica.Generation, why string) error
	Discard(ctx context.Context, a tier.Attempt, objects []string) error
	// Hangs says which call was given up and has not returned; nil: none.
	Hangs() error
}

// Cluster is the node's.
func (h rooms) Cluster() replica.ClusterID { return h.cluster }
