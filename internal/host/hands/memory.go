package hands

import (
	"context"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Make has the memory of an arena reserved, for a room.
func (h *Hands) Make(to act.Room, m act.Make) {
	h.Owner.Beside(func(context.Context) any {
		a, err := h.Create(m.Spec)
		return Answer{to, act.Made{Of: m.Of, Arena: a, Err: err}}
	})
}

// Reserve takes the memory of an arena, which is in use meanwhile. A gigabyte takes most of a second, in which the state of a replacement is
// on its way into it.
func (h *Hands) Reserve(ref *holding.Arena) {
	h.Owner.Beside(func(ctx context.Context) any {
		if err := ref.Reserve(ctx); err != nil && ctx.Err() == nil {
			return Short{ref, err}
		}
		return nil
	})
}

// Hold makes an arena of the node of its memory.
func (h *Hands) Hold(a *shm.Arena, key string) *holding.Arena { return holding.New(a, key, h.Unmap) }

// Unmap gives back an arena's memory: the last one to let go of gigabytes frees them.
func (h *Hands) Unmap(a *shm.Arena) {
	h.Owner.Beside(func(context.Context) any {
		a.Close()
		return Closed{}
	})
}

// Open opens a copy of a job's part for reading. Released follows.
func (h *Hands) Open(of *replica.Job, c holding.Copy) (*holding.Reader, error) {
	return c.Open(of, func(a *holding.Arena, p shm.Place) { h.Owner.Post(Released{a, p}) })
}
