package durable

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// autoPrior: a job of which nothing is known yet is taken to have a fault a day.
const autoPrior = 24 * time.Hour

// pace is what was seen of a job, by whatever leader: it decides when writes are due by time.
type pace struct {
	clocks func() *recovery.Clocks
	is     recovery.Paced
}

// changed takes note of how the job's record changed.
func (p *pace) changed(now time.Duration, was, is *replica.Job) {
	p.is.Follow(now, p.clocks(), was, is)
}

// last is when a write last ended, or the job was first seen.
func (p *pace) last(now time.Duration) time.Duration { return p.is.Last(now, p.clocks()) }

// interval is how much time lies between writes of a job; 0: their number of steps counts.
func (p *pace) interval(now time.Duration, o replica.Options) time.Duration {
	if o.DurableEvery == replica.DurableAuto {
		seen, faults, cost := p.is.Seen(now, p.clocks())
		between := (autoPrior + seen) / time.Duration(1+faults) // two faults, as far as they were seen
		return time.Duration(replica.DurableInterval(cost.Seconds(), between.Seconds())) * time.Second
	}
	return time.Duration(o.DurableSeconds()) * time.Second
}

// text shows the working of an interval.
func (p *pace) text(now time.Duration, o replica.Options) string {
	if o.DurableEvery != replica.DurableAuto {
		if steps := o.DurableSteps(); steps > 0 {
			return fmt.Sprintf("every %d steps", steps)
		}
		return "every " + replica.DurableText(o.DurableEvery)
	}
	seen, faults, took := p.is.Seen(now, p.clocks())
	cost := "no write was seen yet"
	if took > 0 {
		cost = fmt.Sprintf("the newest took %v", took.Round(10*time.Millisecond))
	}
	return fmt.Sprintf("every %v (auto: %s, %d faults in %v)", p.interval(now, o), cost, faults, seen.Round(time.Second))
}
