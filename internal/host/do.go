package host

import (
	"time"

	"github.com/replicad/replicad/internal/host/hands"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"

	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/host/agents"
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/want"
)

// do carries out what a room wants done. What takes time runs beside the host, and its end comes back to the room as an answer.
func (h *Host) do(r act.Room, e act.Effect) {
	switch e := e.(type) {
	case act.Send:
		h.send(e.Msg)
	case act.Wake:
		h.wake(e)
	case act.Make:
		h.hands.Make(r, e)
	case act.Park:
		h.hands.Custody.Put(e.Arena.Key(), e.Arena.File())
		h.saveArenas()
		h.hands.Custody.After(func() { h.Post(hands.Answer{To: r, Event: e.Then}) })
	case act.Reserve:
		h.hands.Reserve(e.Arena)
	case act.Forget:
		h.forget(e.Arena)
	case act.Retire:
		h.jobs.of(e.Job).Keep(e.Arena)
	case act.Save:
		h.saveArenas()
	case act.Unmap:
		h.hands.Unmap(e.Arena)
	case act.Cancel:
		h.hands.Cancel(e.Of)
	case act.Kill:
		if err := h.processes.Kill(e.PID, e.Start); err != nil {
			h.log.Failed("kill", e.Key, err.Error())
		}
	default:
		h.doFor(e)
	}
}

// wake looks at a job again.
func (h *Host) wake(e act.Wake) {
	if j := h.jobs.of(e.Job); j != nil {
		j.Wake(e.Depth)
	}
}

// doFor carries out what one room alone wants.
func (h *Host) doFor(e act.Effect) {
	switch e := e.(type) {
	case adoption.Place:
		h.jobs.of(e.Job).Place(e)
	case adoption.Mirror:
		if other := h.mirrors.Adopt(e.Job, e.Part, e.Arena); other != nil {
			h.jobs.of(e.Job).Keep(other)
		}
	case adoption.GiveUp:
		if e.Peer != nil {
			turnAway(e)
		}
		h.forget(e.Arena)
	case adoption.Placed:
		h.saveArenas() // with those that attached again meanwhile
		h.turn(h.mirrors, time.Now())
	case adoption.Settle:
		h.jobs.of(e.Job).Settled(e)
	case agents.Tell:
		h.launchers.Round(e.Peer, e.Round)
	case growth.HandOut:
		h.jobs.of(e.Job).HandOutGrown(e)
	case growth.Refuse:
		e.Peer.Refuse(e.Request, e.Code, e.Text)
	case growth.Waits:
		if j := h.jobs.of(e.Job); j != nil {
			j.WaitsForGrowth(e)
		}
	case *mirrors.Fetch:
		h.hands.Mirror(h.mirrors, e)
	case *push.Send:
		var dropped []transfer.Key
		if j := h.jobs.of(e.Line.Job); j != nil {
			if dropped = h.hands.Push(j.Job, e); len(dropped) > 0 {
				j.RetainRank(e.Line.Rank)
			}
		}
		h.push.Learn(time.Now(), push.Handed{Send: e, Dropped: dropped})
	case push.Prune:
		if j := h.jobs.of(e.Job); h.hands.Prune(e) && j != nil {
			j.Retain() // what they held
		}
	case *restore.Restore:
		h.hands.Restore(h.ctx, h.restores, e)
	case *restore.Reading:
		h.hands.Verify(h.restores, e)
	case restore.Failed:
		if kind := want.Of(e.Err); kind != want.Nothing {
			h.launchers.Of(h.jobs.of(e.Job)).Short(e.Rank, kind, e.Err.Error(), time.Now())
		}
	case *scrub.Read:
		h.hands.Scrub(e)
	case scrub.GiveUp:
		if j := h.jobs.of(e.Read.Job); j != nil {
			j.Rotted(e.Read.Copy, e.Why)
		}
	case *scrub.Fetch:
		var job *replica.Job
		if j := h.jobs.of(e.Job); j != nil {
			job = j.Job
		}
		h.hands.Back(h.ctx, h.scrub, e, job)
	case *writer.Write:
		store := writer.Store(h.hands.Store)
		if j := h.jobs.of(e.Job); j != nil {
			store = j.Launched().Store(h.hands.Store, func(k launchers.Kept) { h.Post(k) })
		}
		h.hands.Write(h.writer, e, store)
	case writer.Discard:
		h.hands.Discard(h.writer, e)
	case writer.Mark:
		h.hands.Mark(h.writer, e)
	}
}
