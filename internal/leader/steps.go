package leader

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// One goroutine looks after all jobs, so what one of them takes the others wait for. Each thing that it does, a step, has a budget: what
// takes longer is logged with its name. A job of thousands of ranks rests after each look at it, for longer than the look took, and what
// happens meanwhile is looked at together.

const (
	stepBudget = 250 * time.Millisecond // beyond it a step is logged and counted: a quarter of LinkSilent
	stepHung   = 10 * time.Second       // beyond it the leader counts as hung, and the links hear no more of it
	largeFrom  = 256                    // ranks and nodes together: a job, or a state, of so many rests
	restTimes  = 3                      // for so many times what the look took
	restMost   = time.Second            // and no longer
	viewRate   = 200 << 20              // bytes a second that views may take of this node's network, over all links
)

// steps is how long the leader takes for each thing that it does. Its goroutine writes, anybody reads.
type steps struct {
	since   atomic.Int64 // when the present one began, in nanoseconds since the leader's start; 0: none is under way
	over    atomic.Uint64
	longest atomic.Pointer[slowStep]

	// Owned by run: what took the most of the present step.
	most part
}

// slowStep is what a step was taken for.
type slowStep struct {
	what string
	job  string
	took time.Duration
}

// part is what one job took of a step.
type part struct {
	of   any
	job  string
	took time.Duration
}

// step does one thing and takes its time.
func (l *Leader) step(what any, do func()) {
	began := l.now()
	l.steps.most = part{}
	l.steps.since.Store(int64(max(began, 1)))
	do()
	l.steps.since.Store(0)
	took, was := l.now()-began, l.steps.longest.Load()
	if was != nil && took <= min(was.took, stepBudget) {
		return
	}
	s := slowStep{what: stepName(what), took: took}
	if most := l.steps.most; most.job != "" {
		s.what, s.job = s.what+": "+stepName(most.of), most.job
	}
	if was == nil || took > was.took {
		l.steps.longest.Store(&s)
	}
	if took > stepBudget {
		l.steps.over.Add(1)
		l.log.SlowStep(s.what, s.job, s.took, stepBudget)
	}
}

func stepName(what any) string {
	switch what := what.(type) {
	case string:
		return what
	case nodeMessage:
		return fmt.Sprintf("%T", what.msg)
	case proposalOutcome:
		return fmt.Sprintf("outcome of %T", what.cmd)
	}
	return fmt.Sprintf("%T", what)
}

// timed notes what part of the present step a job took.
func (l *Leader) timed(job *replica.Job, what any, began time.Duration) {
	if took := l.now() - began; took > l.steps.most.took && job != nil {
		l.steps.most = part{what, job.Name, took}
	}
}

func (s *steps) status() control.StepStatus {
	out := control.StepStatus{BudgetMS: stepBudget.Milliseconds(), OverBudget: s.over.Load()}
	if longest := s.longest.Load(); longest != nil {
		out.LongestMS, out.Longest, out.LongestJob = longest.took.Milliseconds(), longest.what, longest.job
	}
	return out
}

// hung tells whether the leader has been at one step for too long.
func (l *Leader) hung() bool {
	since := l.steps.since.Load()
	return since != 0 && l.now()-time.Duration(since) > stepHung
}

// beats tells a node that the leader is there, from a goroutine of its link: a step that takes long, for whatever job, is no reason to
// drop the links of all, after which every node would bring everything again. A leader that hangs falls silent all the same.
func (l *Leader) beats(n *nodeLink) {
	select {
	case <-n.Up:
	case <-n.Down:
		return
	}
	tick := time.NewTicker(control.LinkBeat)
	defer tick.Stop()
	for {
		select {
		case <-n.Down:
			return
		case <-tick.C:
			if !l.hung() {
				n.Send(control.Beat{})
			}
		}
	}
}

// rest is until when a look that took so long is not repeated.
func (l *Leader) rest(size int, took time.Duration) time.Duration {
	if size < largeFrom {
		return 0
	}
	return l.now() + min(restTimes*took, restMost)
}

// look has a job's recovery learn of an event, and act on it unless the job rests: then the tick after its rest does.
func (l *Leader) look(led *ledJob, ev recovery.Event) []recovery.Effect {
	began := l.now()
	if began < led.restsUntil {
		led.recovery.Learn(began, ev)
		led.due = true
		return nil
	}
	effects := led.recovery.Step(began, ev)
	led.due = false
	if led.job != nil { // else its first change is on its way
		led.restsUntil = l.rest(len(led.job.Ranks)+len(l.view.Nodes), l.now()-began)
		l.timed(led.job, ev, began)
	}
	return effects
}

// shortOf says that a job waits for more processes than there are, and what to do about it; empty: it does not.
func (led *ledJob) shortOf() string {
	ranks, offered := led.recovery.Short()
	if ranks == 0 {
		return ""
	}
	j := led.job
	if !led.launched() {
		return fmt.Sprintf("job %s waits for %d processes, for a world of %d, and has no launcher: what has started them before (torchrun, Ray) has to start them, or `replicad run --job %s`; or end it (replicad job end %s)",
			j.Name, ranks, j.Layout.World, j.Name, j.Name)
	}
	return fmt.Sprintf("job %s waits for %d processes: offered %d that it can use, for a world of %d; %sstart `replicad run --job %s` on more nodes or with a larger --capacity, or end it (replicad job end %s) and start it with a smaller --world",
		j.Name, ranks, offered, j.Layout.World, led.barred(), j.Name, j.Name)
}

// barred names the nodes that offer processes which the job may not use, and how it may again; empty: there is none.
func (led *ledJob) barred() (text string) {
	for _, n := range led.job.Quarantined {
		offers := led.reports[n].Offers
		if offers == 0 {
			continue
		}
		why := "was drained"
		if slices.ContainsFunc(led.job.Disputed, func(d replica.Dispute) bool {
			return slices.ContainsFunc(d.Votes, func(v replica.Vote) bool { return v.Node == n })
		}) {
			why = "was excluded after ranks differed"
		}
		text += fmt.Sprintf("node %s offers %d and %s: `replicad node clear %s` lets the job use it; or ", n, offers, why, n)
	}
	return text
}

// launched tells whether some node has a launcher of the job.
func (led *ledJob) launched() bool {
	for _, r := range led.reports {
		if r.Launchers > 0 {
			return true
		}
	}
	return false
}

// sayShort tells the launchers of a job that waits for processes that nobody offers: after claim_timeout, and each time that has doubled.
func (l *Leader) sayShort(led *ledJob) {
	text, now := led.shortOf(), l.now()
	if text == "" || led.agents != nil && led.agents.Any() { // torchrun starts them, and its agents hear for whom they wait
		led.recovery.Clocks.NotShort(led.job.Epoch)
		return
	}
	if led.recovery.Clocks.SayShort(now, led.job.Epoch, l.timing.Claim) {
		l.tell(led.job.ID, text)
		l.log.Note2(led.job, "short", text)
	}
}

// recoveryTiming is what recovery needs of a configuration's delays.
func recoveryTiming(t config.Timing) recovery.Timing {
	return recovery.Timing{Collect: t.Collect, Settle: t.Settle, Ack: t.Ack, Claim: t.Claim, Start: t.Start,
		HolderGrace: t.HolderGrace, ResumeGrace: t.ResumeGrace, DaemonGrace: t.DaemonGrace, Abandoned: t.Abandoned}
}
