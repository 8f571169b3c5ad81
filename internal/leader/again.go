package leader

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/internal/leader/reread"
	"github.com/replicad/replicad/replica"
)

// RereadConfig says how durable generations are read, and which of a job's stay.
type RereadConfig struct {
	Back  uint64        // bytes a second, of what nobody has read since it was written; 0: nothing is read
	Every time.Duration // is what was read read again; 0: it is not
	Rate  uint64        // bytes a second, of that; 0: it is not
	Keep  replica.Keep
}

// rereading is the room that says which durable generation is read again, and what this leader does for it. Run owns it.
type rereading struct {
	room   *reread.Room // nil: this node does not lead, or reads nothing again
	wake   time.Time    // when the room is to be asked; zero: after the next event
	busy   bool         // what the room was told
	ctx    context.Context
	cancel context.CancelFunc // of what is under way
}

// rereadLearned is something for the room of that leadership.
type rereadLearned struct {
	room *reread.Room
	ev   reread.Event
	err  error // of a read
}

// beginReread begins with a leadership.
func (l *Leader) beginReread(ctx context.Context) {
	if l.store == nil || l.cfg.Reread.Back == 0 {
		return
	}
	now, every := time.Now(), l.cfg.Reread.Every
	if l.cfg.Reread.Rate == 0 {
		every = 0
	}
	l.again = rereading{room: reread.New(now, every), wake: now}
	l.again.ctx, l.again.cancel = context.WithCancel(ctx)
	for _, led := range l.jobs {
		if led.job != nil {
			l.wrote(nil, led.job)
		}
	}
}

// endReread ends with it. What was read by half the next leader reads whole.
func (l *Leader) endReread() {
	if l.again.room != nil {
		l.again.cancel()
	}
	l.again = rereading{}
}

// rereadLearns has the room learn of something.
func (l *Leader) rereadLearns(ev reread.Event) {
	if l.again.room != nil {
		now := time.Now()
		l.again.room.Learn(now, ev)
		l.again.wake = now
		for id, led := range l.jobs { // the next write of a job waits for what is unread
			led.durable.Learn(l.now(), durable.Unread{Generations: l.again.room.Unread(id)})
		}
	}
}

// rereads does what the room wants done. It is called with each tick.
func (l *Leader) rereads() {
	if l.again.room == nil {
		return
	}
	if busy := l.recovering(); busy != l.again.busy {
		l.again.busy = busy
		l.rereadLearns(reread.Busy{Is: busy})
	}
	now := time.Now()
	if l.again.wake.IsZero() || now.Before(l.again.wake) {
		return
	}
	for _, e := range l.again.room.Step(now) {
		switch e := e.(type) {
		case reread.List:
			l.rereadBeside(func(ctx context.Context) rereadLearned { return rereadLearned{ev: l.lying(ctx, e.Name)} })
		case reread.Read:
			var job *replica.Job
			if led := l.jobs[e.Job]; led != nil {
				job = led.job
			}
			l.rereadBeside(func(ctx context.Context) rereadLearned {
				err := l.readAgain(ctx, e, job)
				return rereadLearned{ev: reread.Ended{Read: e, Refused: err != nil && !tier.IsDamage(err) && !errors.Is(err, catalog.ErrNone)}, err: err}
			})
		}
	}
	l.again.wake, _ = l.again.room.Next()
}

// rereadBeside does something beside the leader, for the room that there is now.
func (l *Leader) rereadBeside(do func(context.Context) rereadLearned) {
	room, ctx := l.again.room, l.again.ctx
	l.work.Go(func() {
		learned := do(ctx)
		learned.room = room
		l.post(learned)
	})
}

// recovering tells whether some job opens or recovers.
func (l *Leader) recovering() bool {
	for _, led := range l.jobs {
		if p := led.job.Phase; p != replica.Open && p != replica.Ended {
			return true
		}
	}
	return false
}

