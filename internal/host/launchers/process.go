package launchers

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// running takes a launcher's report that a process runs. After a reconnect it names all, those that attached before among them.
func (p *Pool) running(ev session.RunRunning, now time.Time) {
	l := p.all[ev.Peer.ID()]
	if l == nil {
		return
	}
	r, pid := ev.RunExited.Rank, ev.RunExited.PID
	if !p.named(l, r) {
		return
	}
	l.starts.runs(r, pid, now)
	l.hears(now)
	if job := p.owner.Named(l.hello.Job); job != nil {
		p.Of(job).TakeOffers(now) // it may be asked for the next one
		if rank, _ := job.Rank(r); rank.Alive && rank.PID == pid {
			l.starts.entry(r).attached = true
		}
	}
}

// named reports whether there is a rank that a launcher names: it runs as any user, and its word is no index.
func (p *Pool) named(l *launcher, r replica.Rank) bool {
	world := int(l.hello.World)
	if job := p.owner.Named(l.hello.Job); job != nil {
		world = len(job.Record().Ranks)
	}
	if int(r) < world {
		return true
	}
	p.log.Failed("launcher", fmt.Sprintf("process %d of job %q", l.peer.PID(), l.hello.Job),
		fmt.Sprintf("it names rank %d of a world of %d", r, world))
	return false
}

// exited takes a launcher's report that a process has ended.
func (p *Pool) exited(ev session.RunExited, now time.Time) {
	l := p.all[ev.Peer.ID()]
	if l == nil {
		return
	}
	x := ev.RunExited
	if !p.named(l, x.Rank) {
		return
	}
	l.hears(now)
	l.starts.over(x.Rank)
	p.log.Exited(l.hello.Job, x.Rank, x.PID, x.Status)
	job := p.owner.Named(l.hello.Job)
	if job == nil {
		p.serve(l, now)
		return
	}
	v := p.Of(job)
	v.ended(l, x, now)
	if rank, known := job.Rank(x.Rank); known && rank.PID == x.PID {
		p.owner.Died(job.Record().ID, x.Rank)
	} else if !l.starts.of(x.Rank).attached { // else the rank was a child of the launcher's process, or has been taken over
		v.endedEarly(l, x.Rank, x.Status, now)
	}
	v.TakeOffers(now)
	p.owner.Report(job.Record().ID)
}

// ended judges the status of a process: success is none where the rank has not left, and after wire.StatusFinal no new process is started.
func (v View) ended(l *launcher, x wire.RunExited, now time.Time) {
	job := v.job.Record()
	if room.Over(job) {
		return
	}
	rank, known := v.job.Rank(x.Rank)
	held := known && rank.PID == x.PID
	switch was := l.starts.of(x.Rank); {
	case x.Status == wire.StatusFinal && (held || was.attached):
		v.endForGood(x.Rank, fmt.Sprintf("rank %d on node %s ended with status %d, which means that a new process would only end "+
			"the same way; its own output has the reason", x.Rank, v.pool.self, x.Status))
	case x.Status == wire.StatusFinal:
		why := fmt.Sprintf("the program for rank %d on node %s ended with status %d before it had the rank, which means that a new "+
			"process would only end the same way", x.Rank, v.pool.self, x.Status)
		if was.refused != "" {
			why += ": " + was.refused
		}
		v.unfit(l, x.Rank, why)
	case x.Status == wire.StatusWant && (held || was.attached):
		v.Short(x.Rank, want.Something, fmt.Sprintf("process %d of rank %d ended with status %d", x.PID, x.Rank, x.Status), now)
	case x.Status == 0 && held && !rank.Left:
		v.Note(fmt.Sprintf("rank %d: process %d ended with status 0 and has not left the job, so it is started again: a program "+
			"that has finished must leave (session.leave(), rp_leave)", x.Rank, x.PID))
	}
}

// endedEarly counts a process that ended before it attached: it was started in vain, and will be again.
func (v View) endedEarly(l *launcher, r replica.Rank, status int32, now time.Time) {
	p, job := v.pool, v.job.Record()
	c := job.Ranks[r]
	elsewhere := c.Incarnation != 0 && c.Node != p.self && !recovery.Vacated(job, r)
	if l.starts.strange(r, status) && !elsewhere && job.Phase != replica.Ended && !l.done && !survivors(job) {
		if job.Phase == replica.Opening && l.starts.running() > 0 {
			l.starts.entry(r).held = true
			l.note(job.Epoch, fmt.Sprintf("rank %d's process ended with status 0 and never connected to the daemon; it is started "+
				"again once another process of the job has attached", r))
			return
		}
		v.stranger(l, r)
		return
	}
	if kind := v.wanted(status, now); kind != want.Nothing {
		l.starts.again(r, now)
		v.Short(r, kind, fmt.Sprintf("a process for rank %d ended with status %d before it attached", r, status), now)
		return
	}
	if elsewhere {
		return // it came too late: a process elsewhere has the rank
	}
	tries := l.starts.early(r, now, p.cfg.Timing.Start)
	p.log.StartFailed(job, r, status, tries, startTries)
	if tries < startTries || job.Phase == replica.Ended || l.done {
		return
	}
	why := fmt.Sprintf("rank %d ended %d times in a row on node %s before it attached, the last time with status %d", r, tries, p.self,
		status)
	was := l.starts.of(r)
	if was.refused != "" {
		why += ": " + was.refused
	}
	why += "; its own output says why"
	if was.turned || !survivors(job) {
		v.unfit(l, r, why)
		return
	}
	v.endForGood(r, why)
}

// wanted is what a process that ended before it attached was short of, by its status or because this node is short of it. Nothing: it
// failed.
func (v View) wanted(status int32, now time.Time) want.Kind {
	switch {
	case status < 0:
		return want.Kind(-max(status, -int32(want.Something)))
	case status == wire.StatusWant, v.pool.short.of(v.job.Record().Name, now) != "" && status != wire.StatusFinal:
		return want.Something
	}
	return want.Nothing
}

// KillStuck ends the processes here that were started and have neither attached nor met anybody since: an import from a file system that
// hangs, for example. The epoch that waits for them has no steps to know a hang by. Where a job begins and no other rank has attached,
// nobody waits for a process. The program may take as long as it needs before its session then, and its launcher is notified.
func (p *Pool) KillStuck(now time.Time) {
	limit := p.cfg.Timing.Start
	starting := map[replica.JobID][]replica.Rank{} // which polls all launchers: a user may have hundreds of them
	for _, l := range p.all {
		known := p.owner.Named(l.hello.Job)
		if known == nil || !l.accepted {
			continue
		}
		job := known.Record()
		if _, counted := starting[job.ID]; !counted {
			starting[job.ID], _, _ = p.Of(known).starting(now)
		}
		for _, r := range starting[job.ID] {
			switch {
			case p.owner.Expects(job, r):
				l.starts.excused(r, now)
			case recovery.StartAwaited(job, r) && l.starts.stuck(r, now, limit):
				why := fmt.Sprintf("killed, since it had not attached after %v (timing.start of this node's configuration)", limit)
				l.starts.refused(r, why, false)
				p.log.RankNote(job, r, "stuck", why)
				l.note(job.Epoch, fmt.Sprintf("rank %d: %s; it is started again", r, why))
				l.kill(job.Epoch, r)
			}
		}
	}
}
