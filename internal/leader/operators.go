package leader

import (
	"context"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/leader/operators"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/replica"
)

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

func (l operatorsOwner) Without(id replica.JobID, node replica.NodeName) odds.Survival {
	return l.jobs[id].loss(node)
}

func (l operatorsOwner) Begins(id replica.JobID, node replica.NodeName) bool {
	led := l.jobs[id]
	fresh := slices.ContainsFunc(led.job.Ranks, func(c replica.Claimed) bool { return c.Incarnation == 0 })
	return led.job.Phase == replica.Opening && led.reports[node].Launchers > 0 && fresh
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
