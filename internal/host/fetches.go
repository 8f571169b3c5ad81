package host

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// newFetcher brings parts of plans to this node.
func newFetcher(h *Host) *fetch.Fetcher {
	return &fetch.Fetcher{Self: h.self.Name, Cluster: h.cluster, Log: h.log, Mover: h.mover, Ask: h.fetchAsks, Reuse: func(s *shm.Staging) error { return h.reuse(s) }}
}

// served is a fetch's request, to be served on the host's goroutine.
type served struct{ fetch.Request }

func (s served) serve(h *Host) { s.Serve(rooms{h}) }

func (h *Host) fetchAsks(ctx context.Context, r fetch.Request) error {
	if !h.ask(ctx, served{r}) {
		return h.gone(ctx)
	}
	return nil
}

// Nodes are those registered.
func (h rooms) Nodes() map[replica.NodeName]replica.Node { return h.nodes }

// Relays are the nodes that fetch a part of a plan for others.
func (h rooms) Relays(id replica.JobID, p replica.Part, e replica.Epoch) []replica.Holder {
	lj := h.jobs[id]
	if lj == nil {
		return nil
	}
	return slices.Clone(lj.mirrors.Relays(p, e))
}

// Reading is that of a place since the newest fence.
func (h rooms) Reading(id replica.JobID, a *holding.Arena, p shm.Place) fetch.Reading {
	if r := h.restores.Reading(id, a, p); r != nil {
		return r
	}
	return nil // a nil *Reading in an interface would not be nil
}

// Take takes a place of an arena for a part.
func (h rooms) Take(id replica.JobID, a *holding.Arena, m replica.Manifest) (shm.Place, *shm.Staging, error) {
	lj := h.jobs[id]
	if lj == nil {
		return shm.Place{}, nil, fmt.Errorf("%w: job %v is over", transfer.ErrFenced, id)
	}
	return h.takePlace(lj, a, m)
}

// Spoiled takes down which part is lost with a copy that was found bad here.
func (h rooms) Spoiled(id replica.JobID, lost replica.Held, disk bool) {
	lj := h.jobs[id]
	if lj == nil {
		return
	}
	list := &lj.bad
	if disk {
		list = &lj.badDisk
	}
	h.spoiled(lj, list, lost)
}

// GivenUp takes down that a bad copy is gone from its arena.
func (h rooms) GivenUp(id replica.JobID, c holding.Copy) {
	h.notify(h.scrubber.room, scrub.GivenUp{Job: id, Copy: c})
}

// Corrupt passes on which nodes sent bytes that do not hash to their digests.
func (h rooms) Corrupt(c control.CorruptCopy, nodes []replica.NodeName) {
	if lj := h.jobs[c.Job]; lj != nil {
		h.corrupt(lj, c, nodes)
	}
}
