package launchers

import (
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// late answers a launcher that was accepted for a job that has ended while no daemon was there to notify it.
func (p *Pool) late(l *launcher, now time.Time) {
	if known := p.owner.Known(l.hello.Joined); known != nil {
		p.accept(l, known.Record(), now)
		p.over(l)
		return
	}
	job := &replica.Job{ID: l.hello.Joined, Name: l.hello.Job}
	p.accept(l, job, now)
	p.finish(l, job, 1, fmt.Sprintf("job %v ended while this node's daemon was away, and nobody knows any more how: %q is another "+
		"job now, or none; the same command starts it again", job.ID, job.Name))
}

// over sends a launcher how its job ended, or is ending: 0 finished, 1 stopped for good, wire.ExitDoNotRequeue; wire.DoneStopped of one
// that may go on.
func (p *Pool) over(l *launcher) {
	known := p.owner.Known(l.job)
	if known == nil || !room.Over(known.Record()) {
		return
	}
	job := known.Record()
	reason := job.EndReason
	if stop := job.Stop; stop != nil {
		if reason = stop.Reason; !stop.End {
			p.finish(l, job, wire.DoneStopped, fmt.Sprintf("%s; step %d stays in memory for a while, and the same command goes on "+
				"with it", reason, job.Committed.Step))
			return
		}
		reason += fmt.Sprintf("; step %d is being written to the durable tier first", job.Committed.Step)
	}
	code := int32(1)
	switch {
	case recovery.HasFinished(job):
		code = 0
		p.Of(known).stopLeftovers(l)
	case strings.HasPrefix(reason, recovery.DoNotRequeue):
		code = wire.ExitDoNotRequeue
	}
	p.finish(l, job, code, reason)
}

// stopLeftovers ends the processes of a finished job that are no ranks of it: the launcher waits for all others to end by themselves. They
// have not attached, or are superseded.
func (v View) stopLeftovers(l *launcher) {
	for _, r := range l.starts.ranks() {
		rank, _ := v.job.Rank(r)
		if rank.Left || !rank.Alive && l.starts.of(r).attached { // or it has just ended: its status is its own
			continue
		}
		l.send(wire.MRunStop, v.job.Record().Epoch, wire.RunStop{Rank: r}.Append(nil))
	}
}

// finish has a launcher end, with a code and a text.
func (p *Pool) finish(l *launcher, job *replica.Job, code int32, text string) {
	l.done = true
	if known := p.owner.Known(job.ID); known != nil {
		p.Of(known).unkept(l)
	}
	l.send(wire.MRunDone, job.Epoch, wire.Refused{Code: code, Text: text}.Append(nil))
}

// unfit ends the launcher of a program that never got a rank, and never will. The job keeps its memory for the right program. A job that
// has committed nothing has nothing to keep, and ends.
func (v View) unfit(l *launcher, r replica.Rank, why string) {
	job := v.job.Record()
	if job.Position.Step <= job.Start() {
		v.endForGood(r, why)
		return
	}
	text := fmt.Sprintf("%s. Job %s is kept in memory at step %d: start it with the program that it was started with (its own "+
		"output, and the daemon's log, "+
		"say what differs), or end it (replicad job end %s)", why, job.Name, job.Position.Step, job.Name)
	v.pool.log.RankNote(job, r, "unfit", text)
	v.pool.finish(l, job, wire.ExitRefused, text)
}

// sixLines is what a program needs to be a rank, as its launcher prints it: a note is one line.
var sixLines = [...]string{
	"this program has no replicad session, so it is no rank of the job. It needs these lines (docs/pytorch.md has a whole program):",
	"    import replicad",
	"    with replicad.Session(model, optimizer) as session:",
	"        session.resume()",
	"        for step in session.steps(steps):",
	"            ...  # forward, backward",
	"            with session.step():",
	"                optimizer.step()",
}

// stranger ends the launcher of a program that ended well and never connected: started again it would only do the same.
func (v View) stranger(l *launcher, r replica.Rank) {
	job := v.job.Record()
	v.pool.log.StartFailed(job, r, 0, 1, 1)
	if !l.taught {
		l.taught = true
		for _, line := range sixLines {
			l.note(job.Epoch, line)
		}
	}
	v.unfit(l, r, fmt.Sprintf("rank %d's process ended with status 0 on node %s and never connected to the daemon: its program "+
		"makes no replicad session", r, v.pool.self))
}

// endForGood ends a job that starting again would only end the same way.
func (v View) endForGood(r replica.Rank, why string) {
	v.pool.owner.Send(control.EndRequest{Name: v.job.Record().Name, Reason: recovery.DoNotRequeue + why, Rank: r})
}

// survivors reports whether a rank of the job has a process, which would wait for those that have none.
func survivors(job *replica.Job) bool {
	for r, c := range job.Ranks {
		if c.Incarnation != 0 && !recovery.Vacated(job, replica.Rank(r)) {
			return true
		}
	}
	return false
}
