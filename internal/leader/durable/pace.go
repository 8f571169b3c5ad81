package durable

import (
	"fmt"
	"math"
	"time"

	"github.com/replicad/replicad/replica"
)

const (
	autoLeast = 2 * time.Minute
	autoMost  = 30 * time.Minute
	autoPrior = 24 * time.Hour // a job of which nothing is known yet is taken to have a fault a day
)

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

// Interval is how much time is to lie between two writes that take cost each, where faults lie so far apart: Young's interval, as Daly refined
// it ("A higher order estimate of the optimum checkpoint interval for restart dumps", 2006), within what people expect of a last resort.
func Interval(cost, between time.Duration) time.Duration {
	d, m := max(cost, 0).Seconds(), between.Seconds()
	best := m
	if d < 2*m {
		x := d / (2 * m)
		best = math.Sqrt(2*d*m)*(1+math.Sqrt(x)/3+x/9) - d
	}
	return min(max(time.Duration(best*float64(time.Second)).Round(time.Second), autoLeast), autoMost)
}

// interval is how much time lies between writes of a job; 0: their number of steps counts.
func (p *pace) interval(now time.Duration, o replica.Options) time.Duration {
	if o.DurableEvery == replica.DurableAuto {
		return Interval(p.cost, p.between(now))
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
