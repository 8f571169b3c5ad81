package leader

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// guard is the watchdog of one job's commits, and the stall that there is; nil: none. Owned by the leader.
type guard struct {
	dog   recovery.Watchdog
	stall *recovery.Stall
}

// look asks the watchdog, has the mirrors moved that it names, and tells people.
func (g *guard) look(ctx context.Context, l *Leader, led *ledJob) {
	job := led.job
	news := g.dog.Look(l.now(), recovery.Commits{Clocks: led.recovery.Clocks, Job: job, Cadence: lock.Cadence(job), Live: liveStep(led), Candidate: led.candidate.Position.Step,
		Missing: led.committer.Missing(), Waiting: led.committer.Waiting(), Linked: func(n replica.NodeName) bool { return l.links.of[n] != nil }, Elsewhere: led.recovery.Elsewhere})
	g.stall = news.Stall
	for _, m := range news.Moves {
		l.recoverStep(ctx, job.ID, led, m)
	}
	switch {
	case news.Say:
		l.log.CommitStalled(job, *news.Stall)
		l.audit.Note("commits stalled", stallFields(job, *news.Stall))
		l.tell(job.ID, "warning: "+news.Stall.String())
	case news.Over > 0:
		text := fmt.Sprintf("commits go on, at step %d, after %v without one", job.Position.Step, news.Over.Round(time.Second))
		l.log.CommitsAgain(job, news.Over)
		l.audit.Note("commits go on", audit.Fields{"job": job.Name, "step": fmt.Sprint(job.Position.Step)})
		l.tell(job.ID, text)
	}
}

// pushes passes on what a node says of its pushes for the candidate.
func (l *Leader) pushes(from replica.NodeName, m control.PushReport) {
	led := l.jobs[m.Job]
	if led == nil {
		return
	}
	for _, p := range m.Pushes {
		led.guard.dog.Moving(l.now(), recovery.Moving{From: from, To: p.To, Part: p.Part, Generation: m.Generation, Bytes: p.Bytes, Why: p.Why})
	}
}

func stallFields(job *replica.Job, s recovery.Stall) audit.Fields {
	f := audit.Fields{"job": job.Name, "epoch": fmt.Sprint(job.Epoch), "step": fmt.Sprint(s.Step), "uncommitted": fmt.Sprint(s.Steps), "text": s.String()}
	var moves []string
	for _, g := range s.Gaps {
		if g.To != "" {
			moves = append(moves, fmt.Sprintf("%v from %s to %s", g.Part, g.Node, g.To))
		}
	}
	f["moved"] = strings.Join(moves, ", ")
	return f
}

// status adds the stall that there is. Copies of what was committed help no step made since.
func (g *guard) status(s *control.JobStatus) {
	if g.stall == nil {
		return
	}
	s.Stalled, s.AtRisk, s.Degraded = g.stall.String(), true, true
}
