package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/fetch"
	"github.com/replicad/replicad/internal/host/scrub"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// scrubber carries out what the scrub room wants done.
type scrubber struct {
	room    *scrub.Room
	reads   chan *scrub.Read // of capacity 1: the room asks for one at a time
	fetches map[*scrub.Fetch]context.CancelFunc
}

func newScrubber(h *Host) scrubber {
	return scrubber{scrub.New(rooms{h}, h.log, uint64(h.cfg.ScrubRate)), make(chan *scrub.Read, 1), map[*scrub.Fetch]context.CancelFunc{}}
}

// Coming tells whether a part is on its way into an arena already.
func (h rooms) Coming(a *holding.Arena, part replica.Part, g replica.Generation, root replica.Digest) bool {
	var r holding.Receiving
	r.Add(a, part, g, root)
	return r.Any()
}

// readAgain reads what the scrub room asks for, on a thread of low priority. Beside the host.
func (h *Host) readAgain(ctx context.Context) {
	if h.cfg.ScrubRate == 0 {
		return
	}
	manners.Yield()
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case r := <-h.scrubber.reads:
			err := r.Verify()
			if !errors.Is(err, shm.ErrCorrupt) {
				rest.Reset(r.Rest)
				select {
				case <-rest.C:
				case <-ctx.Done():
				}
			}
			h.Post(answer{h.scrubber.room, scrub.ReadEnded{Read: r, Err: err}})
		case <-ctx.Done():
			return
		}
	}
}

// fetchBack fetches a part of the committed generation into the arena that has lost it, under the plan of the open epoch.
func (h *Host) fetchBack(e *scrub.Fetch) {
	j := h.jobs.of(e.Job)
	if j == nil || j.Job.Plan == nil || int(e.Rank) >= len(j.Job.Plan.Ranks) {
		h.spawn(func(context.Context) Event { return scrub.FetchEnded{Fetch: e, Err: errors.New("the job has no plan")} })
		return
	}
	plan := *j.Job.Plan
	plan.Generation = e.Generation
	job, src := j.Job, e.Source
	ctx, cancel := context.WithCancel(h.ctx)
	h.scrubber.fetches[e] = cancel
	h.spawn(func(context.Context) Event {
		f := fetch.Parts{Fetcher: h.fetches, Job: job, Plan: &plan, Rank: e.Rank, Incarnation: plan.Ranks[e.Rank].Incarnation}
		var err error
		if e.Frozen.IsZero() {
			into := func(replica.Manifest) (*holding.Arena, error) {
				return e.Arena, h.fetches.Free(ctx, e.Arena, holding.KindFor(src.Part))
			}
			_, _, _, err = f.Fetch(ctx, into, holding.KindFor(src.Part), src.Part, src)
		} else {
			err = f.Frozen(ctx, e.Arena, e.Frozen, src, src.Part)
		}
		return scrub.FetchEnded{Fetch: e, Err: err}
	})
}

// fetchedBack follows the end of such a fetch: what is sealed again is reported.
func (h *Host) fetchedBack(ev scrub.FetchEnded) {
	if cancel := h.scrubber.fetches[ev.Fetch]; cancel != nil {
		cancel()
		delete(h.scrubber.fetches, ev.Fetch)
	}
	if j := h.jobs.of(ev.Fetch.Job); j != nil {
		if ev.Err != nil && !errors.Is(ev.Err, context.Canceled) {
			h.log.Retried("fetch", fmt.Sprintf("%v of generation %v, whose copy here was given up", ev.Fetch.Source.Part, ev.Fetch.Generation), ev.Err.Error())
		}
		j.Report()
	}
	h.notify(h.scrubber.room, ev)
}
