package host

import (
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/replica"
)

// regionsHashed is the end of hashing a part's regions.
type regionsHashed struct {
	copies []holding.Copy
	report replica.RegionReport
}

// hashRegions hashes every region of the part beside the host, those of the frozen area that its root binds too.
func (h *Host) hashRegions(o control.RegionsOrder) {
	ev := regionsHashed{report: replica.RegionReport{Job: o.Job, Generation: o.Generation, Part: o.Part, Rank: o.Rank, Root: o.Root}}
	var at holding.Copy
	ok := false
	if j := h.jobs.of(o.Job); j != nil {
		at, ok = j.Copy(o)
	}
	if !ok {
		ev.report.Failed = fmt.Sprintf("%v of generation %v with root %v does not lie in an arena of rank %d here", o.Part, o.Generation, o.Root, o.Rank)
		h.send(ev.report)
		return
	}
	ev.copies = at.Bound()
	for _, c := range ev.copies {
		c.Arena.Hold(c.Place)
	}
	h.work.Go(func() {
		for _, c := range ev.copies {
			regions, err := c.RegionDigests()
			if err != nil {
				ev.report.Regions, ev.report.Failed = nil, err.Error()
				break
			}
			ev.report.Regions = append(ev.report.Regions, regions...)
		}
		h.Post(ev)
	})
}

func (h *Host) regionsHashed(ev regionsHashed) {
	for _, c := range ev.copies {
		c.Arena.Release(c.Place)
	}
	h.send(ev.report)
}
