package host

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// A copy whose bytes no longer hash to its digest is given up where it lies and named in the node's report; recovery decides
// what follows (recovery/condemn.go). A node that was sent bad bytes says so to the leader, which has the sender read its
// copies again: the wire may be at fault as well.

// maxBad bounds what is reported of a job; what is dropped is found bad again when it is read.
const maxBad = 64

// spoiled takes down in a list of the job's that a copy was found bad here. On the host's goroutine.
func (h *Host) spoiled(lj *localJob, list *[]replica.Held, held replica.Held) {
	if slices.Contains(*list, held) {
		return
	}
	if len(*list) >= maxBad {
		*list = (*list)[1:]
	}
	*list = append(*list, held)
	h.report(lj)
}

// recheck reads every copy of a part that lies here again, and gives up those that fail. On the host's goroutine.
func (h *Host) recheck(lj *localJob, c control.CorruptCopy) {
	for _, l := range lj.parts() {
		if l.Held.Part != c.Part || l.Info.Root != c.Root || c.Part.Kind != replica.FrozenPart && l.Info.Generation != c.Generation {
			continue
		}
		lost := room.Lost(lj.job, c.Part, c.Generation, c.Root, l.Held.Rank)
		h.spawn(func(ctx context.Context) Event {
			h.fetches.Verify(ctx, lj.job.ID, l.Arena, l.Place, lost)
			return nil
		})
	}
}

// corrupt passes on which holders sent bytes that do not hash to their digests.
func (h *Host) corrupt(lj *localJob, c control.CorruptCopy, nodes []replica.NodeName) {
	for _, n := range nodes {
		c.Node = n
		h.log.Failed("digest", string(n), fmt.Sprintf("%v of generation %v arrived corrupt: that node is asked to read its copy again", c.Part, c.Generation))
		if n == h.self.Name {
			h.recheck(lj, c)
		} else {
			h.send(c)
		}
	}
}
