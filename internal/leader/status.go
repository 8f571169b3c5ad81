package leader

import (
	"maps"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/exposure"
	"github.com/replicad/replicad/internal/leader/voters"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// answerStatus answers a node's question, beside the leader: thousands of ranks take a while to be written.
func (l *Leader) answerStatus(from *nodeLink, m control.StatusRequest) {
	select {
	case l.answering <- struct{}{}:
	default:
		return // the asker reports what it knows itself
	}
	jobs, finish := l.status()
	st := control.LeaderStatus{Jobs: jobs, Steps: l.steps.status(), Revoked: l.revokedNodes(), Voters: votersNow(l),
		Accounts: l.accounts.status(l.view, l.kv)}
	l.work.Go(func() {
		finish()
		from.Send(control.StatusReply{ID: m.ID, Status: st.Fit()})
		<-l.answering
	})
}

// status is the leader's account of its jobs, with their holdings and what they wait for. finish adds who holds what is committed, and what losses
// would come to: it asks nothing of the leader any more, and may take a while for thousands of ranks.
func (l *Leader) status() (out []control.JobStatus, finish func()) {
	out = []control.JobStatus{}
	known := map[int]plan.Input{}
	for _, led := range l.jobs {
		s := control.StatusOf(led.job, led.reports)
		s.Durable, s.DurableError, s.DurableEnded = led.durable.Durable(), led.durable.Why(), led.durable.Fenced()
		s.DurablePace = led.durable.Pace(l.now())
		if since := led.durable.Since(); !since.IsZero() {
			s.DurableAgeMS = uint64(max(time.Since(since), 0).Milliseconds()) + 1 // the store's clock may be ahead
		}
		if led.job.Phase == replica.Open {
			if s.Waiting, s.Uncommitted = l.waitsFor(led), uncommitted(led); !led.longWait(l.now()) { // each commit waits for each part for a moment
				s.Waiting = s.Waiting[len(led.committer.Waiting()):]
			}
			s.Waiting = append(s.Waiting, led.recovery.Awaited(l.now())...)
			s.AtRisk = exposure.Wide(s.Uncommitted, lock.Cadence(led.job))
			s.Commits = led.rhythm.status(led.job)
			led.guard.status(&s)
		}
		if led.job.Phase != replica.Open && led.job.Phase != replica.Ended {
			for code, text := range led.notes {
				if led.job.Stop == nil || code != "waiting" { // a stopped job's ranks are not waited for any more
					s.Waiting = append(s.Waiting, code+": "+text)
				}
			}
			slices.Sort(s.Waiting)
			if text := led.shortOf(); text != "" {
				s.Waiting = append([]string{text}, s.Waiting...)
			}
			s.Waiting = append(s.Waiting, led.recovery.Awaited(l.now())...)
		}
		s.Offers = control.OffersStatus(led.reports)
		if in, ok := led.recovery.Known(); ok && led.job.Phase != replica.Ended && !led.job.Committed.IsZero() {
			known[len(out)] = in
		}
		out = append(out, s)
	}
	losses, silent := l.losses(), l.silent()
	return out, func() {
		for i, in := range known {
			addLosses(&out[i], in, losses, silent)
		}
	}
}

// namedLoss is a loss as status names it.
type namedLoss struct {
	of    string
	nodes []replica.NodeName
}

// losses are those that status says something of: of a process, of each node, of each failure domain.
func (l *Leader) losses() []namedLoss {
	out := []namedLoss{{of: "process"}}
	for _, n := range slices.Sorted(maps.Keys(l.view.Nodes)) {
		out = append(out, namedLoss{"node " + string(n), []replica.NodeName{n}})
	}
	domains := odds.Domains(l.view.Nodes)
	for _, d := range slices.Sorted(maps.Keys(domains)) {
		out = append(out, namedLoss{d, domains[d]})
	}
	return out
}

// silent are the nodes that are counted on for nothing, who has a vote, and who does not give it.
func (l *Leader) silent() odds.Loss {
	var out odds.Loss
	for _, n := range slices.Sorted(maps.Keys(l.view.Nodes)) {
		if l.cfg.Quiet(n) {
			out.Absent = append(out.Absent, n)
		}
	}
	table := votersNow(l)
	out.Voters, out.Mute = voters.Voters(table), voters.Mute(table)
	return out
}

// addLosses adds what losses would come to, beyond the nodes that are silent, and who holds what is committed.
func addLosses(s *control.JobStatus, in plan.Input, losses []namedLoss, beyond odds.Loss) {
	asked := []odds.Loss{{}}
	for _, n := range losses {
		loss := beyond
		loss.Nodes = n.nodes
		asked = append(asked, loss)
	}
	answers := odds.Survives(in, asked...)
	s.Parts, s.Silent = control.PartsStatus(answers[0].Held(in.Job.Committed)), beyond.Absent
	if in.Job.Phase == replica.Open {
		for _, o := range answers[1].Odds() { // of a process: nothing is lost but what is silent
			s.Odds = append(s.Odds, control.OddsStatus(o))
		}
	}
	for i, a := range answers[1:] {
		s.Losses = append(s.Losses, control.LossStatus{Of: losses[i].of, Nodes: append([]replica.NodeName{}, losses[i].nodes...), Resume: a.Resume, Why: a.Why()})
	}
}
