package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

const (
	durableTimeout = 2 * time.Minute        // without a word of progress; then a durable write is given up and tried with a later generation
	durableAbsence = 5 * time.Second        // for a node that is to write a shard and is not linked
	durableRetry   = 100 * time.Millisecond // between tries to name a write: the committed generation may move on meanwhile

	durableBackoff    = time.Second // after the first write that failed
	durableBackoffMax = time.Minute

	longestLateMS = uint64(time.Hour / time.Millisecond) // beyond which nobody needs to know by how much

	durableLook = 5 * time.Second // between two looks at whether the newest durable generation is still where it was written
)

// durableSeen is the end of a look for the newest durable generation at the path; why is nil if it is there.
type durableSeen struct {
	job        replica.JobID
	generation replica.Generation
	why        error
}

// durableNow is the newest durable generation, zero where it is known to be gone from the path.
func (led *ledJob) durableNow() replica.Generation {
	if led.absent == led.job.Durable {
		return replica.Generation{}
	}
	return led.job.Durable
}

// lookDurable looks, beside the leader and now and then, whether the newest durable generation is still there: what the log says
// of a directory stays as it was when somebody moves it, or unmounts its file system.
func (l *Leader) lookDurable(led *ledJob) {
	job := led.job
	if l.store == nil || led.looking || job.Durable.IsZero() || job.Options.DurableEvery == 0 || job.Phase == replica.Ended || l.now() < led.lookAt {
		return
	}
	led.looking = true
	l.work.Go(func() { l.post(durableSeen{job.ID, job.Durable, l.store.Holds(job.Name, job.ID, job.Durable)}) })
}

// seenDurable takes note of a look. A generation that is gone is not claimed any more, and the committed one is written at once.
func (l *Leader) seenDurable(led *ledJob, ev durableSeen) {
	led.looking, led.lookAt = false, l.now()+durableLook
	if ev.generation != led.job.Durable {
		return // of a former one
	}
	switch {
	case ev.why == nil:
		if led.absent == ev.generation {
			l.tell(led.job.ID, fmt.Sprintf("durable generation %v is back", ev.generation))
		}
		if !led.absent.IsZero() && led.failing == 0 {
			led.durableError = ""
		}
		led.absent, led.vanishing = replica.Generation{}, 0
	case led.absent != ev.generation:
		l.log.Failed("durable", "generation "+ev.generation.String()+" of job "+led.job.Name, ev.why.Error())
		if led.vanishing == 0 {
			l.tell(led.job.ID, fmt.Sprintf("warning: %v; training goes on, and the newest commit is written anew", ev.why))
		} else {
			led.writeFrom = time.Now() // what was written anew has gone as well: the leader's directory may be another than the writers'
		}
		led.vanishing = min(max(2*led.vanishing, durableBackoff), durableBackoffMax)
		led.absent, led.durableError = ev.generation, ev.why.Error()
	}
}

// durable drives the durable write of a job: names one when it is due, orders the marker when every shard is fsynced,
// gives up what takes too long. Off the training path; captures go on meanwhile.
func (l *Leader) durable(ctx context.Context, led *ledJob) {
	job := led.job
	l.lookDurable(led)
	if job.Writer == nil {
		if news := led.wrote(); news != "" {
			l.tell(job.ID, news)
		}
		last := job.Options.DurableEvery > 0 && job.Committed.Step > led.durableNow().Step && job.Committed != job.Durable && led.recovery.Parted()
		if job.Phase == replica.Open && (last || lock.DurableDue(job, led.durableNow())) && time.Since(led.writeFrom) > max(durableRetry, led.failing, led.vanishing) {
			led.writeFrom = time.Now()
			l.propose(ctx, job.ID, replica.BeginDurable{Job: job.ID, Write: lock.PlanShards(job)}, fromDriver, nil)
		}
		return
	}
	if end := led.unended; end != nil {
		led.unended = nil
		if end.Generation == job.Writer.Generation {
			l.propose(ctx, job.ID, *end, fromDriver, nil)
		}
	}
	led.writing = job.Writer.Generation
	if led.shards == nil {
		led.shards, led.writeFrom = map[replica.Part]control.ShardReport{}, time.Now()
	}
	absent := slices.IndexFunc(job.Writer.Shards, func(s replica.Shard) bool { return l.links[s.Node] == nil })
	if since := time.Since(led.writeFrom); since > durableTimeout || absent >= 0 && since > durableAbsence {
		led.durableError = fmt.Sprintf("generation %v: no byte of it was written for %v", job.Writer.Generation, durableTimeout)
		if absent >= 0 {
			s := job.Writer.Shards[absent]
			led.durableError = fmt.Sprintf("node %s is to write %v and has no link to the leader", s.Node, s.Part)
		}
		led.writeFrom = time.Now()
		l.propose(ctx, job.ID, replica.EndDurable{Job: job.ID, Generation: job.Writer.Generation}, fromDriver, nil)
	}
}

