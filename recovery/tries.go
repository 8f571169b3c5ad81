package recovery

import (
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// newestStep is the newest step that was ever committed, as far as this leader and those before it know: an older generation may have been resumed since.
func newestStep(l *Leader) uint64 {
	step := uint64(l.committed)
	l.Clocks.each(clockRecovered, func(k replica.Clock, _ time.Duration) { step = max(step, k.Of) })
	return step
}

// recoveredClock is that of the recovery that began when the job's newest epoch was closed.
func recoveredClock(l *Leader) replica.Clock {
	return replica.Clock{Kind: clockRecovered, Epoch: l.closing.epoch, Of: newestStep(l)}
}

// recoveries are the times at which recoveries began since the committed step last rose, under whatever leader, the oldest first.
func recoveries(l *Leader) (began []time.Duration) {
	step := newestStep(l)
	l.Clocks.each(clockRecovered, func(k replica.Clock, since time.Duration) {
		if k.Of == step {
			began = append(began, since)
		}
	})
	slices.Sort(began)
	return began
}
