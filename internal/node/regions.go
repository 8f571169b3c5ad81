package node

import (
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// regionsHashed is the end of hashing a part's regions.
type regionsHashed struct {
	arena  *arenaRef
	places []shm.Place
	report replica.RegionReport
}

// hashRegions hashes every region of the part beside the member, those of the frozen area that its root binds too.
func (m *member) hashRegions(o control.RegionsOrder) {
	ev := regionsHashed{report: replica.RegionReport{Job: o.Job, Generation: o.Generation, Part: o.Part, Rank: o.Rank, Root: o.Root}}
	at, ok := m.sealedBy(o)
	if !ok {
		ev.report.Failed = fmt.Sprintf("%v of generation %v with root %v does not lie in an arena of rank %d here", o.Part, o.Generation, o.Root, o.Rank)
		m.send(ev.report)
		return
	}
	ev.arena = at.arena
	counts := []uint64{at.info.Count}
	ev.places = append(ev.places, at.place)
	frozen := shm.Place{Kind: shm.Frozen}
	if f, err := at.arena.sealed(frozen); err == nil && f.Root == at.info.FrozenRoot {
		ev.places, counts = append(ev.places, frozen), append(counts, f.Count)
	}
	for _, p := range ev.places {
		ev.arena.hold(p)
	}
	m.work.Go(func() {
		for i, p := range ev.places {
			regions, err := ev.arena.RegionDigests(p, counts[i])
			if err != nil {
				ev.report.Regions, ev.report.Failed = nil, err.Error()
				break
			}
			ev.report.Regions = append(ev.report.Regions, regions...)
		}
		m.post(ev)
	})
}

func (m *member) regionsHashed(ev regionsHashed) {
	for _, p := range ev.places {
		ev.arena.release(p)
	}
	m.send(ev.report)
}

// sealedBy locates what an order asks for: in the arena of that very rank, since others may lie here too.
func (m *member) sealedBy(o control.RegionsOrder) (located, bool) {
	if lj := m.jobs[o.Job]; lj != nil {
		for _, l := range lj.parts() {
			if h := l.held; h.Part == o.Part && h.Generation == o.Generation && h.Root == o.Root && h.Rank == o.Rank && !h.Mirror {
				return l, true
			}
		}
	}
	return located{}, false
}
