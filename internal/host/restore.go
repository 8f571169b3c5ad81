package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// orderKey names an order, so that deriving it again does not send it again.
type orderKey struct {
	epoch  replica.Epoch
	action uint32
}

// order derives and sends the order each attached rank needs now.
func (h *Host) order(lj *localJob) {
	job := lj.job
	for r, lr := range lj.ranks {
		if lr.peer == nil || job.Phase == replica.Ended || lr.superseded(job) || lr.outgrown(job) {
			continue
		}
		here, done := h.restores.Done(job.ID, job.Epoch, r)
		switch {
		case job.Phase == replica.Opening && job.Naming == nil && !room.Adopted(job) && lr.stopped() && job.Epoch > job.ClosedEpoch && lr.initial != job.Epoch:
			o := wire.Order{Action: wire.OrderInit, Step: job.Start()}
			if job.Growth != nil {
				if lr.arena.Grown() != job.Epoch {
					continue // it has not got its arena
				}
				o.Step = job.Growth.Step
			}
			h.orderOnce(lr, job.Epoch, o)
		case job.Phase == replica.Planned && job.Plan != nil && lr.stopped() && lr.loaded != job.Epoch && lr.rejected != job.Epoch && done:
			group, _ := job.Plan.Source(replica.OfGroup(room.Group(lj.job, r)))
			private, _ := job.Plan.Source(replica.OfRank(r))
			h.orderOnce(lr, job.Epoch, wire.Order{Action: wire.OrderLoad, Source: here.Tier, Step: job.Plan.Generation.Step, Generation: job.Plan.Generation,
				Slot: uint32(here.Slot.Index), Place: uint32(here.Ring.Index), ReplicatedRoot: group.Root, PrivateRoot: private.Root})
		case job.Phase == replica.Open && lr.loaded == job.Epoch && lr.gone != job.Epoch:
			// Once an epoch: a rank that stops again under it waits for the fault that made it stop.
			lr.gone = job.Epoch
			lr.does(goes)
			h.orderOnce(lr, job.Epoch, wire.Order{Action: wire.OrderGo, Step: job.Plan.Generation.Step, Generation: job.Plan.Generation})
		}
	}
}

func (h *Host) orderOnce(lr *localRank, epoch replica.Epoch, o wire.Order) {
	key := orderKey{epoch, o.Action}
	if lr.ordered != key {
		lr.ordered = key
		h.sendOrder(lr, epoch, o)
	}
}

func (h *Host) sendOrder(lr *localRank, epoch replica.Epoch, o wire.Order) {
	if lr.peer != nil {
		lr.peer.Send(wire.RankHeader{Type: wire.MOrder, Epoch: epoch, Incarnation: lr.incarnation}, o.Append(nil)) //nolint:errcheck // a dead peer is Gone
	}
}

// loaded checks a rank's acknowledgement against the plan.
func (h *Host) loaded(lj *localJob, lr *localRank, ev session.Loaded) {
	job := lj.job
	if job.Phase != replica.Planned || job.Plan == nil || ev.Header.Epoch != job.Epoch {
		return // of an epoch closed meanwhile
	}
	group, _ := job.Plan.Source(replica.OfGroup(room.Group(lj.job, lr.rank)))
	private, _ := job.Plan.Source(replica.OfRank(lr.rank))
	if ev.Loaded.ReplicatedRoot != group.Root || ev.Loaded.PrivateRoot != private.Root || ev.Loaded.Generation != job.Plan.Generation {
		h.send(control.Evidence{Job: job.ID, Fault: replica.Fault{Epoch: job.Epoch, Kind: replica.BadDigest, Rank: lr.rank, Incarnation: lr.incarnation,
			Detail: fmt.Sprintf("loaded %v with roots %v and %v; the plan names %v, %v and %v", ev.Loaded.Generation, ev.Loaded.ReplicatedRoot, ev.Loaded.PrivateRoot, job.Plan.Generation, group.Root, private.Root)}})
		return
	}
	lr.loaded = job.Epoch
	h.reconcile(lj)
}

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

// takePlace takes a place for a part that is not here and not on its way; where none is free, the oldest one gives way that need not stay
// (lock/budget.go). Where what is on its way holds a place without being needed any more, that is broken off, and whoever brings the part is
// to come again.
func (h *Host) takePlace(lj *localJob, arena *holding.Arena, manifest replica.Manifest) (shm.Place, *shm.Staging, error) {
	kind := holding.KindFor(manifest.Part)
	if in, _ := h.placeStates(lj, arena, arena.Spec().Mirror, true); kind == shm.Slot && manifest.Generation == lj.candidate.Generation && lock.CommittedFirst(in) {
		return shm.Place{}, nil, fmt.Errorf("%v of the candidate: %w: what is committed comes first, and has not come", manifest.Part, transfer.ErrNotYet)
	}
	p, s, err := arena.TakeFor(manifest, func() (giveWay []shm.Place) {
		in, places := h.placeStates(lj, arena, arena.Spec().Mirror, true)
		for _, i := range lock.RetainForStaging(in, kind == shm.Ring, 1) {
			giveWay = append(giveWay, places[i])
		}
		return giveWay
	})
	needed := func(g replica.Generation) bool { return lock.Needed(lj.job, lj.candidate.Generation, g) }
	switch {
	case errors.Is(err, holding.ErrBrought):
		err = fmt.Errorf("%w: %w", transfer.ErrNotYet, err)
	case errors.Is(err, holding.ErrNoPlace) && kind == shm.Slot && needed(manifest.Generation):
		if idle := arena.Unwanted(kind, needed); len(idle) > 0 {
			h.breakOff(arena, idle)
			err = fmt.Errorf("%w: %w", transfer.ErrNotYet, err)
		}
	case errors.Is(err, holding.ErrNoPlace) && kind == shm.Slot && lj.ahead(manifest.Generation):
		err = fmt.Errorf("%w: node %s has not heard that %v is the candidate: %w", transfer.ErrNotYet, h.self.Name, manifest.Generation, err)
	}
	return p, s, err
}

// ahead tells whether a generation may be a candidate that this node has not heard of: its link to the leader may be slower than the pusher's.
func (lj *localJob) ahead(g replica.Generation) bool {
	return lj.job.Phase == replica.Open && g.Epoch == lj.job.Epoch && g.Compare(lj.job.Committed) > 0 && g.Compare(lj.candidate.Generation) > 0
}

// breakOff ends transfers into an arena whose parts nothing needs any more. Chunks under way are waited for, beside the host.
func (h *Host) breakOff(arena *holding.Arena, idle []*shm.Staging) {
	for _, s := range idle {
		h.spawn(func(context.Context) Event {
			s.Abort()
			return brokenOff{arena, s}
		})
	}
}

// brokenOff is the end of a transfer that was broken off: its place is free.
type brokenOff struct {
	arena   *holding.Arena
	staging *shm.Staging
}

// captureNow asks local ranks to capture their live state as generation g: they all stand whole at it, and it would then
// be eligible (protocol section 6, settle). A process that took a rank over since has no state to capture, whatever stands in the
// arena that it got: it has loaded nothing of that epoch.
func (h *Host) captureNow(lj *localJob, g replica.Generation) {
	if lj.job.Phase != replica.Closed {
		return
	}
	for _, lr := range lj.ranks {
		if lr.alive() && lr.stopped() && (planted.Heir || lr.loaded == g.Epoch) && lr.arena.Step().Generation() == g && lr.arena.Good().Generation() == g {
			h.sendOrder(lr, lj.job.ClosedEpoch, wire.Order{Action: wire.OrderCapture, Step: g.Step, Generation: g})
		}
	}
}
