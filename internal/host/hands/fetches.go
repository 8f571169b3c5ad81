package hands

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Mirror fetches a part of a plan into the arena that mirrors it here.
func (h *Hands) Mirror(to act.Room, e *mirrors.Fetch) {
	part := e.Source.Part
	h.Owner.Beside(func(ctx context.Context) any {
		f := fetch.Parts{Fetcher: h.Fetches, Job: e.Job, Plan: e.Plan, Rank: e.Rank, Incarnation: e.Plan.Ranks[e.Rank].Incarnation}
		into := func(man replica.Manifest) (*holding.Arena, error) { return h.Owner.Arena(ctx, e.Job.ID, e.Rank, man) }
		arena, _, man, err := f.Fetch(ctx, into, holding.KindFor(part), part, e.Source)
		if err == nil {
			err = f.Frozen(ctx, arena, man.FrozenRoot, e.Source, part)
		}
		e.Missed = f.Missed
		return Answer{to, act.Ended{Of: e, Err: err}}
	})
}

// Restore makes the group's part (with its frozen one) and the rank's private part of the plan lie sealed in the rank's arena. ctx is
// the node's.
func (h *Hands) Restore(ctx context.Context, to act.Room, e *restore.Restore) {
	r := e.Rank
	ctx = e.Begin(ctx)
	h.Owner.Beside(func(context.Context) any {
		defer e.Stop()
		ev := restore.Ended{Of: e}
		f := fetch.Parts{Fetcher: h.Fetches, Job: e.Job, Plan: e.Plan, Rank: r.Rank, Incarnation: r.Incarnation, Tier: replica.OwnRAM}
		if ev.Slot, ev.Err = f.Ensure(ctx, r.Arena, shm.Slot, replica.OfGroup(room.Group(e.Job, r.Rank))); ev.Err == nil {
			ev.Ring, ev.Err = f.Ensure(ctx, r.Arena, shm.Ring, replica.OfRank(r.Rank))
		}
		ev.Tier, ev.Missed = f.Tier, f.Missed
		return Answer{to, ev}
	})
}

// Verify reads a copy that a plan may name.
func (h *Hands) Verify(to act.Room, e *restore.Reading) {
	h.Owner.Beside(func(ctx context.Context) any {
		e.End(h.Fetches.Verify(ctx, e.Job, e.Copy.Arena, e.Copy.Place, e.Copy.Held))
		return Answer{to, act.Ended{Of: e}}
	})
}

// Recheck reads a copy again, and gives it up where it fails its digest. lost is the part of the plan that is lost with it.
func (h *Hands) Recheck(job replica.JobID, c holding.Copy, lost replica.Held) {
	h.Owner.Beside(func(ctx context.Context) any {
		h.Fetches.Verify(ctx, job, c.Arena, c.Place, lost)
		return nil
	})
}

// Scrub has a part of a copy read, one after the other. A room asks for one at a time.
func (h *Hands) Scrub(r *scrub.Read) { h.Reads <- r }

// Read reads what Scrub was asked for until ctx ends, on a thread of low priority: the caller's, which must do nothing else.
func (h *Hands) Read(ctx context.Context, to act.Room) {
	if h.Config.Config.ScrubRate == 0 {
		return
	}
	manners.Yield()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case r := <-h.Reads:
			err := r.Verify()
			if !errors.Is(err, shm.ErrCorrupt) {
				rest.Reset(r.Rest)
				select {
				case <-rest.C:
				case <-ctx.Done():
				}
			}
			h.Owner.Post(Answer{to, act.Ended{Of: r, Err: err}})
		case <-ctx.Done():
			return
		}
	}
}

// Back fetches a part of the committed generation into the arena that has lost it, under the plan of the open epoch. ctx is the node's. A
// nil job is not known here.
func (h *Hands) Back(ctx context.Context, to act.Room, e *scrub.Fetch, job *replica.Job) {
	if job == nil || job.Plan == nil || int(e.Rank) >= len(job.Plan.Ranks) {
		h.Owner.Beside(func(context.Context) any {
			return Answer{to, act.Ended{Of: e, Err: errors.New("the job has no plan")}}
		})
		return
	}
	plan, src := *job.Plan, e.Source
	plan.Generation = e.Generation
	ctx, h.back[e] = context.WithCancel(ctx)
	h.Owner.Beside(func(context.Context) any {
		f := fetch.Parts{Fetcher: h.Fetches, Job: job, Plan: &plan, Rank: e.Rank, Incarnation: plan.Ranks[e.Rank].Incarnation}
		var err error
		if e.Frozen.IsZero() {
			into := func(replica.Manifest) (*holding.Arena, error) {
				return e.Arena, h.Fetches.Free(ctx, e.Arena, holding.KindFor(src.Part))
			}
			_, _, _, err = f.Fetch(ctx, into, holding.KindFor(src.Part), src.Part, src)
		} else {
			err = f.Frozen(ctx, e.Arena, e.Frozen, src, src.Part)
		}
		return Answer{to, act.Ended{Of: e, Err: err}}
	})
}

// Cancel ends what nobody needs any more.
func (h *Hands) Cancel(e act.Effect) {
	switch e := e.(type) {
	case *restore.Restore:
		e.Stop()
	case *scrub.Fetch:
		if cancel := h.back[e]; cancel != nil {
			cancel()
		}
	}
}

// CameBack follows the end of such a fetch, whose job may not be known any more.
func (h *Hands) CameBack(f *scrub.Fetch, err error, known bool) {
	h.Cancel(f)
	delete(h.back, f)
	if known && err != nil && !errors.Is(err, context.Canceled) {
		what := fmt.Sprintf("%v of generation %v, whose copy here was given up", f.Source.Part, f.Generation)
		h.Log.Retried("fetch", what, err.Error())
	}
}

// Regions hashes every region of a part, those of the frozen area that its root binds too. The report is for the leader.
func (h *Hands) Regions(at holding.Copy, report replica.RegionReport) {
	copies := at.Bound()
	for _, c := range copies {
		c.Arena.Hold(c.Place)
	}
	h.Owner.Beside(func(context.Context) any {
		for _, c := range copies {
			regions, err := c.RegionDigests()
			if err != nil {
				report.Regions, report.Failed = nil, err.Error()
				break
			}
			report.Regions = append(report.Regions, regions...)
		}
		return Reply{report, copies}
	})
}
