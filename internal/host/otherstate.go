package host

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A process whose regions are not those of the state that it would have to load is refused before it has the rank, with the
// difference by name: the digests that Raft compares could only say that there is one.

// durableGeometry is what a rank has in the durable generation that a job opens from.
type durableGeometry struct {
	of    replica.Generation
	known bool // it was read, or can't be
	is    replica.Geometry
}

// durableRead is the end of reading one.
type durableRead struct {
	job  replica.JobID
	rank replica.Rank
	of   replica.Generation
	is   replica.Geometry
}

// durableGeometry returns what the rank has in the durable generation that its job opens from, once that is known. Zero: the job
// opens from none, or it can't be read here, which the restore will say.
func (h *Host) durableGeometry(lj *localJob, rank replica.Rank) (g replica.Geometry, known bool) {
	if !room.Adopted(lj.job) || h.store == nil {
		return g, true
	}
	job := lj.job
	if kept := lj.kept[rank]; kept != nil && kept.of == job.Durable {
		return kept.is, kept.known
	}
	lj.kept[rank] = &durableGeometry{of: job.Durable}
	h.spawn(func(ctx context.Context) Event {
		ev := durableRead{job: job.ID, rank: rank, of: job.Durable}
		r, err := h.store.Open(ctx, job.Name, job.ID, job.Durable, replica.OfRank(rank))
		if err == nil {
			ev.is, err = replica.NewGeometry(r.Regions())
			r.Close()
		}
		if err != nil {
			h.log.Failed("durable", fmt.Sprintf("regions of rank %d in generation %v", rank, job.Durable), err.Error())
		}
		return ev
	})
	return g, false
}

func (h *Host) durableRead(ev durableRead) {
	if lj := h.jobs[ev.job]; lj != nil && lj.job.Durable == ev.of {
		lj.kept[ev.rank] = &durableGeometry{ev.of, true, ev.is}
		h.serveAttaching()
	}
}

// otherState says how what a process registers differs from the state that it would have to load, as far as this node holds
// any of it, in memory or as what kept says of the durable tier. Empty: nothing is known to differ.
func (lj *localJob) otherState(rank replica.Rank, group replica.GroupID, g, kept replica.Geometry) string {
	if len(lj.job.Lineage) == 0 {
		return "" // nothing was ever resumed: there is nothing to load
	}
	type state struct {
		of replica.Rank
		is replica.Geometry
	}
	var states []state
	for _, a := range lj.view().Arenas() {
		if g := lj.job.Grown; g != 0 && !a.Needed(func(held replica.Generation) bool { return held.Epoch >= g }) {
			continue // what lies there is of before the job grew
		}
		states = append(states, state{a.Spec().Rank, a.Geometry()})
	}
	instead := ""
	if len(kept.Regions) > 0 {
		states = append(states, state{rank, kept})
		instead = ", without --resume"
	}
	for _, s := range states {
		if room.Group(lj.job, s.of) == group && shm.GeometryDigest(s.is, replica.ReplicatedPart) == lj.job.GroupGeometry[group] {
			if text := replica.DiffGeometry(s.is, g, replica.ReplicatedPart); text != "" {
				return fmt.Sprintf("rank %d registers another geometry than the state of group %d has: %s: start the program with the model and optimizer that the job was started with, or end the job (replicad job end %s) and begin a new one%s", rank, group, text, lj.job.Name, instead)
			}
		}
		if s.of == rank && s.is.PrivateBytes > 0 {
			if text := replica.DiffGeometry(s.is, g, replica.PrivatePart); text != "" {
				return fmt.Sprintf("rank %d registers another geometry than its own state has: %s: register the same private state (generators, samplers, further objects) as before, or end the job (replicad job end %s) and begin a new one%s", rank, text, lj.job.Name, instead)
			}
		}
	}
	return ""
}

// otherThanPeers says how what a process registers differs from what a rank of its group here has, where Raft refused its claim for
// that.
func (h *Host) otherThanPeers(lj *localJob, c replica.Claim, g replica.Geometry) string {
	groups := lj.job.Layout.Groups
	if lj.job.Naming != nil {
		groups = lj.job.Naming
	}
	peers := map[replica.Rank]replica.Geometry{}
	for r, lr := range lj.ranks {
		if lr.alive() && int(r) < len(groups) && groups[r] == c.Group {
			peers[r] = lr.arena.Geometry()
		}
	}
	for _, a := range h.attaching { // those that have their claim and wait for their arena, or whose answer this refusal has overtaken
		if (a.granted != 0 || a.request != 0) && a.claim.Job == c.Job && a.claim.Group == c.Group {
			peers[a.claim.Rank] = a.geometry
		}
	}
	delete(peers, c.Rank)
	for _, r := range slices.Sorted(maps.Keys(peers)) {
		if text := replica.DiffGeometry(peers[r], g, replica.ReplicatedPart); text != "" {
			return fmt.Sprintf("; beside rank %d: %s", r, text)
		}
	}
	return ""
}
