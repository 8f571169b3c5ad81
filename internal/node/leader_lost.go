package node

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// lostReply answers a lostRequest.
type lostReply struct {
	Refused     string                  `json:"refused,omitempty"`
	Incarnation replica.NodeIncarnation `json:"incarnation"`
	Jobs        int                     `json:"jobs"`
}

// lostForGood records an operator's word that the memory of a node's present life is gone, in every job: silence is no proof
// of that, and until there is one, recovery waits holder_grace for what the node held (protocol section 6, Plan). A node
// that is here is not lost, whoever says so.
func (l *leader) lostForGood(ctx context.Context, from *nodeLink, m lostRequest) {
	reply := func(r lostReply) {
		if b, err := json.Marshal(r); err == nil {
			from.send(kindStatusReply, statusReply{m.ID, b})
		}
	}
	n, known := l.view.Nodes[m.Node]
	switch {
	case !known:
		reply(lostReply{Refused: fmt.Sprintf("node %q is not registered in this cluster: see replicad status for the names", m.Node)})
		return
	case l.links[m.Node] != nil && !l.suspected(holderOf(n)): // a silent node's link outlives it for a while
		reply(lostReply{Refused: fmt.Sprintf("node %s is connected, its memory is there: stop its daemon and keeper first, or drain it", m.Node)})
		return
	}
	// The outcomes come back on the goroutine that owns these counts.
	waiting, done, refused := 0, 0, ""
	for id, led := range l.jobs {
		if led.job.Phase == replica.Ended {
			continue
		}
		waiting++
		l.propose(ctx, id, replica.ProveLost{Job: id, Holder: holderOf(n), Why: "operator: " + m.Why}, fromDriver, func(out lock.Outcome, err error) {
			if err == nil {
				err = out.Err
			}
			if err != nil {
				refused = err.Error()
			} else {
				done++
			}
			if waiting--; waiting == 0 {
				reply(lostReply{Refused: refused, Incarnation: n.Incarnation, Jobs: done})
			}
		})
	}
	if waiting == 0 {
		reply(lostReply{Refused: "no job runs: there is nothing to recover"})
	}
}
