package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

const (
	mostProposals = 64             // commands on their way at once; one more waits for its turn
	maxWaiting    = 1024           // commands of nodes and operators that wait for it; one more is refused, and may be tried again
	maxWaitingOwn = 4 * maxWaiting // the same for the leader's rules, which propose again what they still want

	ProposeTimeout = 5 * time.Second // after it the outcome is unknown, and is read from the state
)

// origin says which rule proposed a command, and so who learns its outcome.
type origin uint8

const (
	fromDriver origin = iota
	fromCommitter
	fromRecovery
	fromOperator
)

type (
	// proposal is a command about a job. done is called with its outcome; nil: nobody waits.
	proposal struct {
		job  replica.JobID
		cmd  replica.Command
		rule origin
		done func(lock.Outcome, error)
	}
	proposalOutcome struct {
		job  replica.JobID
		cmd  replica.Command
		out  lock.Outcome
		err  error
		done func(lock.Outcome, error)
		rule origin
	}
)

// proposals are commands on their way into the log. At most mostProposals are under way, and further ones wait in order.
type proposals struct {
	log     Log
	slots   chan struct{} // taken by run alone, given back by what it started
	waiting []proposal    // for a slot, in order
	ahead   []proposal    // operators': for a slot before these
	turned  []proposalOutcome
}

func newProposals(log Log) proposals {
	return proposals{log: log, slots: make(chan struct{}, mostProposals)}
}

// wait reports whether some wait for a slot.
func (q *proposals) wait() bool { return len(q.ahead)+len(q.waiting) > 0 }

// add puts a command in its line. One that finds the line full is refused with consensus.ErrBusy: nothing was proposed, try again.
func (q *proposals) add(p proposal) {
	limit, line := maxWaiting, &q.waiting
	switch {
	case p.rule == fromOperator: // the room of operators has fewer under way, or asks once a job
		limit, line = maxWaitingOwn, &q.ahead
	case p.rule != fromDriver || p.done == nil:
		limit = maxWaitingOwn
	}
	if len(*line) >= limit {
		busy := fmt.Errorf("%w: %d commands wait: try again", consensus.ErrBusy, len(*line))
		q.refuse(proposalOutcome{job: p.job, cmd: p.cmd, err: busy, done: p.done, rule: p.rule})
		return
	}
	*line = append(*line, p)
}

// refuse keeps an outcome until the event at hand is over.
func (q *proposals) refuse(o proposalOutcome) { q.turned = append(q.turned, o) }

// refused are the outcomes that were kept since it was last called.
func (q *proposals) refused() (turned []proposalOutcome) {
	turned, q.turned = q.turned, nil
	return turned
}

// next is the command whose turn it is, with a slot taken for it. False: none waits, or no slot is free.
func (q *proposals) next() (p proposal, ok bool) {
	if !q.wait() {
		return p, false
	}
	select {
	case q.slots <- struct{}{}:
	default:
		return p, false // an outcome, or the next tick, comes back here
	}
	line := &q.waiting
	if len(q.ahead) > 0 {
		line = &q.ahead
	}
	p = (*line)[0]
	*line = (*line)[1:]
	return p, true
}

// carry brings a command into the log, and gives its slot back. It waits: it runs beside the leader.
func (q *proposals) carry(ctx context.Context, p proposal, entry replica.Command) proposalOutcome {
	ctx, cancel := context.WithTimeout(ctx, ProposeTimeout)
	defer cancel()
	_, out, err := q.log.Propose(ctx, entry)
	<-q.slots
	return proposalOutcome{p.job, p.cmd, out, err, p.done, p.rule}
}
