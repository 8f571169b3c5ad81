package leader

import (
	"context"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// copyReport has the record of a part corrected by the word of the node whose copy it is. What the entry finds there already changes nothing; the
// node repeats its report until the record agrees, so the outcome needs no answer.
func (l *Leader) copyReport(ctx context.Context, from *nodeLink, m control.CopyReport) {
	led := l.jobs[m.Job]
	if led == nil || led.job == nil || led.job.Phase != replica.Open {
		return
	}
	l.propose(ctx, m.Job, replica.SetHolder{Job: m.Job, Generation: m.Generation, Part: m.Part, Root: m.Root, Holder: from.node.Holder(), Lost: m.Lost}, fromDriver, func(lock.Outcome, error) {})
}
