package host

import (
	"context"

	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// readAtFence reads a copy that a plan may name, beside the host.
func (h *Host) readAtFence(e *restore.Reading) {
	h.spawn(func(ctx context.Context) Event {
		e.End(h.fetches.Verify(ctx, e.Job, e.Copy.Arena, e.Copy.Place, e.Copy.Held))
		return answer{h.restores, restore.ReadEnded{Of: e}}
	})
}

// restore makes the group's part (with its frozen one) and the rank's private part of the plan lie sealed in the rank's arena, beside the host.
func (h *Host) restore(e *restore.Restore) {
	r := e.Rank
	ctx := e.Begin(h.ctx)
	h.spawn(func(context.Context) Event {
		defer e.Stop()
		ev := restore.Ended{Of: e}
		f := fetch.Parts{Fetcher: h.fetches, Job: e.Job, Plan: e.Plan, Rank: r.Rank, Incarnation: r.Incarnation, Tier: replica.OwnRAM}
		if ev.Slot, ev.Err = f.Ensure(ctx, r.Arena, shm.Slot, replica.OfGroup(room.Group(e.Job, r.Rank))); ev.Err == nil {
			ev.Ring, ev.Err = f.Ensure(ctx, r.Arena, shm.Ring, replica.OfRank(r.Rank))
		}
		ev.Tier, ev.Missed = f.Tier, f.Missed
		return answer{h.restores, ev}
	})
}