// wrote takes note of a durable write that is over. After one that failed the next waits, longer each time: what ails a disk
// takes a person, and each try writes the shards again. It returns what people should know: that they fail, or work again.
func (led *ledJob) wrote() (news string) {
	led.shards = nil
	switch {
	case led.writing.IsZero():
	case led.writing == led.job.Durable:
		if led.failing > 0 {
			news = fmt.Sprintf("durable writes work again: step %d is written", led.job.Durable.Step)
		}
		led.failing, led.durableError, led.absent = 0, "", replica.Generation{}
	default:
		led.lookAt = 0 // what made it fail may have taken the earlier ones along
		if led.failing == 0 {
			news = fmt.Sprintf("warning: durable writes fail: %s; training goes on, and they are tried again until they work", cmp.Or(led.durableError, "replicad status on the leader's node says why"))
		}
		led.failing, led.writeFrom = min(max(2*led.failing, durableBackoff), durableBackoffMax), time.Now()
	}
	led.writing = replica.Generation{}
	return news
}

func (l *Leader) shard(ctx context.Context, from replica.NodeName, m control.ShardReport) {
	led := l.jobs[m.Job]
	if led == nil || led.job.Writer == nil || led.job.Writer.Generation != m.Generation {
		return
	}
	if !slices.ContainsFunc(led.job.Writer.Shards, func(s replica.Shard) bool { return s.Part == m.Part && s.Node == from }) {
		return // not this node's shard to write
	}
	if led.shards == nil {
		led.shards, led.writeFrom = map[replica.Part]control.ShardReport{}, time.Now()
	}
	if m.Written > 0 {
		led.writeFrom = time.Now() // a shard of gigabytes takes as long as its disk does
		l.holdsSlot(led, from, m)
		return
	}
	if m.Failed != "" {
		l.log.Failed("durable", fmt.Sprintf("shard %v of generation %v by node %s", m.Part, m.Generation, from), m.Failed)
		led.durableError = fmt.Sprintf("node %s, %v of generation %v: %s", from, m.Part, m.Generation, m.Failed)
		l.propose(ctx, m.Job, replica.EndDurable{Job: m.Job, Generation: m.Generation}, fromDriver, nil)
		return
	}
	led.shards[m.Part] = m
	order := control.MarkerOrder{Job: m.Job, Generation: m.Generation, Lacks: replica.LackingIn(led.job, led.reports, m.Generation)}
	for _, s := range led.job.Writer.Shards {
		have, ok := led.shards[s.Part]
		if !ok {
			return
		}
		order.Shards = append(order.Shards, have)
	}
	if n := l.links[led.job.Writer.Writer]; n != nil {
		n.Send(order)
	}
}

// holdsSlot passes on that a durable write which moves holds the slot that a commit lacks.
func (l *Leader) holdsSlot(led *ledJob, from replica.NodeName, m control.ShardReport) {
	if m.LateMS == 0 {
		return
	}
	ev := recovery.Writing{Node: from, Part: m.Part, Generation: m.Generation, Bytes: m.Written, Late: time.Duration(min(m.LateMS, longestLateMS)) * time.Millisecond}
	led.recovery.Learn(l.now(), ev)
	led.guard.dog.Writing(l.now(), ev)
}

// scan looks for what the durable tier can serve, beside the leader.
func (l *Leader) scan(ctx context.Context, job *replica.Job) {
	l.work.Go(func() {
		found, err := l.durableFound(ctx, job)
		l.post(scanned{job.ID, found, err})
	})
}

// durableFound lists the job's complete durable generations, and those that can't be used. The newest that the job may resume from has been
// read whole: a plan that names damaged bytes could only fail, again and again. Older ones are read should they become the newest. An error
// says that what lies there is not known: a list without one that can be used is as good as the end of the job.
func (l *Leader) durableFound(ctx context.Context, job *replica.Job) (out []recovery.DurableGen, err error) {
	if l.store == nil {
		return nil, errors.New("the leader runs without its durable tier: set durable_dir there, or see in its log why it was not opened, and start its daemon again")
	}
	found, skipped, err := l.store.Find(job.Name, job.ID)
	if err != nil {
		return nil, err
	}
	s := l.search(ctx, ctx, found, skipped, mayGoOn(job), taking)
	if s.good == nil {
		if err := notKnown(l.store.Dir(), job, found, s.skipped); err != nil {
			return nil, err
		}
	}
	for _, s := range s.skipped {
		l.log.Skipped(job, s.Path, s.Reason)
	}
	return s.generations(l.store.Dir()), nil
}

// notKnown tells whether a search that found nothing to resume from did not see what was written: the disk refused to read it,
// or another file system lies at its place.
func notKnown(dir string, job *replica.Job, found []checkpoint.Found, skipped []checkpoint.Skipped) error {
	seen := len(found) > 0
	for _, s := range skipped {
		if s.Why == checkpoint.Unreadable {
			return fmt.Errorf("durable generation %s: %s", s.Path, s.Reason)
		}
		seen = seen || s.Why == checkpoint.Damaged
	}
	if !seen && !job.Durable.IsZero() {
		return fmt.Errorf("%s has nothing of the job, though durable generation %v was written: mount it, or end the job (replicad job end %s)", dir, job.Durable, job.Name)
	}
	return nil
}
