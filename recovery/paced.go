package recovery

import (
	"time"

	"github.com/replicad/replicad/replica"
)

// Paced follows the durable writes and the faults of a job, which are measured by whoever leads and belong to the job.
type Paced struct{ job *replica.Job }

// Follow takes note of how the job's record changed.
func (p *Paced) Follow(now time.Duration, c *Clocks, was, is *replica.Job) {
	p.job = is
	c.Since(now, beganClock)
	if was != nil && is.ClosedEpoch > was.ClosedEpoch && len(is.Faults) > 0 && is.Stop == nil {
		c.Set(faultsMeasure, c.Measure(faultsMeasure)+1)
	}
	switch {
	case is.Writer == nil && was != nil && was.Writer != nil && is.Durable == was.Writer.Generation:
		c.Set(costMeasure, uint64(max((now-c.Since(now, writingClock(was))).Milliseconds(), 1)))
		c.EndAll(func(k replica.Clock) bool {
			return k.Kind == clockWriting || k.Kind == clockWrote && k != wroteClock(is)
		})
		c.Since(now, wroteClock(is))
	case is.Writer != nil:
		c.Since(now, writingClock(is))
	}
}

var (
	beganClock    = replica.Clock{Kind: clockBegan}
	faultsMeasure = replica.Clock{Kind: measureFaults}
	costMeasure   = replica.Clock{Kind: measureCost}
)

func writingClock(job *replica.Job) replica.Clock {
	return replica.Clock{Kind: clockWriting, Of: job.Writer.Number}
}

func wroteClock(job *replica.Job) replica.Clock {
	return replica.Clock{Kind: clockWrote, Of: uint64(job.Durable.Step)}
}

// Last is when a write last ended, or the job was first seen.
func (p *Paced) Last(now time.Duration, c *Clocks) time.Duration {
	if p.job == nil {
		return now
	}
	if at, ok := c.At(wroteClock(p.job)); ok {
		return at
	}
	return c.Since(now, beganClock)
}

// Seen is for how long the job was seen, how many of its epochs were closed with a fault meanwhile, and what its newest write took; zero: none was seen.
func (p *Paced) Seen(now time.Duration, c *Clocks) (long time.Duration, faults int, cost time.Duration) {
	return now - c.Since(now, beganClock), int(min(c.Measure(faultsMeasure), 1<<20)), millis(c.Measure(costMeasure))
}
