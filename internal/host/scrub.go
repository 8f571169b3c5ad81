package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// What lies sealed here is read again at a bounded rate and held against its digests: a bit that flips in memory is found while
// there are other copies, not by the recovery that needs this one. It rests while a job here recovers, which reads what it uses anyway.

const (
	scrubSlice = 4 << 20     // bytes, and at least one chunk, read between two looks at what lies here
	scrubIdle  = time.Second // until the next look, where there is nothing to read
)

// scrub reads for as long as the host runs. Beside the host.
func (h *Host) scrub(ctx context.Context) {
	if h.cfg.ScrubRate == 0 {
		return
	}
	manners.Yield()
	timer := time.NewTimer(scrubIdle)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		var q sliceWanted
		if !h.ask(ctx, &q) {
			return
		}
		if !q.found {
			timer.Reset(scrubIdle)
			continue
		}
		end := sliceEnd{of: &q, err: q.verify()}
		if !h.ask(ctx, &end) {
			return
		}
		if end.bad {
			h.giveUp(ctx, &q)
		}
		timer.Reset(time.Duration(float64(q.bytes()) / float64(h.cfg.ScrubRate) * float64(time.Second)))
	}
}

// sliceWanted asks what to read next. Its place is not held: a copy that is freed while it is read is none of the scrubber's any more.
type sliceWanted struct {
	found    bool
	lj       *localJob
	copy     holding.Copy
	as       scrubbable
	from, to int
}

func (q *sliceWanted) serve(h *Host) {
	var copies []holding.Copy
	var jobs []*localJob
	var as []scrubbable
	for _, lj := range h.jobs {
		switch lj.job.Phase {
		case replica.Closed, replica.Planned:
			return
		case replica.Opening, replica.Ended:
			continue
		case replica.Open:
		}
		for _, c := range lj.parts() {
			first := c.Place.Kind == shm.Frozen || c.Info.Generation == lj.job.Committed
			copies, jobs = append(copies, c), append(jobs, lj)
			as = append(as, scrubbable{lain{c.Arena.Key(), c.Place, c.Info.Count}, len(c.Info.Digests), first})
		}
	}
	at, chunk, ok := h.scrubs.next(as, time.Now())
	if !ok {
		return
	}
	q.found, q.lj, q.copy, q.as, q.from = true, jobs[at], copies[at], as[at], chunk
	q.to = min(q.from+max(1, scrubSlice/int(q.copy.Arena.Header().ChunkBytes)), q.as.chunks)
	q.copy.Arena.Enter()
}

// verify reads the slice, and before the first one the digests themselves.
func (q *sliceWanted) verify() error {
	if q.from == 0 {
		if _, err := q.copy.Arena.Sealed(q.copy.Place); err != nil {
			return err
		}
	}
	return q.copy.Arena.VerifyChunks(q.copy.Place, q.copy.Info, q.from, q.to)
}

func (q *sliceWanted) bytes() uint64 {
	chunk := uint64(q.copy.Arena.Header().ChunkBytes)
	return min(uint64(q.to)*chunk, q.copy.Info.Bytes) - uint64(q.from)*chunk
}

// sliceEnd takes in what reading a slice has found.
type sliceEnd struct {
	of  *sliceWanted
	err error

	bad bool
}

func (q *sliceEnd) serve(h *Host) {
	s, c := q.of, q.of.copy
	c.Arena.Leave()
	h.scrubs.read(s.as, s.to, time.Now())
	h.scrubbed.Bytes += s.bytes()
	if q.bad = errors.Is(q.err, shm.ErrCorrupt); q.bad {
		h.scrubbed.Bad++
		h.log.Rotted(s.lj.job, c.Held.Part, c.Info.Generation, c.Arena.Key(), q.err)
	}
}

// giveUp has the bad copy read once more, whole, and given up as any other that fails its digest; a mirror fetches it again.
func (h *Host) giveUp(ctx context.Context, q *sliceWanted) {
	of := plannedWanted{lj: q.lj, copy: q.copy}
	if h.ask(ctx, &of) && !h.verify(ctx, q.lj, q.copy.Arena, q.copy.Place, of.held) {
		h.ask(ctx, &mirrorRotted{q.lj, q.copy})
	}
}

// plannedWanted asks what part of the plan is lost with a copy.
type plannedWanted struct {
	lj   *localJob
	copy holding.Copy

	held replica.Held
}

func (q *plannedWanted) serve(*Host) {
	q.held = q.lj.planned(q.copy.Held.Part, q.copy.Info.Generation, q.copy.Info.Root, q.copy.Held.Rank)
}

// mirrorRotted is a copy that was given up.
type mirrorRotted struct {
	lj   *localJob
	copy holding.Copy
}

// serve fetches the committed part of a running job that a mirror here has lost. What is newer or older is replaced by the next commits anyway, and
// a frozen part comes again with the next one that binds it.
func (q *mirrorRotted) serve(h *Host) {
	job, held := q.lj.job, q.copy.Held
	if job.Phase != replica.Open || !held.Mirror || held.Part.Kind == replica.FrozenPart || q.copy.Info.Generation != job.Committed || job.Plan == nil || q.lj.fetching[held.Part].running {
		return
	}
	plan := *job.Plan
	plan.Generation = job.Committed
	src := replica.Source{Part: held.Part, Root: held.Root, Tier: replica.PeerRAM}
	for _, p := range job.Parts {
		for _, n := range p.Holders {
			if p.Part == held.Part && n.Node != h.self.Name {
				src.Holders = append(src.Holders, n)
			}
		}
	}
	if int(held.Rank) >= len(plan.Ranks) || len(src.Holders) == 0 {
		h.log.Failed("mirror", fmt.Sprintf("%v of generation %v", held.Part, job.Committed), "no other node is known to hold it: the next commit makes a new copy")
		return
	}
	h.startFetch(q.lj, &plan, src, held.Rank)
}
