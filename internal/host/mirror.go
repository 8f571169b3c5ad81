package host

import (
	"cmp"
	"context"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// mirror has the mirrors room learn of something, and does what follows.
func (h *Host) mirror(ev mirrors.Event) { learn(h.mirrors, ev, h.doMirror) }

// doMirror does what the room wants done.
func (h *Host) doMirror(e mirrors.Effect) {
	switch e := e.(type) {
	case mirrors.Make:
		h.work.Go(func() {
			a, err := h.create(e.Spec)
			h.Post(mirrorReady{e.Of, a, err})
		})
	case mirrors.Park:
		h.custody.Put(e.Arena.Key(), e.Arena.File())
		h.saveArenas()
		h.custody.After(func() { h.Post(mirrors.Parked{Of: e.Of}) })
	case mirrors.Reserve:
		h.reserve(e.Arena)
	case mirrors.Forget:
		h.forget(e.Arena)
	case mirrors.Retire:
		lj := h.jobs[e.Job]
		lj.retired = append(lj.retired, e.Arena)
		h.saveArenas()
	case mirrors.Drop:
		e.Arena.Drop()
	case *mirrors.Fetch:
		h.fetchMirror(e)
	case mirrors.Failing:
		h.send(e.Unreached)
	case mirrors.Came:
		h.mirrored(mirrored{e.Job})
	case mirrors.Lost:
		if lj := h.jobs[e.Job]; lj != nil {
			h.reconcile(lj)
		}
	}
}

// mirrorReady is the end of reserving a mirror's arena.
type mirrorReady struct {
	of    *mirrors.Making
	arena *shm.Arena
	err   error
}

func (h *Host) mirrorReady(ev mirrorReady) {
	made := mirrors.Made{Of: ev.of, Err: ev.err}
	if ev.err == nil {
		made.Arena = holding.New(ev.arena, holding.MirrorKey(ev.of.Job(), ev.of.Rank()), h.unmap)
	}
	h.mirror(made)
}

// fetchMirror fetches a part of a plan into the arena that mirrors it here.
func (h *Host) fetchMirror(e *mirrors.Fetch) {
	lj := h.jobs[e.Job.ID]
	part := e.Source.Part
	h.spawn(func(ctx context.Context) Event {
		f := fetcher{h: h, lj: lj, job: e.Job, plan: e.Plan, rank: e.Rank, incarnation: e.Plan.Ranks[e.Rank].Incarnation, missed: new(room.Missed)}
		into := func(man replica.Manifest) (*holding.Arena, error) { return h.mirrorArena(ctx, lj, e.Rank, man) }
		arena, _, man, err := f.fetch(ctx, into, holding.KindFor(part), part, e.Source)
		if err == nil {
			err = f.frozen(ctx, arena, man.FrozenRoot, e.Source, part)
		}
		return mirrors.FetchEnded{Fetch: e, Missed: *f.missed, Err: err}
	})
}

// mirrorArena returns the arena for a mirrored part, made to its size, once it is with the keeper and on the list. Beside the host.
func (h *Host) mirrorArena(ctx context.Context, lj *localJob, rank replica.Rank, man replica.Manifest) (*holding.Arena, error) {
	for {
		q := mirrorWanted{lj: lj, rank: rank, manifest: man}
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
	lj       *localJob
	rank     replica.Rank
	manifest replica.Manifest

	arena  *holding.Arena
	making *mirrors.Making
	err    error
}

func (q *mirrorWanted) serve(h *Host) {
	now := time.Now()
	q.arena, q.making, q.err = h.mirrors.Find(now, q.lj.job, q.rank, q.manifest)
	turn(h.mirrors, now, h.doMirror)
}

// gone says why ask has refused.
func (h *Host) gone(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return context.Canceled
}

// mirrored is a part that lies sealed in a mirror arena.
type mirrored struct {
	job replica.JobID
}

func (h *Host) mirrored(ev mirrored) {
	if lj := h.jobs[ev.job]; lj != nil {
		if lj.job.Phase == replica.Open && lj.job.Previous == nil {
			h.answerCandidate(lj)
			h.retain(lj)
		} else {
			h.reconcile(lj)
		}
	}
}
