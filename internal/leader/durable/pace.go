package durable

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/replica"
)

// autoPrior: a job of which nothing is known yet is taken to have a fault a day.
const autoPrior = 24 * time.Hour

// pace is what a room has seen of a job: it decides when writes are due by time.
type pace struct {
	began  time.Duration // when the job was first seen
	last   time.Duration // when a write last ended, or the job was first seen: this leader knows of none before
	faults int           // epochs that closed with a fault
	cost   time.Duration // of the newest write; zero: none was seen
	since  time.Duration // when the write under way began
}

// changed takes note of how the job's record changed.
func (p *pace) changed(now time.Duration, was, is *replica.Job) {
	switch {
	case was == nil:
		p.began, p.last = now, now
	case is.ClosedEpoch > was.ClosedEpoch && len(is.Faults) > 0 && is.Stop == nil:
		p.faults++
	}
	switch {
	case is.Writer == nil && was != nil && was.Writer != nil && is.Durable == was.Writer.Generation:
		p.cost, p.last = now-p.since, now
	case is.Writer != nil && (was == nil || was.Writer == nil || was.Writer.Generation != is.Writer.Generation):
		p.since = now
	}
}

// between is the time that lies between two faults of the job, as far as it was seen.
func (p *pace) between(now time.Duration) time.Duration {
	return (autoPrior + now - p.began) / time.Duration(1+p.faults)
}

// interval is how much time lies between writes of a job; 0: their number of steps counts.
func (p *pace) interval(now time.Duration, o replica.Options) time.Duration {
	if o.DurableEvery == replica.DurableAuto {
		return time.Duration(replica.DurableInterval(p.cost.Seconds(), p.between(now).Seconds())) * time.Second
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
	cost := "no write was seen yet"
	if p.cost > 0 {
		cost = fmt.Sprintf("the newest took %v", p.cost.Round(10*time.Millisecond))
	}
	return fmt.Sprintf("every %v (auto: %s, %d faults in %v)", p.interval(now, o), cost, p.faults, (now - p.began).Round(time.Second))
}
