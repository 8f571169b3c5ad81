package sim

import (
	"testing"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer/storetest"
)

// TestStoreSuite: what the simulation puts before the store of a host keeps the contract. internal/host has the run over the host's own
// store; here one in memory is in its place.
func TestStoreSuite(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Bed {
		b, of := storetest.MemoryBed()
		w := &world{raft: &raft{whole: &copied{view: lock.View{Jobs: map[replica.JobID]*replica.Job{}}}}, sights: make(chan sight, 64)}
		w.deaf = map[replica.Part][]replica.NodeName{replica.OfGroup(99): {"n1"}}
		here, peer := &machine{w: w, name: "n1"}, &machine{w: w, name: "n2"}
		b.Store = parts{w.deafened(here, of), here, peer}
		b.InUse = func() []string {
			list := of.InUse()
			for range here.pushed.Load() {
				list = append(list, "a group's part on its way, as the script sees it")
			}
			return list
		}
		return b
	})
}
