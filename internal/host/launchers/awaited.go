package launchers

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Poll polls the processes that were started and have not attached: they have no words yet to know anything by.
func (v View) Poll() {
	name := v.job.Record().Name
	for _, l := range v.pool.all {
		if !l.accepted || l.hello.Job != name {
			continue
		}
		for _, r := range l.starts.ranks() {
			if p := l.starts.entry(r); !p.attached && p.pid != 0 {
				p.halted = v.pool.owner.HaltedChild(int(p.pid), l.peer.PID())
			}
		}
	}
}

// Await notifies launchers which of their processes the job waits for: after claim_timeout, and each time that has doubled.
func (v View) Await(now time.Time) {
	p, job := v.pool, v.job.Record()
	// The processes of a growth started long ago: the leader names those that it waits for.
	if !room.AwaitsProcesses(job) || job.Growth != nil {
		for _, l := range p.all {
			if l.job == job.ID {
				l.starts.quiet()
			}
		}
		return
	}
	for _, l := range p.all {
		if !l.accepted || l.job != job.ID {
			continue
		}
		for _, r := range l.starts.ranks() {
			since := l.starts.of(r).since
			text := v.whyAwaited(l, r, &since)
			if waited := now.Sub(since); text != "" && l.starts.notify(r, waited, p.cfg.Timing.Claim) {
				l.note(job.Epoch, fmt.Sprintf("rank %d: "+text, r, waited.Round(time.Second)))
			}
		}
	}
}

// haltedText has a place for how long.
const haltedText = "process %d is stopped by a signal (kill -CONT %d), and all ranks wait for it: %%v"

// howLong is how long a process may go on unheard.
func howLong(job *replica.Job, r replica.Rank, limit time.Duration) string {
	if !recovery.StartAwaited(job, r) {
		return "; a program without a replicad session never does (docs/pytorch.md)"
	}
	return fmt.Sprintf("; the job waits for it, and it is killed %v after its start (timing.start)", limit)
}

// whyAwaited is what a launcher's process has not done yet, with a place for how long; since is then since when. Empty: the job
// does not wait for it.
func (v View) whyAwaited(l *launcher, r replica.Rank, since *time.Time) string {
	job := v.job.Record()
	rank, _ := v.job.Rank(r)
	p := l.starts.of(r)
	switch {
	case !p.attached && !rank.Alive:
		return v.whyStarting(p, r)
	case !rank.Alive || rank.Stopped || job.Phase == replica.Opening && rank.Initial == job.Epoch:
		return ""
	case rank.Halted:
		return fmt.Sprintf(haltedText, rank.PID, rank.PID)
	case rank.Loaded == 0:
		return fmt.Sprintf("process %d attached, and is not ready %%v after its start", rank.PID)
	}
	*since = v.job.ClosedAt()
	if rank.Ending {
		return fmt.Sprintf("process %d is on its way out, and has not ended %%v after the epoch was closed; its rank needs a new process",
			rank.PID)
	}
	return fmt.Sprintf("process %d has not called resume() again, %%v after the epoch was closed; the others wait for it", rank.PID)
}

// whyStarting is likewise of a process that has not attached.
func (v View) whyStarting(p start, r replica.Rank) string {
	job := v.job.Record()
	switch {
	case p.halted:
		return fmt.Sprintf(haltedText, p.pid, p.pid)
	case v.pool.owner.Expects(job, r) || p.pid == 0:
		return "" // it waits itself
	case p.mute:
		return fmt.Sprintf("process %d has run %%v and has not called resume() yet: it has not even connected to the daemon%s", p.pid,
			howLong(job, r, v.pool.cfg.Timing.Start))
	}
	return fmt.Sprintf("process %d has run %%v and has not called resume() yet", p.pid)
}
