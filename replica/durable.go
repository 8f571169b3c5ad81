package replica

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Options.DurableEvery is a number of steps, DurableAuto, or a time as DurableTime has it.
const (
	DurableAuto Step = math.MaxUint32 // as often as the cost of a write and the faults of the job make worth while
	durableTime Step = 1 << 31        // and seconds

	// DurableNever is how a launcher says 0, which there is for whatever its daemon's configuration makes the default.
	DurableNever = durableTime

	MaxDurableSteps Step          = 1 << 30
	MinDurableTime  time.Duration = time.Second
	MaxDurableTime  time.Duration = 30 * 24 * time.Hour
)

// DurableTime is the DurableEvery of a write each so much time.
func DurableTime(d time.Duration) Step { return durableTime + Step(d/time.Second) }

// DurableSteps is how many steps lie between durable generations; 0: their number does not count.
func (o Options) DurableSteps() Step {
	if o.DurableEvery >= durableTime {
		return 0
	}
	return o.DurableEvery
}

// DurableInterval is how much time lies between durable generations; 0: time does not count, or that is DurableAuto.
func (o Options) DurableInterval() time.Duration {
	if o.DurableEvery < durableTime || o.DurableEvery == DurableAuto {
		return 0
	}
	return time.Duration(o.DurableEvery-durableTime) * time.Second
}

// CheckDurableEvery refuses what is none of these.
func CheckDurableEvery(every Step) error {
	o := Options{DurableEvery: every}
	switch d := o.DurableInterval(); {
	case every <= MaxDurableSteps, every == DurableAuto, every == DurableNever, d >= MinDurableTime && d <= MaxDurableTime:
		return nil
	}
	return fmt.Errorf("durable_every %d: want 0 to %d steps, %v to %v, or auto", every, MaxDurableSteps, MinDurableTime, MaxDurableTime)
}

// ParseDurableEvery reads "500" (steps), "15m", or "auto".
func ParseDurableEvery(text string) (Step, error) {
	if text == "auto" {
		return DurableAuto, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && Step(n) <= MaxDurableSteps {
		return Step(n), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < MinDurableTime || d > MaxDurableTime {
		return 0, fmt.Errorf("%q: want a number of steps up to %d, a time from %v to %v, or auto", text, MaxDurableSteps, MinDurableTime, MaxDurableTime)
	}
	return DurableTime(d), nil
}

// DurableText is a DurableEvery as people write it.
func DurableText(every Step) string {
	o := Options{DurableEvery: every}
	switch {
	case every == DurableAuto:
		return "auto"
	case every == DurableNever:
		return "0"
	case o.DurableInterval() > 0:
		return o.DurableInterval().String()
	}
	return fmt.Sprint(every)
}
