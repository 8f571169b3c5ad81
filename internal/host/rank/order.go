package rank

import (
	"strings"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// OrderKey names an order, so that deriving it again does not send it again.
type OrderKey struct {
	Epoch  replica.Epoch
	Action uint32
}

// Lies is where the parts of a plan lie in a rank's arena, and from which tier they came.
type Lies struct {
	Tier       replica.Tier
	Slot, Ring shm.Place
}

// Obey derives and sends the order that the rank needs now. lies is nil where the parts of the plan do not lie in its arena yet.
func (lr *Rank) Obey(job *replica.Job, lies *Lies) {
	if lr.Peer == nil || job.Phase == replica.Ended || lr.Superseded(job) || lr.Outgrown(job) {
		return
	}
	switch {
	case job.Phase == replica.Opening && job.Naming == nil && !room.Adopted(job) && lr.Stopped() && job.Epoch > job.ClosedEpoch && lr.Initial != job.Epoch:
		o := wire.Order{Action: wire.OrderInit, Step: job.Start()}
		if job.Growth != nil {
			if lr.Arena.Grown() != job.Epoch {
				return // it has not got its arena
			}
			o.Step = job.Growth.Step
		}
		lr.Once(job.Epoch, o)
	case job.Phase == replica.Planned && job.Plan != nil && lr.Stopped() && lr.Loaded != job.Epoch && lr.Rejected != job.Epoch && lies != nil:
		group, private := lr.Sources(job)
		lr.Once(job.Epoch, wire.Order{Action: wire.OrderLoad, Source: lies.Tier, Step: job.Plan.Generation.Step, Generation: job.Plan.Generation,
			Slot: uint32(lies.Slot.Index), Place: uint32(lies.Ring.Index), ReplicatedRoot: group.Root, PrivateRoot: private.Root})
	case job.Phase == replica.Open && lr.Loaded == job.Epoch && lr.Gone != job.Epoch:
		// Once an epoch: a rank that stops again under it waits for the fault that made it stop.
		lr.Gone = job.Epoch
		lr.Does(Goes)
		lr.Once(job.Epoch, wire.Order{Action: wire.OrderGo, Step: job.Plan.Generation.Step, Generation: job.Plan.Generation})
	}
}

// Sources are those of the plan for the rank's group and for itself.
func (lr *Rank) Sources(job *replica.Job) (group, private replica.Source) {
	group, _ = job.Plan.Source(replica.OfGroup(room.Group(job, lr.Rank)))
	private, _ = job.Plan.Source(replica.OfRank(lr.Rank))
	return group, private
}

// Once sends an order, unless it is the one that was sent last.
func (lr *Rank) Once(epoch replica.Epoch, o wire.Order) {
	if key := (OrderKey{epoch, o.Action}); lr.Ordered != key {
		lr.Ordered = key
		lr.Order(epoch, o)
	}
}

// Order sends an order.
func (lr *Rank) Order(epoch replica.Epoch, o wire.Order) {
	lr.send(wire.RankHeader{Type: wire.MOrder, Epoch: epoch}, o.Append(nil))
}

// Fence has the rank stop in an epoch that is closed: by its word first, which it reads in each step, and then by a message.
func (lr *Rank) Fence(closed replica.Epoch) {
	lr.send(wire.RankHeader{Type: wire.MFence, Epoch: closed}, nil)
}

// Paused answers the rank's announcement that it stands still.
func (lr *Rank) Paused(request uint32, epoch replica.Epoch) {
	lr.send(wire.RankHeader{Type: wire.MPaused, Request: request, Epoch: epoch}, nil)
}

// End has the rank's process exit: once, but who left as often as they ask.
func (lr *Rank) End(job *replica.Job, why string) {
	key := OrderKey{job.Epoch, wire.OrderStop}
	if lr.Peer == nil || lr.Ordered == key {
		return
	}
	lr.Ordered = key
	if lr.LeaveTo != 0 && job.Phase == replica.Ended {
		lr.send(wire.RankHeader{Type: wire.MBye, Request: lr.LeaveTo, Epoch: job.Epoch}, nil)
		return
	}
	lr.Order(job.Epoch, wire.Order{Action: wire.OrderStop, Code: wire.CodeStopped, Text: shortly(why)})
}

func (lr *Rank) send(head wire.RankHeader, body []byte) {
	if lr.Peer != nil {
		head.Incarnation = lr.Incarnation
		lr.Peer.Send(head, body) //nolint:errcheck // a dead peer is Gone
	}
}

// shortly is why a rank has to exit, as far as an order has room. Half a reason would name no cause, and where no launcher runs nobody
// else has it.
func shortly(why string) string {
	if len(why) <= wire.MaxOrderText {
		return why
	}
	what, _, _ := strings.Cut(why, ":")
	return what + ": `replicad status` says why"
}
