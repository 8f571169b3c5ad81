package host

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// prunePushes ends the pushes of a job that are not wanted any more.
func (h *Host) prunePushes(e push.Prune) {
	dropped := h.mover.Prune(e.Job, e.Wanted)
	for _, p := range dropped {
		drop(p.From)
	}
	if j := h.jobs.of(e.Job); j != nil && len(dropped) > 0 {
		j.Retain() // what they held
	}
}

// handOver gives the mover a copy to push, and says which pushes it dropped for that.
func (h *Host) handOver(s *push.Send) (dropped []transfer.Key) {
	j := h.jobs.of(s.Line.Job)
	if j == nil {
		return nil
	}
	r, err := h.reader(j.Job, s.Copy)
	if err != nil {
		return nil // it was freed
	}
	for _, p := range h.mover.Push(s.Line, mover.Push{Key: s.Key, From: h.pace(r, s.Class)}, s.Awaited) {
		drop(p.From)
		dropped = append(dropped, p.Key)
	}
	if len(dropped) > 0 {
		j.RetainRank(s.Line.Rank)
	}
	return dropped
}

// dialLane opens a lane to a registered node, at one of its addresses or, where none is named, by all of them. Beside the host.
func (h *Host) dialLane(ctx context.Context, node replica.NodeName, at string, over transfer.Transport) (transfer.Lane, error) {
	q := nodeWanted{name: node}
	if !h.ask(ctx, &q) {
		return nil, h.gone(ctx)
	}
	if !q.registered {
		return nil, fmt.Errorf("node %s is not registered", node)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if at != "" {
		return h.dial(ctx, []string{at}, node, over)
	}
	return h.dial(ctx, q.node.Ways(), node, over)
}

// waysTo are the addresses of a registered node in the order in which to use them. Beside the host.
func (h *Host) waysTo(ctx context.Context, node replica.NodeName) []string {
	q := nodeWanted{name: node}
	if !h.ask(ctx, &q) || !q.registered {
		return nil
	}
	return h.ways(q.node)
}

// nodeWanted asks where a node is.
type nodeWanted struct {
	name replica.NodeName

	node       replica.Node
	registered bool
}

func (q *nodeWanted) serve(h *Host) { q.node, q.registered = h.nodes[q.name] }
