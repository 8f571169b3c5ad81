package admission

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A process whose regions are not those of the state that it would have to load is refused before it has the rank, with the difference by
// name: the digests that Raft compares could only report that there is one.

// stateRead is the end of reading what a rank has in a durable generation.
type stateRead struct {
	job  replica.JobID
	rank replica.Rank
	of   replica.Generation
	is   replica.Geometry
}

func (stateRead) event() {}

// durableGeometry returns what the rank has in the durable generation that its job opens from, once that is known. Zero: the job opens from
// none, or it can't be read here, which the restore will report.
func (g *Gate) durableGeometry(job Job, rank replica.Rank) (is replica.Geometry, known bool) {
	record, book := job.Record(), job.Admission()
	if !room.Adopted(record) || !g.arenas.HasStore() {
		return is, true
	}
	if kept := book.kept[rank]; kept != nil && kept.of == record.Durable {
		return kept.is, kept.known
	}
	book.kept[rank] = &durableGeometry{of: record.Durable}
	ev := stateRead{job: record.ID, rank: rank, of: record.Durable}
	g.arenas.Regions(record, rank, func(is replica.Geometry) Event {
		ev.is = is
		return ev
	})
	return is, false
}

func (g *Gate) stateRead(ev stateRead, now time.Time) {
	if job := g.owner.Known(ev.job); job != nil && job.Record().Durable == ev.of {
		job.Admission().kept[ev.rank] = &durableGeometry{ev.of, true, ev.is}
		g.Serve(now)
	}
}

// otherState is how what a process registers differs from the state that it would have to load. It compares what this node holds in memory,
// and kept, which is what the durable tier has. Empty: nothing is known to differ.
func otherState(job Job, rank replica.Rank, group replica.GroupID, g, kept replica.Geometry) string {
	record := job.Record()
	if len(record.Lineage) == 0 {
		return "" // nothing was ever resumed: there is nothing to load
	}
	type state struct {
		of replica.Rank
		is replica.Geometry
	}
	var states []state
	for _, a := range job.View().Arenas() {
		if grown := record.Grown; grown != 0 && !a.Needed(func(held replica.Generation) bool { return held.Epoch >= grown }) {
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
		if room.Group(record, s.of) == group && shm.GeometryDigest(s.is, replica.ReplicatedPart) == record.GroupGeometry[group] {
			if text := replica.DiffGeometry(s.is, g, replica.ReplicatedPart); text != "" {
				return fmt.Sprintf("rank %d registers another geometry than the state of group %d has: %s: start the program with the "+
					"model and optimizer that the job was started with, or end the job (replicad job end %s) and begin a new one%s",
					rank, group, text, record.Name, instead)
			}
		}
		if s.of == rank && s.is.PrivateBytes > 0 {
			if text := replica.DiffGeometry(s.is, g, replica.PrivatePart); text != "" {
				return fmt.Sprintf("rank %d registers another geometry than its own state has: %s: register the same private state "+
					"(generators, samplers, further objects) as before, or end the job (replicad job end %s) and begin a new one%s",
					rank, text, record.Name, instead)
			}
		}
	}
	return ""
}

// otherThanPeers is how what a process registers differs from what a rank of its group here has, where Raft refused its claim for that.
func (g *Gate) otherThanPeers(job Job, c replica.Claim, has replica.Geometry) string {
	view := job.View()
	groups := view.Job.Layout.Groups
	if view.Job.Naming != nil {
		groups = view.Job.Naming
	}
	peers := map[replica.Rank]replica.Geometry{}
	for _, r := range view.Ranks {
		if r.Alive && int(r.Rank) < len(groups) && groups[r.Rank] == c.Group {
			peers[r.Rank] = r.Arena.Geometry()
		}
	}
	for _, p := range g.all { // those that have their claim and wait for their arena, or whose answer this refusal has overtaken
		if (p.granted != 0 || p.request != 0) && p.claim.Job == c.Job && p.claim.Group == c.Group {
			peers[p.claim.Rank] = p.geometry
		}
	}
	delete(peers, c.Rank)
	for _, r := range slices.Sorted(maps.Keys(peers)) {
		if text := replica.DiffGeometry(peers[r], has, replica.ReplicatedPart); text != "" {
			return fmt.Sprintf("; beside rank %d: %s", r, text)
		}
	}
	return ""
}
