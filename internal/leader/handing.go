package leader

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// handOut hands the nodes what the clocks of a job read, for the next leader: this one may be deposed at any time, and what the job has waited for
// so far is not to be waited for again.
func handOut(l *Leader, led *ledJob) {
	if led.job.Phase == replica.Ended {
		return
	}
	if readings, ok := led.handing.Look(l.now(), l.since, &led.recovery.Clocks); ok {
		l.toAll(led.job.ID, replica.Ledger{Job: led.job.ID, Era: l.view.Era, Term: l.term, Seq: uint64(l.now().Milliseconds()), Readings: readings})
	}
}

// age is how old a job is, by the clocks of those who have led it; 0: nobody knows, also where this host's clock is behind that of the one that made the
// job. Nothing of it has lasted longer.
func age(job *replica.Job) time.Duration {
	if job.Began == 0 {
		return 0
	}
	return max(time.Since(time.UnixMilli(int64(job.Began))), 0)
}
