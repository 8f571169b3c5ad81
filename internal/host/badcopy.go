package host

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/shm"
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

// planned is the part of the newest plan that is lost with a copy: a group's part where its frozen one is, which no plan
// names. On the host's goroutine.
func (lj *localJob) planned(p replica.Part, g replica.Generation, root replica.Digest, r replica.Rank) replica.Held {
	h := replica.Held{Part: p, Generation: g, Root: root, Rank: r}
	if p.Kind == replica.FrozenPart && lj.job.Plan != nil {
		if src, ok := lj.job.Plan.Source(replica.OfGroup(replica.GroupID(p.Index))); ok {
			h.Part, h.Root = src.Part, src.Root
		}
	}
	return h
}

// recheck reads every copy of a part that lies here again, and gives up those that fail. On the host's goroutine.
func (h *Host) recheck(lj *localJob, c control.CorruptCopy) {
	for _, l := range lj.parts() {
		if l.Held.Part != c.Part || l.Info.Root != c.Root || c.Part.Kind != replica.FrozenPart && l.Info.Generation != c.Generation {
			continue
		}
		of := lj.planned(c.Part, c.Generation, c.Root, l.Held.Rank)
		h.spawn(func(ctx context.Context) Event {
			h.verify(ctx, lj, l.Arena, l.Place, of)
			return nil
		})
	}
}

// verify reads a sealed place whole and compares every digest; one that fails is freed and reported. Beside the host.
func (h *Host) verify(ctx context.Context, lj *localJob, arena *holding.Arena, p shm.Place, held replica.Held) bool {
	begin := verifyBegin{lj: lj, arena: arena, place: p}
	if !h.ask(ctx, &begin) || !begin.sealed {
		return false
	}
	err := arena.Verify(p)
	h.ask(h.ctx, &verifyEnd{lj, begin.copy, arena, p, held, err})
	if err != nil {
		h.log.Failed("digest", arena.Key(), fmt.Sprintf("%v: given up, it is fetched from another holder", err))
	}
	return err == nil
}

// verifyBegin holds a place that is sealed; verifyEnd lets go of it, and frees it where it was found bad.
type (
	verifyBegin struct {
		lj    *localJob
		arena *holding.Arena
		place shm.Place

		sealed bool
		copy   holding.Copy
	}
	verifyEnd struct {
		lj    *localJob
		copy  holding.Copy // none where the arena is none of the job's any more
		arena *holding.Arena
		place shm.Place
		held  replica.Held
		err   error
	}
)

func (q *verifyBegin) serve(*Host) {
	for _, c := range q.lj.parts() {
		if c.Arena == q.arena && c.Place == q.place {
			q.copy = c
		}
	}
	q.sealed = q.arena.HoldSealed(q.place)
}

func (q *verifyEnd) serve(h *Host) {
	q.arena.Release(q.place)
	if q.err != nil {
		q.arena.Free(q.place)
		h.spoiled(q.lj, &q.lj.bad, q.held)
		if q.copy.Arena != nil {
			h.notify(h.scrubber.room, scrub.GivenUp{Job: q.lj.job.ID, Copy: q.copy})
		}
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
