package leader

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/operators"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Await has done called with the answer to an order; from any goroutine.
func (n *nodeLink) Await(id uint64, done func(control.OperatorReply)) { n.orders.Store(id, done) }

// Answer sends what became of an order to who gave it and to the audit log; from any goroutine.
func (n *nodeLink) Answer(id uint64, r control.OperatorReply) {
	if done, ok := n.orders.LoadAndDelete(id); ok {
		done.(func(control.OperatorReply))(r)
	}
	n.Reply(id, r)
}

// Reply sends an operator's answer; from any goroutine.
func (n *nodeLink) Reply(id uint64, r control.OperatorReply) {
	r.ID, r.Refused, r.Text = id, control.Readable(r.Refused), control.Readable(r.Text)
	n.Send(r)
}

// operatorsOwner is the leader as the room of operators' orders sees it.
type operatorsOwner struct{ *Leader }

func (l operatorsOwner) Now() time.Duration        { return l.now() }
func (l operatorsOwner) Date() time.Time           { return time.Now() }
func (l operatorsOwner) View() lock.View           { return l.view }
func (l operatorsOwner) Here(n replica.Node) bool  { return l.here(n) }
func (l operatorsOwner) Beside(fn func())          { l.work.Go(fn) }
func (l operatorsOwner) VotersText() string        { return votersText(l.Leader) }
func (l operatorsOwner) VotersChanged(text string) { l.log.Note2(nil, "voters", text) }

func (l operatorsOwner) Running() (jobs []*replica.Job) {
	for _, led := range l.jobs {
		if led.job.Phase != replica.Ended {
			jobs = append(jobs, led.job)
		}
	}
	return jobs
}

func (l operatorsOwner) Job(id replica.JobID) *replica.Job {
	if led := l.jobs[id]; led != nil && led.job.Phase != replica.Ended {
		return led.job
	}
	return nil
}

func (l operatorsOwner) Without(id replica.JobID, node replica.NodeName) recovery.Survival {
	return l.jobs[id].loss(node)
}

func (l operatorsOwner) Propose(ctx context.Context, id replica.JobID, c replica.Command, done func(lock.Outcome, error)) {
	l.propose(ctx, id, c, fromOperator, done)
}

func (l operatorsOwner) Fault(ctx context.Context, id replica.JobID, f replica.Fault) {
	l.recoverStep(ctx, id, l.jobs[id], recovery.Evidence{Fault: f})
}

// newOperators makes the leader's room for what operators order, and who judges whether they may.
func newOperators(l *Leader) (*operators.Authority, *operators.Room) {
	check := func(certificate, message, signature []byte, now time.Time) (string, replica.CertEpoch, error) {
		return l.cfg.Operators(certificate, message, signature, now)
	}
	newest := func(role replica.Role, name string) replica.CertEpoch { return l.cfg.Newest(role, name) }
	state := func() lock.View { return l.cons.State() }
	a := operators.NewAuthority(l.cfg.Cluster, state, check, l.audit)
	return a, operators.New(operatorsOwner{l}, operators.Config{Cluster: l.cfg.Cluster, Log: l.cons, Authority: a, Newest: newest, Timeout: ProposeTimeout})
}
