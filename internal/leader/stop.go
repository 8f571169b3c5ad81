package leader

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/internal/leader/operators"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// stepGrace is how long ranks have to end the step that they are in, and to have it committed, before their job stops.
const stepGrace = 10 * time.Second

const (
	haltAnswer  = 2 * time.Second // beyond it, for the leader to say that the time is over
	haltReasons = 4               // what the commit of a job that is stopped waited for: so many are named
)

// halt is a job that is about to stop: it does once a step is committed, or when the time is over.
type halt struct {
	step  replica.Step
	until time.Duration
	told  []chan<- string // that may stop it, with what that gives up
}

type (
	// haltAsked wants to hear when a job may stop, and which steps are given up then; empty: none.
	haltAsked struct {
		job replica.JobID
		may chan<- string
	}
	// saveAsked wants what a job has committed written.
	saveAsked struct {
		job  replica.JobID
		keep string // why it is to be kept; empty: it is not
	}
)

// stop stops a job, or has it end once what it has committed is on disk; from any goroutine. Its ranks end the step that they are in first.
func (l *Leader) stop(ctx context.Context, job *replica.Job, m control.Order) control.OperatorReply {
	if job.Committed.IsZero() {
		return control.Refusal(fmt.Sprintf("job %s has committed nothing that could be kept: end it (replicad job end %s)", m.Job, m.Job))
	}
	gives := l.await(ctx, job.ID)
	var c replica.Command = replica.StopJob{Job: job.ID, Reason: m.Why}
	if m.Verb == control.EndJob {
		c = replica.EndJob{Job: job.ID, Reason: m.Why, Keep: true}
	}
	is, refused := l.apply(ctx, c)
	switch {
	case refused != "":
		return control.Refusal(refused)
	case is.Phase == replica.Ended:
		return control.OperatorReply{Text: fmt.Sprintf("job %s has ended, newest commit step %d", m.Job, is.Position.Step) + gives}
	case is.Stop.End:
		return control.OperatorReply{Text: fmt.Sprintf("job %s ends once step %d is on disk", m.Job, is.Committed.Step) + gives}
	}
	text := fmt.Sprintf("job %s is stopped at step %d", m.Job, is.Committed.Step) + gives
	if kept := l.cfg.Timing.Abandoned; kept > 0 {
		text += fmt.Sprintf(", and stays in memory for %v: the same replicad run goes on with it", kept)
	}
	return control.OperatorReply{Text: text}
}

// await returns once the ranks of a job have ended the step that they are in, and says what is given up where that is not committed after stepGrace.
func (l *Leader) await(ctx context.Context, job replica.JobID) (gives string) {
	ctx, cancel := context.WithTimeout(ctx, stepGrace+haltAnswer)
	defer cancel()
	may := make(chan string, 1)
	select {
	case l.first <- haltAsked{job, may}:
	case <-ctx.Done():
		return ""
	case <-l.ended:
		return ""
	}
	select {
	case gives = <-may:
	case <-ctx.Done():
	case <-l.ended:
	}
	return gives
}

// save has what a job has committed written, and kept where keep says why; from any goroutine.
func (l *Leader) save(ctx context.Context, job *replica.Job, keep string) control.OperatorReply {
	if job.Committed.IsZero() {
		return control.Refusal(fmt.Sprintf("job %s has committed nothing yet", job.Name))
	}
	if l.store == nil {
		return control.Refusal(fmt.Sprintf("job %s: the leader runs without a durable tier: set durable_dir there, or see in its log why it was not opened", job.Name))
	}
	if job.Committed == job.Durable {
		if keep == "" {
			return control.OperatorReply{Text: fmt.Sprintf("step %d of job %s is on disk already", job.Durable.Step, job.Name)}
		}
		if err := l.store.Keep(ctx, job.Name, job.ID, job.Durable, keep); err != nil {
			return control.Refusal(fmt.Sprintf("step %d of job %s is on disk already, and can't be kept: %v", job.Durable.Step, job.Name, err))
		}
		return control.OperatorReply{Text: fmt.Sprintf("step %d of job %s is on disk already, and is kept", job.Durable.Step, job.Name)}
	}
	select {
	case l.first <- saveAsked{job.ID, keep}:
	case <-ctx.Done():
		return control.Refusal(operators.Unknown(ctx.Err()))
	case <-l.ended:
		return control.Refusal("the leader ends: ask again")
	}
	return control.OperatorReply{Text: fmt.Sprintf("step %d of job %s, or a newer one, is being written", job.Committed.Step, job.Name)}
}

// halted takes a request in: the job may stop once the step is committed that its ranks are in.
func (l *Leader) halted(ev haltAsked) {
	led := l.jobs[ev.job]
	if led == nil {
		close(ev.may)
		return
	}
	if led.halt == nil {
		led.halt = &halt{step: lock.LastDue(led.job, liveStep(led)+1), until: l.now() + stepGrace}
	}
	led.halt.told = append(led.halt.told, ev.may)
	l.mayHalt(led)
}

// mayHalt tells those who wait that the job may stop, and its launchers what that gives up.
func (l *Leader) mayHalt(led *ledJob) {
	h := led.halt
	if h == nil || led.job.Phase == replica.Open && led.job.Position.Step < h.step && l.now() < h.until && !led.recovery.Unattended() {
		return
	}
	gives := ""
	if steps := uncommitted(led); led.job.Phase == replica.Open && led.job.Position.Step < h.step && steps > 0 {
		gives = fmt.Sprintf("; its ranks were at step %d, and the %d steps since were not committed and are given up", liveStep(led), steps)
		if why := l.waitsFor(led); len(why) > 0 {
			gives += ": " + strings.Join(why[:min(len(why), haltReasons)], ", ")
		}
		l.tell(led.job.ID, fmt.Sprintf("warning: the job is stopped at step %d%s", led.job.Position.Step, gives))
	}
	for _, may := range h.told {
		may <- gives // has room for the one answer
		close(may)
	}
	led.halt = nil
}

// saved has what is committed written.
func (l *Leader) saved(ctx context.Context, ev saveAsked) {
	if led := l.jobs[ev.job]; led != nil {
		l.durableLearns(ctx, led, durable.Ask{Keep: ev.keep})
	}
}

// goOn lets a stopped job go on, for a launcher that has come; who asked comes again meanwhile.
func (l *Leader) goOn(ctx context.Context, from *nodeLink, m control.CreateRequest, job *replica.Job) {
	if job.Stop.End { // its node hears of it, and has the launcher come again
		l.created(from, m, control.CreateReply{ID: m.ID, Retry: true})
		return
	}
	l.propose(ctx, job.ID, replica.StopJob{Job: job.ID, Clear: true}, fromDriver, func(lock.Outcome, error) {
		l.created(from, m, control.CreateReply{ID: m.ID, Retry: true})
	})
}
