package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// handOut hands the nodes what the clocks of a job read, for the next leader: this one may be deposed at any time, and what the job has waited for
// so far is not to be waited for again.
func handOut(l *Leader, led *ledJob) {
	if led.job.Phase == replica.Ended {
		return
	}
	if readings, ok := led.handing.Look(l.now(), l.since, led.recovery.Clocks); ok {
		l.links.all(led.job.ID, replica.Ledger{Job: led.job.ID, Era: l.view.Era, Term: l.term, Seq: uint64(l.now().Milliseconds()), Readings: readings})
	}
}

// kept takes a node's first word of a job's clocks. Of a ledger that no leader of this history can have handed out yet only what the node knows by itself
// counts: as the newest one it would be believed instead of all others. The node's name is said once.
func kept(ctx context.Context, l *Leader, led *ledJob, from replica.NodeName, m replica.Ledger) {
	if m.Compare(replica.Ledger{Era: l.view.Era, Term: l.term, Seq: uint64(l.now().Milliseconds())}) > 0 {
		if about := "clocks of " + string(from); led.notes[about] == "" {
			led.notes[about] = fmt.Sprintf("node %s keeps clocks of era %d, term %d, and this leader is of era %d, term %d: they are of another history and count for nothing; what this leader hands out takes their place",
				from, m.Era, m.Term, l.view.Era, l.term)
			l.log.Note2(led.job, "clocks", led.notes[about])
		}
		m = replica.Ledger{Job: m.Job, Own: m.Own}
	}
	l.recoverStep(ctx, m.Job, led, recovery.Kept{From: from, Ledger: m, Most: age(led.job)})
}

// age is how old a job is, by the clocks of those who have led it; 0: nobody knows, also where this host's clock is behind that of the one that made the
// job. Nothing of it has lasted longer.
func age(job *replica.Job) time.Duration {
	if job.Began == 0 {
		return 0
	}
	return max(time.Since(time.UnixMilli(int64(job.Began))), 0)
}
