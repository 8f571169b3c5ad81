package leader

import (
	"context"
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// here tells whether a node's daemon is known to run. Its link alone is no sign of that: where the daemon is gone, or its host is
// silent, the link stays until its idle timeout.
func (l *Leader) here(n replica.Node) bool {
	link := l.links[n.Name]
	return link != nil && link.node.Incarnation == n.Incarnation && !l.suspected(n.Holder()) && l.cfg.Answers(n.Name)
}

// lostForGood records an operator's word that the memory of a node's present life is gone, in every job: silence is no proof
// of that, and until there is one, recovery waits holder_grace for what the node held (protocol section 6, Plan). Ranks that it
// runs by the records are gone with it, and free to be run elsewhere. A node that is here is not lost, whoever says so.
func (l *Leader) lostForGood(ctx context.Context, from *nodeLink, m control.Order) {
	n, known := l.view.Nodes[m.Node]
	switch {
	case !known:
		from.answer(m.ID, control.Refusal(fmt.Sprintf("node %q is not registered in this cluster: see replicad status for the names", m.Node)))
		return
	case l.here(n):
		from.answer(m.ID, control.Refusal(fmt.Sprintf("node %s is connected and answers, its memory is there: stop its daemon and keeper first, or drain it (replicad node drain %s)", m.Node, m.Node)))
		return
	}
	// The outcomes come back on the goroutine that owns these counts.
	waiting, done, refused := 0, 0, ""
	for id, led := range l.jobs {
		if led.job.Phase == replica.Ended {
			continue
		}
		if len(plan.RanksOn(led.job, n.Name)) > 0 {
			l.recoverStep(ctx, id, led, recovery.Evidence{Fault: replica.Fault{Epoch: led.job.Epoch, Kind: replica.NodeDead, Node: n.Name, NodeIncarnation: n.Incarnation, Detail: "an operator says that it is lost"}})
		}
		waiting++
		l.propose(ctx, id, replica.ProveLost{Job: id, Holder: n.Holder(), Why: "operator: " + m.Why}, fromOperator, func(out lock.Outcome, err error) {
			if err == nil {
				err = out.Err
			}
			if err != nil {
				refused = err.Error()
			} else {
				done++
			}
			if waiting--; waiting == 0 {
				from.answer(m.ID, control.OperatorReply{Refused: refused, Text: fmt.Sprintf("the memory of node %s (incarnation %d) is recorded as lost in %d jobs", m.Node, n.Incarnation, done)})
			}
		})
	}
	if waiting == 0 {
		from.answer(m.ID, control.Refusal("no job runs: there is nothing to recover"))
	}
}