// rereadEnded passes on what was done for the room, if it is still there, and says what was found.
func (l *Leader) rereadEnded(ev rereadLearned) {
	if ev.room != l.again.room {
		return
	}
	l.rereadLearns(ev.ev)
	of, read := ev.ev.(reread.Ended)
	if read && ev.err == nil {
		l.log.Note2(nil, "durable_read", fmt.Sprintf("generation %v of job %q was read back and is good", of.Generation, of.Name))
	}
	if ev.err == nil || errors.Is(ev.err, context.Canceled) || errors.Is(ev.err, catalog.ErrNone) {
		return // retention may have deleted it since it was listed
	}
	where := path.Join(of.Name, of.Job.String(), format.StepName(of.Generation))
	l.log.Skipped(nil, where, ev.err.Error())
	led, why := l.jobs[of.Job], replica.Line(tier.Plain(ev.err), maxWrong)
	switch {
	case led == nil:
	case !tier.IsDamage(ev.err) && of.Back:
		l.tell(of.Job, fmt.Sprintf("warning: the durable generation of step %d could not be read back, and pushes no older one out; it is tried again: %s", of.Generation.Step, why))
	case tier.IsDamage(ev.err) && led.job.Durable != of.Generation: // of the newest the next look at it says so
		l.tell(of.Job, fmt.Sprintf("warning: the durable generation of step %d, which is kept, failed a read and counts for nothing: %s", of.Generation.Step, why))
	}
}

// lying lists what lies of a name in the durable tier, or of all names.
func (l *Leader) lying(ctx context.Context, name string) reread.Listed {
	ev := reread.Listed{Name: name}
	names, err := []string{name}, error(nil)
	if name == "" {
		names, err = l.store.Names(ctx)
	}
	for _, n := range names {
		var list []tier.Listed
		if list, err = l.store.List(ctx, n); err != nil {
			break
		}
		for _, g := range list {
			switch g.State {
			case catalog.Good, catalog.Unread, catalog.Damaged, catalog.Stripped, catalog.Encrypted:
			case catalog.Unfinished, catalog.Unreadable, catalog.Deleting:
				continue
			}
			is := reread.Lying{Name: n, Job: g.Run.ID, Generation: g.Generation, Read: g.Read}
			if g.Row.At > 0 {
				is.Written = time.UnixMilli(g.Row.At)
			}
			ev.All = append(ev.All, is)
		}
	}
	if err != nil {
		l.log.Failed("durable", "list what is to be read again", err.Error())
		ev.Failed = true
	}
	return ev
}

// readAgain reads a generation from the disk, at the configured rate. Where that was the first time since a job wrote it, and it is good, it is what others may
// go for: what the job keeps no more is removed before the next is written.
func (l *Leader) readAgain(ctx context.Context, of reread.Read, job *replica.Job) error {
	p := pacer{rate: l.cfg.Reread.Rate}
	if of.Back {
		p.rate = l.cfg.Reread.Back
	}
	how := tier.How{Cold: true, Back: of.Back, Pace: p.pace}
	f, err := l.store.Look(ctx, of.Name, of.Job, of.Generation)
	if err == nil {
		err = l.store.ReadBack(ctx, f, how)
	}
	if err == nil && of.Back && job != nil {
		if perr := l.store.Prune(ctx, tier.Retention{Name: of.Name, Job: of.Job, Lineage: job.Lineage, Keep: l.cfg.Reread.Keep, Read: of.Generation, How: how}); perr != nil {
			l.log.Failed("durable", "prune job "+of.Name, perr.Error())
		}
	}
	return err
}

// pacer holds readers to so many bytes a second together.
type pacer struct {
	rate uint64
	mu   sync.Mutex // guards free
	free time.Time  // when the next may read
}

// pace waits until so many bytes may be read.
func (p *pacer) pace(ctx context.Context, bytes int) error {
	wait := p.take(time.Now(), bytes)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take is how long to wait before reading so many bytes: until what others were let read before has had its time.
func (p *pacer) take(now time.Time, bytes int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free.Before(now) {
		p.free = now
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second)))
	return wait
}
