package job

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

// A copy whose bytes no longer hash to its digest is given up where it lies and named in the node's report; recovery decides
// what follows (recovery/condemn.go). A node that was sent bad bytes reports that to the leader, which has the sender read its
// copies again: the wire may be at fault as well.

// maxBad bounds what is reported of a job; what is dropped is found bad again when it is read.
const maxBad = 64

// Spoiled takes down that a copy was found bad here, in memory or on disk: lost is the part of the plan that is lost with it.
func (j *Job) Spoiled(lost replica.Held, disk bool) {
	list := &j.Bad
	if disk {
		list = &j.BadDisk
	}
	if slices.Contains(*list, lost) {
		return
	}
	if len(*list) >= maxBad {
		*list = (*list)[1:]
	}
	*list = append(*list, lost)
	j.Report()
}

// Recheck reads every copy of a part that lies here again, and gives up those that fail.
func (j *Job) Recheck(c control.CorruptCopy) {
	for _, l := range parts(j) {
		if l.Held.Part != c.Part || l.Info.Root != c.Root || c.Part.Kind != replica.FrozenPart && l.Info.Generation != c.Generation {
			continue
		}
		j.at.Node.Recheck(j.Job.ID, l, room.Lost(j.Job, c.Part, c.Generation, c.Root, l.Held.Rank))
	}
}

// Corrupt passes on which holders sent bytes that do not hash to their digests.
func (j *Job) Corrupt(c control.CorruptCopy, nodes []replica.NodeName) {
	for _, n := range nodes {
		c.Node = n
		j.at.Log.Failed("digest", string(n), fmt.Sprintf("%v of generation %v arrived corrupt: that node is asked to read its copy again", c.Part, c.Generation))
		if n == j.at.Node.Self().Name {
			j.Recheck(c)
		} else {
			j.at.send(c)
		}
	}
}

// Rotted follows a copy that failed a digest as it was read again: it is read once more, whole, and given up as any other.
func (j *Job) Rotted(c holding.Copy, why error) {
	j.at.Log.Rotted(j.Job, c.Held.Part, c.Info.Generation, c.Arena.Key(), why)
	j.at.Node.Recheck(j.Job.ID, c, room.Lost(j.Job, c.Held.Part, c.Info.Generation, c.Info.Root, c.Held.Rank))
}

// Copy locates what an order asks for: in the arena of that very rank, since others may lie here too.
func (j *Job) Copy(o control.RegionsOrder) (holding.Copy, bool) {
	for _, l := range parts(j) {
		if held := l.Held; held.Part == o.Part && held.Generation == o.Generation && held.Root == o.Root && held.Rank == o.Rank && !held.Mirror {
			return l, true
		}
	}
	return holding.Copy{}, false
}
