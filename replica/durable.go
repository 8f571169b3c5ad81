package replica

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Options.DurableEvery is a number of steps, DurableAuto, or a time as DurableTime has it.
const (
	DurableAuto Step = math.MaxUint32 // as often as the cost of a write and the faults of the job make worth while
	durableTime Step = 1 << 31        // and seconds

	// DurableNever is how a launcher says 0, which there is for whatever its daemon's configuration makes the default.
	DurableNever = durableTime

	MaxDurableSteps   Step   = 1 << 30
	MaxDurableSeconds uint64 = 30 * 24 * 3600
)

// durableUnits are those that a time may have, largest first, in seconds.
var durableUnits = []struct {
	name    string
	seconds uint64
}{{"h", 3600}, {"m", 60}, {"s", 1}}

// DurableTime is the DurableEvery of a write each so many seconds.
func DurableTime(seconds uint64) Step { return durableTime + Step(seconds) }

// DurableSteps is how many steps lie between durable generations; 0: their number does not count.
func (o Options) DurableSteps() Step {
	if o.DurableEvery >= durableTime {
		return 0
	}
	return o.DurableEvery
}

// DurableSeconds is how much time lies between durable generations; 0: time does not count, or that is DurableAuto.
func (o Options) DurableSeconds() uint64 {
	if o.DurableEvery < durableTime || o.DurableEvery == DurableAuto {
		return 0
	}
	return uint64(o.DurableEvery - durableTime)
}

// CheckDurableEvery refuses what is none of these.
func CheckDurableEvery(every Step) error {
	if every <= MaxDurableSteps || every == DurableAuto || every >= DurableNever && every <= DurableTime(MaxDurableSeconds) {
		return nil
	}
	return fmt.Errorf("durable_every %d: want 0 to %d steps, 1s to %s, or auto", every, MaxDurableSteps, DurableText(DurableTime(MaxDurableSeconds)))
}

// ParseDurableEvery reads "500" (steps), "15m" or "1h30m", or "auto".
func ParseDurableEvery(text string) (Step, error) {
	if text == "auto" {
		return DurableAuto, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && Step(n) <= MaxDurableSteps {
		return Step(n), nil
	}
	if seconds, ok := parseSeconds(text); ok && seconds > 0 && seconds <= MaxDurableSeconds {
		return DurableTime(seconds), nil
	}
	return 0, fmt.Errorf("%q: want a number of steps up to %d, a time from 1s to %s, or auto", text, MaxDurableSteps, DurableText(DurableTime(MaxDurableSeconds)))
}

// parseSeconds reads a time in hours, minutes and seconds, each at most once and in that order.
func parseSeconds(text string) (seconds uint64, ok bool) {
	for _, u := range durableUnits {
		digits, rest, found := strings.Cut(text, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil {
			return 0, false
		}
		seconds, text, ok = seconds+n*u.seconds, rest, true
	}
	return seconds, ok && text == ""
}

// DurableText is a DurableEvery as people write it.
func DurableText(every Step) (text string) {
	seconds := Options{DurableEvery: every}.DurableSeconds()
	switch {
	case every == DurableAuto:
		return "auto"
	case every == DurableNever:
		return "0"
	case seconds == 0:
		return strconv.FormatUint(uint64(every), 10)
	}
	for _, u := range durableUnits {
		if n := seconds / u.seconds; n > 0 {
			text += fmt.Sprint(n) + u.name
		}
		seconds %= u.seconds
	}
	return text
}

// The seconds that DurableAuto leaves between two writes lie within what people expect of a last resort.
const (
	DurableAutoLeast = 2 * 60
	DurableAutoMost  = 30 * 60
)

// DurableInterval is how many seconds DurableAuto leaves between two writes that take cost each, where faults lie between apart: Young's interval, as
// Daly refined it ("A higher order estimate of the optimum checkpoint interval for restart dumps", 2006).
func DurableInterval(cost, between float64) float64 {
	cost = max(cost, 0)
	best := between
	if cost < 2*between {
		x := cost / (2 * between)
		best = math.Sqrt(2*cost*between)*(1+math.Sqrt(x)/3+x/9) - cost
	}
	return min(max(math.Round(best), DurableAutoLeast), DurableAutoMost)
}
