package leader

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/leader/durable"
	"github.com/replicad/replicad/internal/leader/reread"
	"github.com/replicad/replicad/replica"
)

// rereading is the room that says which durable generation is read again, and what this leader does for it. Run owns it.
type rereading struct {
	room   *reread.Room // nil: this node does not lead, or reads nothing again
	wake   time.Time    // when the room is to be asked; zero: after the next event
	busy   bool         // what the room was told
	ctx    context.Context
	cancel context.CancelFunc // of what is under way
	life   context.Context    // of this node's daemon: what is read back goes on when the leadership moves
	back   *reread.Read       // is being read back, since this leadership or an earlier one
	owed   *reread.Read       // the newest that was read back where the leadership moved before what it replaces was removed
}

// rereadLearned is something for the room of that leadership.
type rereadLearned struct {
	room *reread.Room
	ev   reread.Event
	err  error // of a read

	again bool         // it was read before: what it replaces was to be removed
	owes  *reread.Read // for which nothing was removed, as the leadership moved
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
	l.again = rereading{room: reread.New(now, every), wake: now, life: ctx, back: l.again.back, owed: l.again.owed}
	l.again.ctx, l.again.cancel = context.WithCancel(ctx)
	if l.again.back != nil {
		l.again.room.Learn(now, reread.Reads{Read: *l.again.back})
	}
	for _, led := range l.jobs {
		if led.job != nil {
			l.wrote(nil, led.job)
		}
	}
}

// endReread ends with it. What is being read back is read to its end: leaders may change more often than a read takes, and what it finds lies beside the
// generation for all of them.
func (l *Leader) endReread() {
	if l.again.room != nil {
		l.again.cancel()
	}
	l.again = rereading{back: l.again.back, owed: l.again.owed}
}

// rereadLearns has the room learn of something.
func (l *Leader) rereadLearns(ev reread.Event) {
	if l.again.room != nil {
		now := time.Now()
		l.again.room.Learn(now, ev)
		l.again.wake = now
		for id, led := range l.jobs { // the next write of a job waits for what is unread
			led.durable.Learn(l.now(), durable.Unread{Generations: l.again.room.Unread(id), Listing: led.job != nil && l.again.room.Listing(led.job.Name)})
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
			ctx := l.again.ctx
			l.rereadBeside(func() rereadLearned { return rereadLearned{ev: l.lying(ctx, e.Name)} })
		case reread.Read:
			reads(l, e, false)
		}
	}
	l.again.wake, _ = l.again.room.Next()
}

// rereadBeside does something beside the leader, for the room that there is now.
func (l *Leader) rereadBeside(do func() rereadLearned) {
	room := l.again.room
	l.work.Go(func() {
		learned := do()
		learned.room = room
		l.post(learned)
	})
}

// reads has a generation read; again: it was, and only what it replaces is removed. What the job that wrote it keeps no more is removed after it, before
// the next is written.
func reads(l *Leader, of reread.Read, again bool) {
	var job *replica.Job
	if led := l.jobs[of.Job]; led != nil {
		job = led.job
	}
	lead, behind := l.again.ctx, of
	ctx := lead
	if of.Back {
		l.again.back, ctx = &of, l.again.life
	}
	if owed := l.again.owed; owed != nil && owed.Job == of.Job && owed.Generation.Compare(of.Generation) > 0 {
		behind = *owed
	}
	l.rereadBeside(func() rereadLearned {
		var err error
		if !again {
			err = l.readAgain(ctx, of)
		}
		learned := rereadLearned{ev: reread.Ended{Read: of, Refused: err != nil && !tier.IsDamage(err) && !errors.Is(err, find.ErrNone)}, err: err, again: again}
		if err != nil || !of.Back || job == nil {
			return learned
		}
		if lead.Err() == nil { // a later leader may know the job better
			pruneBehind(lead, l, behind, job)
		}
		if lead.Err() != nil {
			learned.owes = &behind
		}
		return learned
	})
}

// pruneBehind removes what a job keeps no more, for the sake of a generation that was read back and is good.
func pruneBehind(ctx context.Context, l *Leader, of reread.Read, job *replica.Job) {
	how := tier.How{Cold: true, Back: true, Pace: (&pacer{rate: l.cfg.Reread.Back}).pace}
	if err := l.store.Prune(ctx, tier.Retention{Name: of.Name, Job: of.Job, Lineage: job.Lineage, Keep: l.cfg.Reread.Keep, Read: of.Generation, How: how}); err != nil && ctx.Err() == nil {
		l.log.Failed("durable", "prune job "+of.Name, err.Error())
	}
}

// pruneOwed removes what was not removed when the leadership moved, once this node leads the job. Nothing is read back meanwhile.
func pruneOwed(l *Leader) {
	of := l.again.owed
	if of == nil || l.again.room == nil || l.again.back != nil || l.jobs[of.Job] == nil {
		return
	}
	l.again.owed = nil
	l.again.room.Learn(time.Now(), reread.Reads{Read: *of})
	reads(l, *of, true)
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

// rereadEnded passes on what was done for the room, if it is still there, and says what was found. What was read back is for whatever room there is now.
func (l *Leader) rereadEnded(ev rereadLearned) {
	of, read := ev.ev.(reread.Ended)
	if read && of.Back {
		l.again.back = nil
	} else if ev.room != l.again.room {
		return
	}
	l.rereadLearns(ev.ev)
	if ev.owes != nil {
		l.again.owed = ev.owes
	}
	pruneOwed(l)
	if ev.again {
		return
	}
	if read && ev.err == nil {
		l.log.Note2(nil, "durable_read", fmt.Sprintf("generation %v of job %q was read back and is good", of.Generation, of.Name))
	}
	if ev.err == nil || errors.Is(ev.err, context.Canceled) || errors.Is(ev.err, find.ErrNone) {
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
			case find.Good, find.Unread, find.Damaged, find.Stripped, find.Encrypted:
			case find.Unfinished, find.Unreadable, find.Deleting:
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

// readAgain reads a generation from the disk, at the configured rate.
func (l *Leader) readAgain(ctx context.Context, of reread.Read) error {
	p := pacer{rate: l.cfg.Reread.Rate}
	if of.Back {
		p.rate = l.cfg.Reread.Back
	}
	f, err := l.store.Look(ctx, of.Name, of.Job, of.Generation)
	if err != nil {
		return err
	}
	return l.store.ReadBack(ctx, f, tier.How{Cold: true, Back: of.Back, Pace: p.pace})
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
