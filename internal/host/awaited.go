package host

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// lookAtProgress takes a look at the processes here that the job waits for: how much of its memory each has in reach, which
// rises while it prefaults an arena or seals its first state, or how much of the plan's parts has come; and whether a signal has stopped it.
func (h *Host) lookAtProgress(lj *localJob) {
	h.lookAtStarts(lj)
	for _, lr := range lj.ranks {
		switch {
		case lj.job.Phase == replica.Open:
			lr.progress = 0 // hangs are told by the steps
		case lr.alive() && lj.job.Phase == replica.Planned && lr.loaded != lj.job.Epoch:
			lr.progress, lr.halted = lr.arena.Came()>>20, h.processes.Halted(lr.pid, lr.start)
		case lr.alive() && lj.awaitsProcesses() && (!lr.stopped() || lj.job.Phase == replica.Opening && lr.initial != lj.job.Epoch):
			lr.progress, lr.halted = h.processes.Mapped(lr.pid)>>20, h.processes.Halted(lr.pid, lr.start)
		default:
			lr.halted = false
		}
	}
}

// lookAtStarts takes a look at the processes that were started and have not attached: they have no words yet to tell anything by.
func (h *Host) lookAtStarts(lj *localJob) {
	for _, l := range h.launchers {
		if !l.accepted || l.hello.Job != lj.job.Name {
			continue
		}
		for _, r := range l.starts.ranks() {
			if p := l.starts.entry(r); !p.attached && p.pid != 0 {
				p.halted = h.processes.HaltedChild(int(p.pid), l.peer.PID())
			}
		}
	}
}

// awaitsProcesses tells whether the job waits for processes to attach or to come to rest.
func (lj *localJob) awaitsProcesses() bool {
	return lj.job.Phase == replica.Opening || lj.job.Phase == replica.Closed
}

// sayWhoIsAwaited tells launchers which of their processes the job waits for: after claim_timeout, and each time that has doubled.
func (h *Host) sayWhoIsAwaited(lj *localJob) {
	if !lj.awaitsProcesses() || lj.job.Growth != nil { // the processes of a growth started long ago: the leader says whom it waits for
		for _, l := range h.launchers {
			if l.job == lj.job.ID {
				l.starts.quiet()
			}
		}
		return
	}
	for _, l := range h.launchers {
		if !l.accepted || l.job != lj.job.ID {
			continue
		}
		for _, r := range l.starts.ranks() {
			since := l.starts.of(r).since
			text := h.whyAwaited(lj, l, r, &since)
			if waited := time.Since(since); text != "" && l.starts.say(r, waited, h.cfg.Timing.Claim) {
				l.note(lj.job.Epoch, fmt.Sprintf("rank %d: "+text, r, waited.Round(time.Second)))
			}
		}
	}
}

// saysHalted has a place for how long.
const saysHalted = "process %d is stopped by a signal (kill -CONT %d), and all ranks wait for it: %%v"

// howLong says how long a process may go on without a word.
func howLong(job *replica.Job, r replica.Rank, limit time.Duration) string {
	if !recovery.StartAwaited(job, r) {
		return "; a program without a replicad session never does (docs/pytorch.md)"
	}
	return fmt.Sprintf("; the job waits for it, and it is killed %v after its start (timing.start)", limit)
}

// whyAwaited says what a launcher's process has not done yet, with a place for how long; since is then since when. Empty: the job
// does not wait for it.
func (h *Host) whyAwaited(lj *localJob, l *launcher, r replica.Rank, since *time.Time) string {
	lr := lj.ranks[r]
	switch {
	case !l.starts.of(r).attached && (lr == nil || !lr.alive()):
		switch p := l.starts.of(r); {
		case p.halted:
			return fmt.Sprintf(saysHalted, p.pid, p.pid)
		case h.heardOf(lj, r) || p.pid == 0:
			return "" // it waits itself
		case p.mute:
			return fmt.Sprintf("process %d has run %%v and has not called resume() yet: it has not even connected to the daemon%s", p.pid, howLong(lj.job, r, h.cfg.Timing.Start))
		default:
			return fmt.Sprintf("process %d has run %%v and has not called resume() yet", p.pid)
		}
	case lr == nil || !lr.alive() || lr.stopped() || lj.job.Phase == replica.Opening && lr.initial == lj.job.Epoch:
		return ""
	case lr.halted:
		return fmt.Sprintf(saysHalted, lr.pid, lr.pid)
	case lr.loaded == 0:
		return fmt.Sprintf("process %d attached, and is not ready %%v after its start", lr.pid)
	}
	*since = lj.settleBy.Add(-lj.settleTime)
	if lr.ending > 0 {
		return fmt.Sprintf("process %d is on its way out, and has not ended %%v after the epoch was closed; its rank needs a new process", lr.pid)
	}
	return fmt.Sprintf("process %d has not called resume() again, %%v after the epoch was closed; the others wait for it", lr.pid)
}
