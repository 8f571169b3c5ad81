package leader

import (
	"context"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// recorded tells whether the record of what is committed says so already, or has no such part.
func recorded(j *replica.Job, m control.CopyReport, h replica.Holder) bool {
	if m.Generation != j.Committed {
		return false // the entry finds out
	}
	at := slices.IndexFunc(j.Parts, func(p replica.PartRoot) bool { return p.Part == m.Part && p.Root == m.Root })
	return at < 0 || slices.Contains(j.Parts[at].Holders, h) != m.Lost
}

// copyReport has the record of a part corrected by the word of the node whose copy it is. What the entry finds there already changes nothing; the
// node repeats its report until the record agrees, so the outcome needs no answer.
func (l *Leader) copyReport(ctx context.Context, from *nodeLink, m control.CopyReport) {
	led := l.jobs[m.Job]
	if led == nil || led.job == nil || led.job.Phase != replica.Open || recorded(led.job, m, from.node.Holder()) {
		return
	}
	l.propose(ctx, m.Job, replica.SetHolder{Job: m.Job, Generation: m.Generation, Part: m.Part, Root: m.Root, Holder: from.node.Holder(), Lost: m.Lost}, fromDriver, func(lock.Outcome, error) {})
}
