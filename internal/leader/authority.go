package leader

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// endedBy ends a job for a node that has seen a process of a rank end for good. What a node reports of its launchers is its own word: it
// counts while a rank has never been claimed, for then launchers begin by themselves and nothing has been trained. Later a node speaks for
// ranks that it holds, and for those that this leader has offered it.
func (l *Leader) endedBy(ctx context.Context, from *nodeLink, m control.EndRequest) {
	job, ok := l.view.JobByName(m.Name)
	if !ok {
		return
	}
	fields := audit.Fields{"job": m.Name, "rank": fmt.Sprint(m.Rank), "by": "node " + string(from.node.Name), "why": m.Reason}
	if led := l.jobs[job.ID]; led == nil || !led.mayEnd(from.node.Name, m.Rank) {
		fields["refused"] = "the node neither holds that rank nor runs a process for it"
		l.audit.Refused("job end", from.node.Name, fields)
		return
	}
	l.audit.Note("job end", fields)
	l.propose(ctx, job.ID, replica.EndJob{Job: job.ID, Reason: m.Reason, Keep: true}, fromDriver, nil)
}

func (led *ledJob) mayEnd(node replica.NodeName, r replica.Rank) bool {
	if int(r) >= len(led.job.Ranks) {
		return false
	}
	c := led.job.Ranks[r]
	switch {
	case c.Incarnation == 0:
		return led.reports[node].Launchers > 0
	case c.Node == node:
		return true
	}
	return recovery.Vacated(led.job, r) && led.offered[r] == offered{node, c.Incarnation}
}

// offered is the newest offer of a rank to a node.
type offered struct {
	node   replica.NodeName
	expect replica.Incarnation
}

// standing is what a node's word in the name of a rank counts for at the rendezvous.
type standing uint8

const (
	strange standing = iota // another node holds the rank
	early                   // the rank is elsewhere as far as this leader knows; what it knows may be on its way to change
	own
)

// standing judges it. A rank that is held is spoken for by the node that holds it, in the life in which it claimed. Before the claim, when
// processes meet for the epoch to come, several nodes may run one for the rank: a node that says so counts, and one that says nothing (its
// processes were started by torchrun, say) only while no other says so.
func (l *Leader) standing(led *ledJob, from *nodeLink, r replica.Rank) standing {
	if c := led.job.Ranks[r]; c.Incarnation != 0 && !recovery.Vacated(led.job, r) {
		switch {
		case c.Node != from.node.Name:
			return strange
		case c.NodeIncarnation != from.node.Incarnation:
			return early // this leader reads the entry that registered that life a moment later: it moved the claim, or put it at fault
		}
		return own
	}
	if slices.Contains(led.reports[from.node.Name].Starting, r) {
		return own
	}
	for n, rep := range led.reports {
		if l.links.of[n] != nil && slices.Contains(rep.Starting, r) {
			return early
		}
	}
	return own
}
