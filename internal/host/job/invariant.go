package job

import (
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/replica"
)

// Check holds the node's part of the job against the job's record.
func (j *Job) Check() {
	job := j.Job
	invariant.Holds(j.seq >= j.Reported.Seq, "report %d of job %s was sent, %d made", j.Reported.Seq, job.Name, j.seq)
	invariant.Holds(j.Candidate.N == 0 || j.Candidate.Job == job.ID, "job %s has the candidate of job %v", job.Name, j.Candidate.Job)
	invariant.Holds(j.Fenced <= max(job.Epoch, job.ClosedEpoch), "job %s is fenced up to %d in epoch %d", job.Name, j.Fenced, job.Epoch)
	invariant.Holds(len(j.Bad) <= maxBad && len(j.BadDisk) <= maxBad,
		"job %s: %d bad copies, %d on disk", job.Name, len(j.Bad), len(j.BadDisk))
	peers := map[uint64]replica.Rank{}
	for r, lr := range j.Ranks {
		invariant.Holds(lr.Rank == r, "rank %d of job %s lies under %d", lr.Rank, job.Name, r)
		lr.Check(job)
		if lr.Peer != nil {
			other, twice := peers[lr.Peer.ID()]
			invariant.Holds(!twice, "process %d is rank %d and rank %d of job %s", lr.PID, r, other, job.Name)
			peers[lr.Peer.ID()] = r
		}
	}
}
