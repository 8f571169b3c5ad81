package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// shelf is the leader as the room of one job's durable writes sees it.
type shelf struct {
	*Leader
	led *ledJob
}

func (s shelf) Linked(n replica.NodeName) bool { return s.links.of[n] != nil }

func (s shelf) Clocks() *recovery.Clocks { return s.led.recovery.Clocks }

func (s shelf) Parted() bool { return s.led.recovery != nil && s.led.recovery.Parted() }

func (s shelf) Unattended() bool { return s.led.recovery != nil && s.led.recovery.Unattended() }

func (s shelf) Lacks(g replica.Generation) []replica.Lacking {
	return replica.LackingIn(s.led.job, s.led.reports, g)
}

// durableLearns has a job's room learn of something, and does what follows.
func (l *Leader) durableLearns(ctx context.Context, led *ledJob, ev durable.Event) {
	led.durable.Learn(l.now(), ev)
	l.durableTurn(ctx, led)
}

// durableTurn does what the room of a job's durable writes wants done now.
func (l *Leader) durableTurn(ctx context.Context, led *ledJob) {
	job := led.job
	for _, e := range led.durable.Step(l.now()) {
		switch e := e.(type) {
		case durable.Propose:
			l.propose(ctx, job.ID, e.Command, fromDriver, nil)
		case durable.Mark:
			if n := l.links.of[e.Node]; n != nil {
				n.Send(e.Order)
			}
		case durable.Turn:
			if n := l.links.of[e.Node]; n != nil {
				n.Send(e.Order)
			}
		case durable.Pin:
			l.work.Go(func() { l.keep(ctx, job, e) })
		case durable.Look:
			l.work.Go(func() {
				since, err := l.store.Holds(ctx, job.Name, job.ID, e.Generation)
				if err != nil && l.cfg.Node != "" {
					err = fmt.Errorf("node %s, which leads: %w", l.cfg.Node, err)
				}
				l.post(durableSeen{job.ID, durable.Seen{Generation: e.Generation, Since: since, Why: err}})
			})
		case durable.Tell:
			l.tell(job.ID, e.Text)
		case durable.Log:
			l.log.Failed("durable", e.Subject, e.Why)
		case durable.Over:
			led.recovery.Learn(l.now(), recovery.WritesOver{})
			led.due = true
		case durable.Late:
			led.recovery.Learn(l.now(), e.Writing)
			led.guard.dog.Writing(l.now(), e.Writing)
		}
	}
}

// keep has a generation kept for somebody who has asked for it. Who waits for it sees it on disk already: what fails here launchers print.
func (l *Leader) keep(ctx context.Context, job *replica.Job, p durable.Pin) {
	var err error = errors.New("the leader runs without its durable tier")
	if l.store != nil {
		err = l.store.Keep(ctx, job.Name, job.ID, p.Generation, p.Why)
	}
	if err != nil {
		text := fmt.Sprintf("step %d is not kept (%s): %v: pin it, replicad ckpt pin", p.Generation.Step, p.Why, err)
		l.log.Failed("durable", "keep a generation of job "+job.Name, text)
		l.tell(job.ID, "warning: "+text)
	}
}

// durableSeen is the end of a look for a job's newest durable generation.
type durableSeen struct {
	job  replica.JobID
	seen durable.Seen
}

// scan looks for what the durable tier can serve, beside the leader.
func (l *Leader) scan(ctx context.Context, led *ledJob) {
	job, lost := led.job, !led.held()
	l.work.Go(func() {
		if lost && l.store != nil {
			if passed := l.finishSpooled(ctx, job.Name, job); passed != "" {
				l.post(telling{job.ID, passed})
			}
		}
		found, err := l.durableFound(ctx, job)
		l.post(scanned{job.ID, found, err})
	})
}

// held tells whether a node that is linked, or was, has reported that it holds a part of what the job committed.
func (led *ledJob) held() bool {
	for _, r := range led.reports {
		if slices.ContainsFunc(r.Parts, func(h replica.Held) bool { return h.Generation == led.job.Committed }) {
			return true
		}
	}
	return false
}

// durableFound lists the job's complete durable generations, and those that can't be used. Damage that nobody has seen yet the ranks find that load,
// and the generation is condemned. An error says that what lies there is not known: a list without one that can be used is as good as the end of the job.
func (l *Leader) durableFound(ctx context.Context, job *replica.Job) (out []plan.DurableGen, err error) {
	if l.store == nil {
		return nil, errors.New("the leader runs without its durable tier: set durable_dir there, or see in its log why it was not opened, and start its daemon again")
	}
	found, skipped, err := l.store.Find(ctx, job.Name, job.ID)
	if err != nil {
		return nil, err
	}
	s := l.search(ctx, ctx, found, skipped, mayGoOn(job))
	if s.good == nil {
		if err := notKnown(l.store.URL(), job, found, s.skipped); err != nil {
			return nil, err
		}
	}
	for _, s := range s.skipped {
		l.log.Skipped(job, s.Where(), s.Reason)
	}
	return s.generations(l.store.URL()), nil
}

// notKnown tells whether a search that found nothing to resume from did not see what was written: the disk refused to read it,
// or another file system lies at its place.
func notKnown(url string, job *replica.Job, found []tier.Found, skipped []tier.Skipped) error {
	seen := len(found) > 0
	for _, s := range skipped {
		if s.State == find.Unreadable {
			return fmt.Errorf("durable generation %s: %s", s.Where(), s.Reason)
		}
		seen = seen || s.State == find.Damaged || s.State == find.Stripped || s.State == find.Encrypted
	}
	if !seen && !job.Durable.IsZero() {
		return fmt.Errorf("%s has nothing of the job, though durable generation %v was written: mount it, or end the job (replicad job end %s)", url, job.Durable, job.Name)
	}
	return nil
}
