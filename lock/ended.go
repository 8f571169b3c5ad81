package lock

import (
	"cmp"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

const (
	// maxEnded is how many ended jobs are kept, the newest: each is in every snapshot and every view, which nodes must be able to
	// read before they can link.
	maxEnded = 32
	// MaxReason caps the reason of an end, in bytes.
	MaxReason = 8 << 10
)

// endJob ends a job; its epoch is closed, so every fence word rises and whoever still runs is refused. One whose newest commit is to be kept,
// and is not on disk, is stopped until it is.
func endJob(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.EndJob) (bool, error) {
	if j.Phase == replica.Ended {
		return false, nil
	}
	if c.Epoch != 0 && (j.Phase != replica.Open || j.Epoch != c.Epoch) {
		return false, refuse(Stale, "end of epoch %d (%s): job %s is %s in epoch %d", c.Epoch, c.Reason, j.Name, j.Phase, j.Epoch)
	}
	if c.Keep && j.Undurable() {
		if j.Stop != nil && j.Stop.End {
			return false, nil
		}
		stop(j, nodes, c.Reason, true)
		return true, nil
	}
	j.Phase, j.ClosedEpoch, j.Plan, j.Stop, j.EndReason = replica.Ended, j.Epoch, nil, nil, replica.Cut(c.Reason, MaxReason)
	strip(j)
	return true, nil
}

// strip leaves of an ended job what people ask for and what a job that goes on from its durable tier takes over. While a durable
// write is under way its marker still needs the rest.
func strip(j *replica.Job) {
	if j.Phase != replica.Ended || j.Writer != nil {
		return
	}
	*j = replica.Job{ID: j.ID, Name: j.Name, Era: j.Era, Phase: j.Phase, Epoch: j.Epoch, ClosedEpoch: j.ClosedEpoch, Lineage: j.Lineage, Position: j.Position, Committed: j.Committed,
		Copies: j.Copies, Degraded: j.Degraded, NextIncarnation: j.NextIncarnation, Condemned: j.Condemned, Durable: j.Durable, LastIndex: j.LastIndex, EndReason: j.EndReason}
}

// forget drops the ended jobs beyond the newest maxEnded. The highest numbers that they handed out stay known: should one of
// them be adopted from its durable tier, nothing that a zombie carries is handed out again.
func (s *State) forget() {
	var ended []*replica.Job
	for _, j := range s.v.Jobs {
		if j.Phase == replica.Ended && j.Writer == nil {
			ended = append(ended, j)
		}
	}
	if len(ended) <= maxEnded {
		return
	}
	slices.SortFunc(ended, func(a, b *replica.Job) int {
		return cmp.Or(cmp.Compare(b.LastIndex, a.LastIndex), strings.Compare(string(b.ID[:]), string(a.ID[:])))
	})
	jobs := make(map[replica.JobID]*replica.Job, len(s.v.Jobs))
	for id, j := range s.v.Jobs {
		jobs[id] = j
	}
	for _, j := range ended[maxEnded:] {
		delete(jobs, j.ID)
		s.v.ForgottenEpoch, s.v.ForgottenIncarnation = max(s.v.ForgottenEpoch, j.Epoch), max(s.v.ForgottenIncarnation, j.NextIncarnation)
	}
	s.v.Jobs = jobs
}
