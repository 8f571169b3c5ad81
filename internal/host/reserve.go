package host

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/mirrors"
)

// arenaShort says that the memory of an arena, which is in use already, is not to be had.
type arenaShort struct {
	arena *holding.Arena
	err   error
}

// reserve takes the memory of an arena beside the host. It is in use meanwhile: a gigabyte takes most of a second, in which the state of
// a replacement is on its way into it.
func (h *Host) reserve(ref *holding.Arena) {
	ctx := h.ctx
	h.work.Go(func() {
		if err := ref.Reserve(ctx); err != nil && ctx.Err() == nil {
			h.Post(arenaShort{ref, err})
		}
	})
}

// arenaShort stops the rank before it writes where no memory is: the kernel would kill whom it likes for that. A mirror is given up.
func (h *Host) arenaShort(ev arenaShort) {
	for _, j := range h.jobs.all {
		j.Short(ev.arena, ev.err)
	}
	h.notify(h.mirrors, mirrors.Short{Arena: ev.arena, Err: ev.err})
}
