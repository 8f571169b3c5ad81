package operators

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// lostForGood records an operator's word that the memory of a node's present life is gone, in every job: silence is no proof
// of that, and until there is one, recovery waits holder_grace for what the node held (protocol section 6, Plan). Ranks that it
// runs by the records are gone with it, and free to be run elsewhere. A node that is here is not lost, whoever says so.
func (r *Room) lostForGood(ctx context.Context, from Asker, m control.Order) {
	n, known := r.owner.View().Nodes[m.Node]
	switch {
	case !known:
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("node %q is not registered in this cluster: see replicad status for the names", m.Node)))
		return
	case r.owner.Here(n):
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("node %s is connected and answers, its memory is there: stop its daemon and keeper first, or drain it (replicad node drain %s)", m.Node, m.Node)))
		return
	}
	// The outcomes come back on the goroutine that owns these counts.
	waiting, done, refused := 0, 0, ""
	for _, job := range r.owner.Running() {
		if len(plan.RanksOn(job, n.Name)) > 0 {
			detail := "an operator says that it is lost"
			r.owner.Fault(ctx, job.ID, replica.Fault{Epoch: job.Epoch, Kind: replica.NodeDead, Node: n.Name, NodeIncarnation: n.Incarnation, Detail: detail})
		}
		waiting++
		r.owner.Propose(ctx, job.ID, replica.ProveLost{Job: job.ID, Holder: n.Holder(), Why: "operator: " + m.Why}, func(out lock.Outcome, err error) {
			if err == nil {
				err = out.Err
			}
			if err != nil {
				refused = err.Error()
			} else {
				done++
			}
			if waiting--; waiting == 0 {
				from.Answer(m.ID, control.OperatorReply{Refused: refused, Text: fmt.Sprintf("the memory of node %s (incarnation %d) is recorded as lost in %d jobs", m.Node, n.Incarnation, done)})
			}
		})
	}
	if waiting == 0 {
		from.Answer(m.ID, control.Refusal("no job runs: there is nothing to recover"))
	}
}

// clearNode ends a node's quarantine in every job.
func (r *Room) clearNode(ctx context.Context, from Asker, m control.Order) {
	waiting, done, refused := 0, 0, ""
	for _, job := range r.owner.Running() {
		if !slices.Contains(job.Quarantined, m.Node) {
			continue
		}
		waiting++
		r.owner.Propose(ctx, job.ID, replica.Quarantine{Job: job.ID, Node: m.Node, Clear: true}, func(out lock.Outcome, err error) {
			if err == nil {
				err = out.Err
			}
			if done++; err != nil {
				refused = err.Error()
			}
			if waiting--; waiting == 0 {
				from.Answer(m.ID, control.OperatorReply{Refused: refused, Text: fmt.Sprintf("node %s may be used again by %d jobs", m.Node, done)})
			}
		})
	}
	if waiting == 0 {
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("no running job excludes node %q", m.Node)))
	}
}
