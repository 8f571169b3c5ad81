package host

import (
	"context"
	"path/filepath"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/shm"
)

// memory is that of the node: who keeps it, and what makes it. A test may put something slow in the place of what takes seconds for large states
// and so runs beside the host.
type memory struct {
	keeper  Keeper
	custody *holding.Custodian
	create  func(shm.Spec) (*shm.Arena, error)
	room    func(shm.Spec) error
	reuse   func(*shm.Staging) error
}

func (h *Host) arenaListPath() string { return filepath.Join(h.cfg.StateDir, "arenas.json") }

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

// unmap gives back an arena's memory, beside the host: the last one to let go of gigabytes frees them.
func (h *Host) unmap(a *shm.Arena) {
	h.spawn(func(context.Context) Event {
		a.Close()
		return arenaClosed{}
	})
}

// arenaClosed is the end of giving back an arena's memory.
type arenaClosed struct{}
