package recovery

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// stopped has a job that was stopped end once nothing is left to wait for: it was to end, and what is committed is on disk; or nobody has
// gone on with it for as long as it stays in memory. A write that is under way is not cut short.
func (l *Leader) stopped() {
	j, ends, kept := l.known.job, notBefore(l.known.began, l.known.stageAt()+l.known.bound(AwaitReturn), l.known.t.Ack), l.known.t.Abandoned > 0
	switch {
	case j.Stop.End && !l.known.job.Undurable():
		l.outbox.propose(replica.EndJob{Job: l.known.id, Reason: cmp.Or(j.Stop.Reason, "stopped")})
	case j.Stop.End && l.writesNoMore:
		l.outbox.propose(replica.EndJob{Job: l.known.id, Reason: l.forgotten()})
	case !kept:
	case l.known.now < ends:
		l.outbox.wakeAt(ends)
	case j.Writer != nil:
	default:
		l.outbox.propose(replica.EndJob{Job: l.known.id, Reason: l.forgotten()})
	}
}

// forgotten is the reason of a stopped job that ends since nobody went on with it.
func (l *Leader) forgotten() string {
	j := l.known.job
	why := fmt.Sprintf("%s; nobody went on with it for %v (timing.abandoned)", j.Stop.Reason, l.known.t.Abandoned)
	if j.Stop.End {
		why = j.Stop.Reason
	}
	if l.known.job.Undurable() {
		why += fmt.Sprintf("; step %d could not be written to the durable tier, where the newest is step %d", j.Committed.Step, j.Durable.Step)
	}
	return why
}

// waitsForStop is what a stopped job waits for.
func (l *Leader) waitsForStop() (out []waiting) {
	if l.known.job.Undurable() {
		out = append(out, waiting{kind: AwaitKept, since: l.known.stageAt(), until: never, what: fmt.Sprint(l.known.job.Committed.Step)})
	}
	if !l.known.job.Stop.End {
		out = append(out, waiting{kind: AwaitReturn, since: l.known.stageAt(), until: never})
	}
	return out
}

// Unattended tells whether nobody works at the job: no launcher of it is there and none of its processes lives, by the word of every node that
// has a link.
func (l *Leader) Unattended() bool {
	if l.known.job == nil {
		return false
	}
	for n := range l.known.up {
		if _, ok := l.input().current(n); !ok {
			return false
		}
	}
	return l.unattended()
}

// unattended is the same by the word of the nodes that have said something.
func (l *Leader) unattended() bool {
	for n := range l.known.nodes {
		rep, ok := l.input().current(n)
		if ok && (rep.Launchers > 0 || rep.Offers > 0 || len(rep.Starting) > 0 || slices.ContainsFunc(rep.Ranks, func(r replica.RankReport) bool { return r.Alive })) {
			return false
		}
	}
	return true
}
