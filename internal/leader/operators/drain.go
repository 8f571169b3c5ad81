package operators

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	drainAgain = time.Second // between two tries to close the epoch of a job with a rank there
	maxDrains  = 16          // under way at once; one more is refused
)

// drain is a node whose ranks are on their way elsewhere.
type drain struct {
	from    Asker
	id      uint64
	node    replica.NodeName
	ranks   map[replica.JobID][]replica.Rank // that it had
	within  time.Duration                    // for which the operator waits; until when that is
	until   time.Duration
	tried   map[replica.JobID]time.Duration
	again   map[replica.JobID]bool // it was drained from before: its ranks may be on their way, with its copies in use
	refused string
	waiting int // proposals of its quarantine
}

// drain has the ranks of a node move to others, in every job, and keeps it out of these jobs until it is cleared; what it holds
// serves meanwhile. It is refused, with nothing done, where nobody could take the ranks, and where a job would be less safe
// without the node, unless the operator says that it may.
func (r *Room) drain(ctx context.Context, from Asker, m control.Order) {
	if _, known := r.owner.View().Nodes[m.Node]; !known {
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("node %q is not registered in this cluster: see replicad status for the names", m.Node)))
		return
	}
	if len(r.drains) >= maxDrains {
		from.Answer(m.ID, control.Refusal("other nodes are being drained: ask again when they are"))
		return
	}
	d := &drain{from: from, id: m.ID, node: m.Node, ranks: map[replica.JobID][]replica.Rank{}, tried: map[replica.JobID]time.Duration{}, again: map[replica.JobID]bool{}, within: m.Patience(), until: r.owner.Now() + m.Patience()}
	for _, job := range r.owner.Running() {
		d.ranks[job.ID], d.again[job.ID] = plan.RanksOn(job, m.Node), slices.Contains(job.Quarantined, m.Node)
		if r.owner.Begins(job.ID, m.Node) { // its launcher would start what may not attach, until the job is given up
			text := "node %s is not drained: job %s opens, and a launcher on that node starts ranks of it: ask again once the job is open"
			from.Answer(m.ID, control.Refusal(fmt.Sprintf(text+", or end it (replicad job end %s)", m.Node, job.Name, job.Name)))
			return
		}
		without := r.owner.Without(job.ID, m.Node)
		if text := without.Unseated(); text != "" {
			from.Answer(m.ID, control.Refusal(fmt.Sprintf("node %s can't be drained: job %s: %s: start replicad run --spare, or with a larger --capacity, on another node first", m.Node, job.Name, text)))
			return
		}
		if cost := without.Cost(); cost != "" && !m.Degrade {
			from.Answer(m.ID, control.Refusal(fmt.Sprintf("node %s is not drained: job %s: %s: add a node, or wait for copies (replicad status), or accept that with --degrade", m.Node, job.Name, cost)))
			return
		}
	}
	r.drains = append(r.drains, d)
	for id := range d.ranks {
		d.waiting++
		r.owner.Propose(ctx, id, replica.Quarantine{Job: id, Node: m.Node}, func(out lock.Outcome, err error) {
			d.waiting--
			if err == nil {
				err = out.Err
			}
			if err != nil {
				d.refused = err.Error()
			}
			r.Drained(ctx)
		})
	}
	r.Drained(ctx)
}

// Drained follows the drains: it closes the epochs of jobs with ranks there, and answers when these run elsewhere.
func (r *Room) Drained(ctx context.Context) {
	r.drains = slices.DeleteFunc(r.drains, func(d *drain) bool {
		if d.waiting > 0 {
			return false
		}
		if d.refused != "" {
			d.from.Answer(d.id, control.Refusal(fmt.Sprintf("draining node %s: %s", d.node, d.refused)))
			return true
		}
		left := 0
		for id := range d.ranks {
			job := r.owner.Job(id)
			if job == nil {
				continue
			}
			on := plan.RanksOn(job, d.node)
			if len(on) == 0 && (job.Phase == replica.Open || len(d.ranks[id]) == 0 && !d.again[id]) {
				continue
			}
			left++
			if at, again := d.tried[id]; len(on) > 0 && job.ClosedEpoch < job.Epoch && (!again || r.owner.Now()-at > drainAgain) {
				d.tried[id] = r.owner.Now()
				fault := replica.Fault{Epoch: job.Epoch, Kind: replica.Drain, Node: d.node, NodeIncarnation: r.owner.View().Nodes[d.node].Incarnation, Detail: "drained by an operator"}
				r.owner.Propose(ctx, id, replica.ReportFault{Job: id, Fault: fault}, nil)
			}
		}
		if left > 0 && r.owner.Now() < d.until {
			return false
		}
		text := r.drainText(d, left)
		if left > 0 { // a script that powers the node off next must not take it for done
			d.from.Answer(d.id, control.Refusal(text))
		} else {
			d.from.Answer(d.id, control.OperatorReply{Text: text})
		}
		return true
	})
}

// drainText says what came of a drain.
func (r *Room) drainText(d *drain, left int) string {
	var lines []string
	for id, ranks := range d.ranks {
		job := r.owner.Job(id)
		if job == nil {
			continue
		}
		var moved []string
		for _, n := range ranks {
			moved = append(moved, fmt.Sprintf("rank %d is on %s", n, job.Ranks[n].Node))
		}
		if len(moved) == 0 {
			moved = append(moved, "it had no rank there")
		}
		lines = append(lines, fmt.Sprintf("job %s (%v): %s", job.Name, job.Phase, strings.Join(moved, ", ")))
	}
	slices.Sort(lines)
	head := fmt.Sprintf("node %s is drained: until `replicad node clear %s` it gets no rank and no copy of these jobs; jobs that start later may use it", d.node, d.node)
	switch {
	case len(lines) == 0:
		head = fmt.Sprintf("no job runs: there is nothing to drain from node %s", d.node)
	case left > 0:
		head = fmt.Sprintf("draining node %s has not ended within %v, and goes on: do not stop it yet: replicad status shows what its jobs wait for; give the same command again, with a longer --timeout, or take it back with `replicad node clear %s`", d.node, d.within, d.node)
	}
	return strings.Join(append([]string{head}, lines...), "\n  ")
}
