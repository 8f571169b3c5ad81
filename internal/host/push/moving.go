package push

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/replica"
)

const (
	saidAfter = 2 * time.Second // a commit waits for so long before it is said how far the pushes are that it may wait for
	saidEvery = time.Second     // and again so often
	maxWhy    = 200             // bytes of what a push failed of
)

// tellMoving says how far the pushes of the candidate's parts are, once its commit has waited for long.
func (r *Room) tellMoving(now time.Time, v room.JobView) {
	if !room.Awaited(v.Candidate, v.Job) || now.Sub(v.WaitsAt) < saidAfter {
		return
	}
	j := r.job(v.Job.ID)
	if now.Sub(j.said) < saidEvery {
		return
	}
	report := control.PushReport{Job: v.Job.ID, Generation: v.Candidate.Generation}
	for _, m := range r.owner.Moving(report.Job, report.Generation) {
		report.Pushes = append(report.Pushes, control.Pushing{Part: m.Part, To: m.Line.Node, Bytes: m.Bytes, Why: control.Readable(replica.Cut(m.Why, maxWhy))})
	}
	if len(report.Pushes) > 0 {
		j.said = now
		r.effects = append(r.effects, act.Send{Msg: report})
	}
}
