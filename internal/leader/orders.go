package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/operators"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/replica"
)

// loss is what would become of the job without a node.
func (led *ledJob) loss(node replica.NodeName) odds.Survival {
	in, known := led.recovery.Known()
	if !known {
		in.Job = led.job
	}
	return odds.Survives(in, odds.Loss{Nodes: []replica.NodeName{node}})[0]
}

// beside does what a node passes on of these; from any goroutine.
func (l *Leader) beside(ctx context.Context, node replica.NodeName, m control.Order) control.OperatorReply {
	if m.Verb == control.VerbChallenge {
		return control.OperatorReply{Text: l.authority.Challenge(node, l.now())}
	}
	_, done, err := l.authority.Admit(node, m, l.now(), time.Now())
	if err != nil {
		return control.Refusal(err.Error())
	}
	r := l.act(ctx, m)
	done(r)
	return r
}

// act carries out an order about one job, from any goroutine, and says what came of it.
func (l *Leader) act(ctx context.Context, m control.Order) control.OperatorReply {
	select {
	case l.ending <- struct{}{}:
		defer func() { <-l.ending }()
	default:
		return control.Refusal(fmt.Sprintf("%v: job %s: %d other requests are under way: ask again", m.Verb, m.Job, operatorsMost))
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

// end ends a job, and returns once it has ended. The command goes to Raft by itself: work that waits on the leader is not in its way.
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
		return nil, operators.Unknown(err)
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
