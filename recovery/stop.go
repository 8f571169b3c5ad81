package recovery

import (
	"cmp"
	"fmt"

	"github.com/replicad/replicad/replica"
)

// stopped has a job that was stopped end once nothing is left to wait for: it was to end, and what is committed is on disk; or nobody has
// gone on with it for as long as it stays in memory. A write that is under way is not cut short.
func (en *ending) stopped() {
	kn := en.known
	j, ends, kept := kn.job, notBefore(kn.began, kn.stageAt()+kn.bound(AwaitReturn), kn.t.Ack), kn.t.Abandoned > 0
	switch {
	case j.Stop.End && !kn.job.Undurable():
		en.outbox.propose(replica.EndJob{Job: kn.id, Reason: cmp.Or(j.Stop.Reason, "stopped")})
	case j.Stop.End && en.writesOver:
		en.outbox.propose(replica.EndJob{Job: kn.id, Reason: en.forgotten()})
	case !kept:
	case kn.now < ends:
		en.outbox.wakeAt(ends)
	case j.Writer != nil:
	default:
		en.outbox.propose(replica.EndJob{Job: kn.id, Reason: en.forgotten()})
	}
}

// forgotten is the reason of a stopped job that ends since nobody went on with it.
func (en *ending) forgotten() string {
	kn := en.known
	j := kn.job
	why := fmt.Sprintf("%s; nobody went on with it for %v (timing.abandoned)", j.Stop.Reason, kn.t.Abandoned)
	if j.Stop.End {
		why = j.Stop.Reason
	}
	if kn.job.Undurable() {
		why += fmt.Sprintf("; step %d could not be written to the durable tier, where the newest is step %d", j.Committed.Step, j.Durable.Step)
	}
	return why
}

// waitsForStop is what a stopped job waits for.
func (en *ending) waitsForStop() (out []waiting) {
	kn := en.known
	if kn.job.Undurable() {
		out = append(out, waiting{kind: AwaitKept, since: kn.stageAt(), until: never, what: fmt.Sprint(kn.job.Committed.Step)})
	}
	if !kn.job.Stop.End {
		out = append(out, waiting{kind: AwaitReturn, since: kn.stageAt(), until: never})
	}
	return out
}
