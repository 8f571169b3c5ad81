package lock

import (
	"github.com/replicad/replicad/replica"
)

// Parting looks at the last step of a job whose ranks have all left, by what their nodes report then: a rank seals it before it leaves, but
// nothing waits for its commit, so its roots may not have been counted. It returns the dispute of the first group whose ranks differ in
// the newest generation that all of them sealed beyond the committed one; nil where there is none.
func Parting(j *replica.Job, reports map[replica.NodeName]replica.NodeReport) *replica.ReportDispute {
	for g, members := range j.Layout.Members() {
		if nondeterministic(j, replica.GroupID(g)) {
			continue
		}
		last := replica.Dispute{Group: replica.GroupID(g)}
		for generation, votes := range lastSteps(j, members, reports) {
			if len(votes) == len(members) && generation.Compare(last.Generation) > 0 {
				last.Generation, last.Votes = generation, votes
			}
		}
		if differ(last.Votes) {
			last.Suspects = Suspects(last.Votes)
			return &replica.ReportDispute{Job: j.ID, Epoch: j.Epoch, Dispute: last}
		}
	}
	return nil
}

// lastSteps has what the ranks of a group sealed in this epoch beyond the committed step: a vote each, in the order of ranks.
func lastSteps(j *replica.Job, members []replica.Rank, reports map[replica.NodeName]replica.NodeReport) map[replica.Generation][]replica.Vote {
	votes := map[replica.Generation][]replica.Vote{}
	for _, r := range members {
		for _, h := range reports[j.Ranks[r].Node].Parts {
			own := h.Part == replica.OfGroup(j.Layout.Groups[r]) && h.Rank == r && !h.Mirror && !h.DaemonMade
			if !own {
				continue
			}
			have := votes[h.Generation]
			said := len(have) > 0 && have[len(have)-1].Rank == r
			if !said && h.Generation.Epoch == j.Epoch && h.Generation.Step > j.Position.Step {
				votes[h.Generation] = append(have, replica.Vote{Rank: r, Root: h.Root})
			}
		}
	}
	return votes
}
