package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

const (
	drainAgain   = time.Second      // between two tries to close the epoch of a job with a rank there
	maxDrains    = 16               // under way at once; one more is refused
	voterTimeout = 15 * time.Second // for a change of voters; what can't be ended by then is undone
)

// answer says what became of an order, to who gave it and to the audit log; from any goroutine.
func (n *nodeLink) answer(id uint64, r control.OperatorReply) {
	if done, ok := n.orders.LoadAndDelete(id); ok {
		done.(func(control.OperatorReply))(r)
	}
	n.reply(id, r)
}

// reply sends an operator's answer; from any goroutine.
func (n *nodeLink) reply(id uint64, r control.OperatorReply) {
	r.ID, r.Refused, r.Text = id, control.Readable(r.Refused), control.Readable(r.Text)
	n.Send(r)
}

// operate does what somebody (by; empty for what needs nobody's authority) asks.
func (l *Leader) operate(ctx context.Context, from *nodeLink, m control.Order, by string) {
	switch m.Verb {
	case control.Lost:
		l.lostForGood(ctx, from, m)
	case control.Drain:
		l.drain(ctx, from, m)
	case control.Clear:
		l.clearNode(ctx, from, m)
	case control.Voters, control.AddVoter, control.RemoveVoter:
		l.changeVoters(ctx, from, m)
	case control.RevokeNode, control.RevokeOperator:
		l.revoke(ctx, from, m, by)
	default:
		from.answer(m.ID, control.Refusal(fmt.Sprintf("the leader does not know request %d: are the daemons of one release?", m.Verb)))
	}
}

// unknown tells that nobody knows what became of a request.
func unknown(err error) string {
	return fmt.Sprintf("the outcome is unknown (%v): check replicad status before you repeat the command", err)
}

// act carries out an order about one job, from any goroutine, and says what came of it.
func (l *Leader) act(ctx context.Context, m control.Order) control.OperatorReply {
	select {
	case l.ending <- struct{}{}:
		defer func() { <-l.ending }()
	default:
		return control.Refusal(fmt.Sprintf("%v: job %s: %d other requests are under way: ask again", m.Verb, m.Job, operators))
	}
	if err := lock.CheckReason(m.Why); err != nil {
		return control.Refusal(fmt.Sprintf("%v: job %s: %v", m.Verb, m.Job, err))
	}
	job, ok := l.cons.State().JobByName(m.Job)
	if !ok {
		return control.Refusal(fmt.Sprintf("no job %q runs: see replicad status for the names", m.Job))
	}
	switch {
	case m.Verb == control.SaveJob:
		return l.save(ctx, job, m.Why)
	case m.Verb == control.StopJob || job.Undurable() && !m.Now:
		return l.stop(ctx, job, m)
	}
	return l.end(ctx, job, m)
}

// end ends a job and says so once it has ended. It goes to Raft by itself: no job's work on the leader, nor what waits for it, can be in its way.
func (l *Leader) end(ctx context.Context, job *replica.Job, m control.Order) control.OperatorReply {
	out, refused := l.apply(ctx, replica.EndJob{Job: job.ID, Reason: m.Why})
	switch {
	case refused != "":
		return control.Refusal(refused)
	case out.EndReason != m.Why:
		return control.OperatorReply{Text: fmt.Sprintf("job %s had ended already, at step %d: %s", m.Job, out.Position.Step, out.EndReason)}
	}
	return control.OperatorReply{Text: fmt.Sprintf("job %s has ended, newest commit step %d", m.Job, out.Position.Step)}
}

// apply puts a command about a job into the log, from any goroutine; refused says why the job is not as wanted.
func (l *Leader) apply(ctx context.Context, c replica.Command) (job *replica.Job, refused string) {
	ctx, cancel := context.WithTimeout(ctx, ProposeTimeout)
	defer cancel()
	_, out, err := l.cons.Propose(ctx, c)
	switch {
	case err != nil:
		return nil, unknown(err)
	case out.Err != nil:
		return nil, out.Err.Error()
	}
	return out.Job, ""
}

// besideHere is beside where this node leads, for its own admin socket.
func (l *Leader) BesideHere(ctx context.Context, m control.Order) (reply control.OperatorReply, leads bool) {
	if _, _, _, self := l.cons.Leadership(); !self {
		return control.OperatorReply{}, false
	}
	return l.beside(ctx, l.cons.ID(), m), true
}

