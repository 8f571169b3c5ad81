package host

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
)

// pushesSaidAfter is how long a commit waits before it is said how far the pushes are that it may wait for.
const pushesSaidAfter = 2 * time.Second

// maxPushWhy cuts what a push failed of.
const maxPushWhy = 200

// pushReport says how far the pushes of the candidate's parts are, once its commit has waited for long; false: there is nothing to say.
func pushReport(lj *localJob, moving func(replica.JobID, replica.Generation) []mover.Moving, now time.Time) (r control.PushReport, due bool) {
	if !lj.awaited(lj.job) || now.Sub(lj.candidateAt) < pushesSaidAfter {
		return r, false
	}
	r = control.PushReport{Job: lj.job.ID, Generation: lj.candidate.Generation}
	for _, m := range moving(r.Job, r.Generation) {
		r.Pushes = append(r.Pushes, control.Pushing{Part: m.Part, To: m.Line.Node, Bytes: m.Bytes, Why: control.Readable(replica.Cut(m.Why, maxPushWhy))})
	}
	return r, len(r.Pushes) > 0
}
