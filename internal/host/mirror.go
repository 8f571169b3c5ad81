package host

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// fetchMirror fetches a part of a plan into the arena that mirrors it here.
func (h *Host) fetchMirror(e *mirrors.Fetch) {
	part := e.Source.Part
	h.spawn(func(ctx context.Context) Event {
		f := fetch.Parts{Fetcher: h.fetches, Job: e.Job, Plan: e.Plan, Rank: e.Rank, Incarnation: e.Plan.Ranks[e.Rank].Incarnation}
		into := func(man replica.Manifest) (*holding.Arena, error) { return h.mirrorArena(ctx, e.Job.ID, e.Rank, man) }
		arena, _, man, err := f.Fetch(ctx, into, holding.KindFor(part), part, e.Source)
		if err == nil {
			err = f.Frozen(ctx, arena, man.FrozenRoot, e.Source, part)
		}
		return answer{h.mirrors, mirrors.FetchEnded{Fetch: e, Missed: f.Missed, Err: err}}
	})
}

// mirrorArena returns the arena for a mirrored part, made to its size, once it is with the keeper and on the list. Beside the host.
func (h *Host) mirrorArena(ctx context.Context, id replica.JobID, rank replica.Rank, man replica.Manifest) (*holding.Arena, error) {
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