// drain is a node whose ranks are on their way elsewhere.
type drain struct {
	from    *nodeLink
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
func (l *Leader) drain(ctx context.Context, from *nodeLink, m control.Order) {
	if _, known := l.view.Nodes[m.Node]; !known {
		from.answer(m.ID, control.Refusal(fmt.Sprintf("node %q is not registered in this cluster: see replicad status for the names", m.Node)))
		return
	}
	if len(l.drains) >= maxDrains {
		from.answer(m.ID, control.Refusal("other nodes are being drained: ask again when they are"))
		return
	}
	d := &drain{from: from, id: m.ID, node: m.Node, ranks: map[replica.JobID][]replica.Rank{}, tried: map[replica.JobID]time.Duration{}, again: map[replica.JobID]bool{}, within: m.Patience(), until: l.now() + m.Patience()}
	for id, led := range l.jobs {
		if led.job.Phase == replica.Ended {
			continue
		}
		d.ranks[id], d.again[id] = plan.RanksOn(led.job, m.Node), slices.Contains(led.job.Quarantined, m.Node)
		without := led.loss(m.Node)
		if text := without.Unseated(); text != "" {
			from.answer(m.ID, control.Refusal(fmt.Sprintf("node %s can't be drained: job %s: %s: start replicad run --spare, or with a larger --capacity, on another node first", m.Node, led.job.Name, text)))
			return
		}
		if cost := without.Cost(); cost != "" && !m.Degrade {
			from.answer(m.ID, control.Refusal(fmt.Sprintf("node %s is not drained: job %s: %s: add a node, or wait for copies (replicad status), or accept that with --degrade", m.Node, led.job.Name, cost)))
			return
		}
	}
	l.drains = append(l.drains, d)
	for id := range d.ranks {
		d.waiting++
		l.propose(ctx, id, replica.Quarantine{Job: id, Node: m.Node}, fromOperator, func(out lock.Outcome, err error) {
			d.waiting--
			if err == nil {
				err = out.Err
			}
			if err != nil {
				d.refused = err.Error()
			}
			l.drained(ctx)
		})
	}
	l.drained(ctx)
}

// loss is what would become of the job without a node.
func (led *ledJob) loss(node replica.NodeName) odds.Survival {
	in, known := led.recovery.Known()
	if !known {
		in.Job = led.job
	}
	return odds.Survives(in, odds.Loss{Nodes: []replica.NodeName{node}})[0]
}

// drained follows the drains: it closes the epochs of jobs with ranks there, and answers when these run elsewhere.
func (l *Leader) drained(ctx context.Context) {
	l.drains = slices.DeleteFunc(l.drains, func(d *drain) bool {
		if d.waiting > 0 {
			return false
		}
		if d.refused != "" {
			d.from.answer(d.id, control.Refusal(fmt.Sprintf("draining node %s: %s", d.node, d.refused)))
			return true
		}
		left := 0
		for id := range d.ranks {
			led := l.jobs[id]
			if led == nil || led.job.Phase == replica.Ended {
				continue
			}
			on := plan.RanksOn(led.job, d.node)
			if len(on) == 0 && (led.job.Phase == replica.Open || len(d.ranks[id]) == 0 && !d.again[id]) {
				continue
			}
			left++
			if at, again := d.tried[id]; len(on) > 0 && led.job.ClosedEpoch < led.job.Epoch && (!again || l.now()-at > drainAgain) {
				d.tried[id] = l.now()
				l.propose(ctx, id, replica.ReportFault{Job: id, Fault: replica.Fault{Epoch: led.job.Epoch, Kind: replica.Drain, Node: d.node, NodeIncarnation: l.view.Nodes[d.node].Incarnation, Detail: "drained by an operator"}}, fromOperator, nil)
			}
		}
		if left > 0 && l.now() < d.until {
			return false
		}
		text := l.drainText(d, left)
		if left > 0 { // a script that powers the node off next must not take it for done
			d.from.answer(d.id, control.Refusal(text))
		} else {
			d.from.answer(d.id, control.OperatorReply{Text: text})
		}
		return true
	})
}

// drainText says what came of a drain.
func (l *Leader) drainText(d *drain, left int) string {
	var lines []string
	for id, ranks := range d.ranks {
		led := l.jobs[id]
		if led == nil || led.job.Phase == replica.Ended {
			continue
		}
		var moved []string
		for _, r := range ranks {
			moved = append(moved, fmt.Sprintf("rank %d is on %s", r, led.job.Ranks[r].Node))
		}
		if len(moved) == 0 {
			moved = append(moved, "it had no rank there")
		}
		lines = append(lines, fmt.Sprintf("job %s (%v): %s", led.job.Name, led.job.Phase, strings.Join(moved, ", ")))
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

// clearNode ends a node's quarantine in every job.
func (l *Leader) clearNode(ctx context.Context, from *nodeLink, m control.Order) {
	waiting, done, refused := 0, 0, ""
	for id, led := range l.jobs {
		if led.job.Phase == replica.Ended || !slices.Contains(led.job.Quarantined, m.Node) {
			continue
		}
		waiting++
		l.propose(ctx, id, replica.Quarantine{Job: id, Node: m.Node, Clear: true}, fromOperator, func(out lock.Outcome, err error) {
			if err == nil {
				err = out.Err
			}
			if done++; err != nil {
				refused = err.Error()
			}
			if waiting--; waiting == 0 {
				from.answer(m.ID, control.OperatorReply{Refused: refused, Text: fmt.Sprintf("node %s may be used again by %d jobs", m.Node, done)})
			}
		})
	}
	if waiting == 0 {
		from.answer(m.ID, control.Refusal(fmt.Sprintf("no running job excludes node %q", m.Node)))
	}
}

// changeVoters lists, adds or removes voters; one change at a time, beside the leader.
func (l *Leader) changeVoters(ctx context.Context, from *nodeLink, m control.Order) {
	voters, joining := l.cons.Voters(), l.cons.Joining()
	at := slices.IndexFunc(voters, func(v consensus.Voter) bool { return v.Name == m.Node })
	joins := slices.ContainsFunc(joining, func(v consensus.Voter) bool { return v.Name == m.Node })
	switch {
	case m.Verb == control.Voters:
		from.answer(m.ID, control.OperatorReply{Text: votersText(l)})
		return
	case m.Verb == control.AddVoter && (replica.CheckName(string(m.Node)) != nil || m.Addr == ""):
		from.answer(m.ID, control.Refusal(fmt.Sprintf("voter %q at %q: want a node's name and the addr of its configuration", m.Node, m.Addr)))
		return
	case m.Verb == control.AddVoter && at >= 0:
		from.answer(m.ID, control.Refusal(fmt.Sprintf("%s votes already, at %s", m.Node, voters[at].Addr)))
		return
	case m.Verb == control.RemoveVoter && at < 0 && !joins:
		from.answer(m.ID, control.Refusal(fmt.Sprintf("%q is no voter: see replicad voter list", m.Node)))
		return
	case m.Verb == control.RemoveVoter && len(voters) == 1 && !joins:
		from.answer(m.ID, control.Refusal(fmt.Sprintf("%s is the only voter: add another first", m.Node)))
		return
	case m.Verb == control.RemoveVoter && m.Node == l.cons.ID():
		from.answer(m.ID, control.Refusal(fmt.Sprintf("%s leads: stop its daemon, and ask again once another leads", m.Node)))
		return
	case !l.voting.CompareAndSwap(false, true):
		from.answer(m.ID, control.Refusal("another change of voters is under way: ask again when it has ended"))
		return
	}
	l.work.Go(func() {
		defer l.voting.Store(false)
		ctx, cancel := context.WithTimeout(ctx, voterTimeout)
		defer cancel()
		var err error
		text := fmt.Sprintf("%s votes now; name it in the voters of every node's configuration before that node's next start", m.Node)
		if m.Verb == control.AddVoter {
			err = l.cons.AddVoter(ctx, consensus.Voter{Name: m.Node, Addr: m.Addr})
		} else {
			text = fmt.Sprintf("%s votes no more, and must never vote again under this name; take it out of the voters of every node's configuration before that node's next start", m.Node)
			err = l.cons.RemoveVoter(ctx, m.Node)
		}
		switch {
		case errors.Is(err, consensus.ErrUnknown):
			from.answer(m.ID, control.Refusal(fmt.Sprintf("the outcome is unknown (%v): see replicad voter list", err)))
		case err != nil:
			from.answer(m.ID, control.Refusal(err.Error()))
		default:
			l.log.Note2(nil, "voters", text)
			from.answer(m.ID, control.OperatorReply{Text: text})
		}
	})
}
