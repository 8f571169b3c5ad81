package recovery

import (
	"slices"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// Faulted tells whether a rank's claim is free for another process: its process or node is gone, or it hangs, for which the leader
// offers its rank elsewhere. After an exception the same process may go on.
func Faulted(job *replica.Job, rank replica.Rank) bool {
	c := job.Ranks[rank]
	for _, f := range job.Faults {
		if (f.Kind.IsCondition() || f.Kind == replica.Hang) && (!f.OfNode() && f.Rank == rank && f.Incarnation == c.Incarnation || f.OfNode() && f.Node == c.Node && f.NodeIncarnation == c.NodeIncarnation) {
			return true
		}
	}
	return false
}

// Vacated tells whether a rank is to be held by another process: who holds it is lost, has to go, or its node is kept out.
func Vacated(job *replica.Job, rank replica.Rank) bool {
	c := job.Ranks[rank]
	return Faulted(job, rank) || slices.Contains(job.Quarantined, c.Node) || slices.ContainsFunc(job.Faults, func(f replica.Fault) bool {
		return plan.FirstRung(f.Kind) >= plan.Process && (!f.OfNode() && f.Rank == rank && f.Incarnation == c.Incarnation || f.OfNode() &&
			f.Node == c.Node && f.NodeIncarnation == c.NodeIncarnation)
	})
}

// StartAwaited tells whether somebody waits for the process of a rank to attach: another rank of the job that has, or a job that has trained, whose
// program is known to. Else the program may take as long as it needs before its session.
func StartAwaited(job *replica.Job, rank replica.Rank) bool {
	if job.Phase != replica.Opening {
		return true
	}
	for r, c := range job.Ranks {
		if other := replica.Rank(r); other != rank && c.Incarnation != 0 && !Vacated(job, other) {
			return true
		}
	}
	return false
}
