package host

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
)

// saveArenas has the list of arenas written. What has not found its place yet is on it as before, and what is about to be handed
// out is on it already.
func (h *Host) saveArenas() { h.custody.Write(h.arenaList()) }

// forget gives up an arena: keeper, list, memory.
func (h *Host) forget(ref *holding.Arena) {
	if ref == nil {
		return
	}
	h.custody.Drop(ref.Key())
	ref.Drop()
	h.saveArenas()
}

// arenaClosed is the end of giving back an arena's memory, which takes time: the last one to let go of gigabytes frees them.
type arenaClosed struct{}

// unmap gives back an arena's memory, beside the host.
func (h *Host) unmap(a *shm.Arena) {
	h.work.Go(func() {
		a.Close()
		h.Post(arenaClosed{})
	})
}
