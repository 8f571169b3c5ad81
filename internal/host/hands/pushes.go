package hands

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Prune ends the pushes of a job that are not wanted any more. True: some have let go of what they read.
func (h *Hands) Prune(e push.Prune) bool {
	dropped := h.Mover.Prune(e.Job, e.Wanted)
	for _, p := range dropped {
		Drop(p.From)
	}
	return len(dropped) > 0
}

// Push gives the mover a copy of a job's part to push, and returns which pushes it dropped for that.
func (h *Hands) Push(of *replica.Job, s *push.Send) (dropped []transfer.Key) {
	r, err := h.Open(of, s.Copy)
	if err != nil {
		return nil // it was freed
	}
	for _, p := range h.Mover.Push(s.Line, mover.Push{Key: s.Key, From: h.Pace(r, s.Class)}, s.Awaited) {
		Drop(p.From)
		dropped = append(dropped, p.Key)
	}
	return dropped
}

// lane opens a lane to a registered node, at one of its addresses or, where none is named, by all of them. Beside the node.
func (h *Hands) lane(ctx context.Context, name replica.NodeName, at string, over transfer.Transport) (transfer.Lane, error) {
	n, err := h.Owner.Node(ctx, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if at != "" {
		return h.Dial(ctx, []string{at}, name, over)
	}
	return h.Dial(ctx, n.Ways(), name, over)
}

// ways are the addresses of a registered node in the order in which to use them. Beside the node.
func (h *Hands) ways(ctx context.Context, name replica.NodeName) []string {
	n, err := h.Owner.Node(ctx, name)
	if err != nil {
		return nil
	}
	return h.Ways(n)
}
