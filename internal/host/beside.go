package host

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// handsOwner is the host as its hands see it, from beside it.
type handsOwner struct{ *Host }

func (h handsOwner) Post(ev any) { h.Host.Post(ev) }

func (h handsOwner) Beside(work func(ctx context.Context) any) {
	h.spawn(func(ctx context.Context) Event { return work(ctx) })
}

// Node is a registered node.
func (h handsOwner) Node(ctx context.Context, name replica.NodeName) (replica.Node, error) {
	q := nodeWanted{name: name}
	if !h.ask(ctx, &q) {
		return q.node, h.gone(ctx)
	}
	if !q.registered {
		return q.node, fmt.Errorf("node %s is not registered", name)
	}
	return q.node, nil
}

// nodeWanted asks where a node is.
type nodeWanted struct {
	name replica.NodeName

	node       replica.Node
	registered bool
}

func (q *nodeWanted) serve(h *Host) { q.node, q.registered = h.nodes[q.name] }

// Arena returns the arena for a mirrored part, made to its size, once it is with the keeper and on the list. Beside the host.
func (h handsOwner) Arena(ctx context.Context, id replica.JobID, rank replica.Rank, man replica.Manifest) (*holding.Arena, error) {
	for {
		q := mirrorWanted{job: id, rank: rank, manifest: man}
		if !h.ask(ctx, &q) {
			return nil, h.gone(ctx)
		}
		if q.err != nil || q.arena != nil {
			return q.arena, q.err
		}
		select {
		case <-q.making.Done():
		case <-ctx.Done():
			return nil, cmp.Or(q.making.Late(time.Now()), context.Cause(ctx))
		case <-h.ended:
			return nil, context.Canceled
		}
		if err := q.making.Err(); err != nil {
			return nil, err
		}
	}
}

// mirrorWanted asks for the arena of a mirrored part: it is there, or on its way.
type mirrorWanted struct {
	job      replica.JobID
	rank     replica.Rank
	manifest replica.Manifest

	arena  *holding.Arena
	making *mirrors.Making
	err    error
}

func (q *mirrorWanted) serve(h *Host) {
	now, j := time.Now(), h.jobs.of(q.job)
	if j == nil {
		q.err = fmt.Errorf("%w: job %v is over", transfer.ErrFenced, q.job)
		return
	}
	q.arena, q.making, q.err = h.mirrors.Find(now, j.Job, q.rank, q.manifest)
	h.turn(h.mirrors, now)
}

// gone says why ask has refused.
func (h *Host) gone(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return context.Canceled
}

// reply sends the leader what was found for it, and lets go of what was read.
func (h *Host) reply(r hands.Reply) {
	for _, c := range r.Copies {
		c.Arena.Release(c.Place)
	}
	h.send(r.Msg)
}

// short follows that the memory of an arena in use is not to be had: whose it is may be killed by its next write.
func (h *Host) short(ev hands.Short) {
	for _, j := range h.jobs.all {
		j.Short(ev.Arena, ev.Err)
	}
	h.notify(h.mirrors, mirrors.Short{Arena: ev.Arena, Err: ev.Err})
}

// released ends a read.
func (h *Host) released(ev hands.Released) {
	ev.Arena.Release(ev.Place)
	if j := h.jobs.of(ev.Arena.Spec().Job); j != nil && ev.Arena.Readers(ev.Place) == 0 {
		j.Released(ev.Arena)
	}
}

func arenaListPath(cfg *config.Config) string { return filepath.Join(cfg.StateDir, "arenas.json") }

// saveArenas has the list of arenas written. What has not found its place yet is on it as before, and what is about to be handed
// out is on it already.
func (h *Host) saveArenas() { h.hands.Custody.Write(h.arenaList()) }

// forget gives up an arena: keeper, list, memory.
func (h *Host) forget(ref *holding.Arena) {
	if ref == nil {
		return
	}
	h.hands.Custody.Drop(ref.Key())
	ref.Drop()
	h.saveArenas()
}
