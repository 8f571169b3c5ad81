package lock

import (
	"slices"

	"github.com/replicad/replicad/replica"
)

// DurableDue tells, where steps count, whether the committed generation is to be written: it is the first past a multiple of durable_every that
// the durable tier, whose newest is have, does not have. Commits may skip steps, so it need not be the multiple itself.
func DurableDue(job *replica.Job, have replica.Generation) bool {
	every := job.Options.DurableSteps()
	unloadable := have.Epoch < job.Grown // it is from before the job grew: what there is can't be gone on from
	return job.Options.DurableEvery > 0 && (unloadable || every > 0 && job.Committed.Step/every > max(have.Step, job.Start())/every) && job.Committed != job.Durable
}

// IsMultiple tells whether a step is one that the durable tier is to have, where steps count.
func IsMultiple(job *replica.Job, s replica.Step) bool {
	every := job.Options.DurableSteps()
	return every > 0 && s%every == 0
}

// forWrite is the step to commit instead of one: the next multiple of durable_every, where ranks can still reach it, commits come so many
// steps apart that the commit after this one would be beyond it, and ranks capture it by the job's cadence. Otherwise what the durable tier gets
// is whatever was committed next.
func forWrite(job *replica.Job, step, stride replica.Step) replica.Step {
	every := job.Options.DurableSteps()
	if every == 0 {
		return step
	}
	multiple := (job.Position.Step/every + 1) * every
	if multiple <= step || multiple-step >= stride || NextDue(job, multiple-1) != multiple {
		return step
	}
	return multiple
}

// PlanShards names for each part of the committed generation a node that writes it: one whose rank produces it and that holds it still, else any
// that holds it; of those that are there, where one is. The first of them writes the commit marker.
func PlanShards(job *replica.Job, there func(replica.NodeName) bool) replica.DurableWrite {
	w, members := replica.DurableWrite{Generation: job.Committed, Position: job.Position}, job.Layout.Members()
	for _, p := range job.Parts {
		s := replica.Shard{Part: p.Part, Root: p.Root}
		producers := []replica.Rank{replica.Rank(p.Part.Index)}
		if p.Part.Kind == replica.ReplicatedPart {
			producers = members[p.Part.Index]
		}
		for _, r := range producers {
			c := job.Ranks[r]
			if s.Node == "" && there(c.Node) && slices.Contains(p.Holders, replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}) {
				s.Node = c.Node
			}
		}
		for _, h := range p.Holders {
			if s.Node == "" && there(h.Node) {
				s.Node = h.Node
			}
		}
		if s.Node == "" && len(p.Holders) > 0 {
			s.Node = p.Holders[0].Node
		}
		w.Shards = append(w.Shards, s)
		if w.Writer == "" {
			w.Writer = s.Node
		}
	}
	return w
}
