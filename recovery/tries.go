package recovery

import (
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// newestStep is the newest step that was ever committed, as far as this leader and those before it know: an older generation may have been resumed since.
func (kn *known) newestStep() uint64 {
	step := uint64(kn.committed)
	kn.clocks.each(clockRecovered, func(k replica.Clock, _ time.Duration) { step = max(step, k.Of) })
	return step
}

// recoveredClock is that of the recovery that began when the job's newest epoch was closed.
func (kn *known) recoveredClock() replica.Clock {
	return replica.Clock{Kind: clockRecovered, Epoch: kn.job.ClosedEpoch, Of: kn.newestStep()}
}

// recoveries are the times at which recoveries began since the committed step last rose, under whatever leader, the oldest first.
func (kn *known) recoveries() (began []time.Duration) {
	step := kn.newestStep()
	kn.clocks.each(clockRecovered, func(k replica.Clock, since time.Duration) {
		if k.Of == step {
			began = append(began, since)
		}
	})
	slices.Sort(began)
	return began
}
