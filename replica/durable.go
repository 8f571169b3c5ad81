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
	MinDurableSeconds uint64 = 1
	MaxDurableSeconds uint64 = 30 * 24 * 3600
)

// DurableTime is the DurableEvery of a write each so many seconds.
func DurableTime(seconds uint64) Step { return durableTime + Step(seconds) }

// DurableSteps is how many steps lie between durable generations; 0: their number does not count.
func (o Options) DurableSteps() Step {
	if o.DurableEvery >= durableTime {
		return 0
	}
	return o.DurableEvery
}

// DurableSeconds is how much time lies between durable generations, in seconds; 0: time does not count, or that is DurableAuto.
func (o Options) DurableSeconds() uint64 {
	if o.DurableEvery < durableTime || o.DurableEvery == DurableAuto {
		return 0
	}
	return uint64(o.DurableEvery - durableTime)
}

// CheckDurableEvery refuses what is none of these.
func CheckDurableEvery(every Step) error {
	s := Options{DurableEvery: every}.DurableSeconds()
	if every <= MaxDurableSteps || every == DurableAuto || every == DurableNever || s >= MinDurableSeconds && s <= MaxDurableSeconds {
		return nil
	}
	return fmt.Errorf("durable_every %d: want 0 to %d steps, %s to %s, or auto", every, MaxDurableSteps, secondsText(MinDurableSeconds), secondsText(MaxDurableSeconds))
}

// ParseDurableEvery reads "500" (steps), "15m", "1h30m", or "auto".
func ParseDurableEvery(text string) (Step, error) {
	if text == "auto" {
		return DurableAuto, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && Step(n) <= MaxDurableSteps {
		return Step(n), nil
	}
	s, ok := parseSeconds(text)
	if !ok || s < MinDurableSeconds || s > MaxDurableSeconds {
		return 0, fmt.Errorf("%q: want a number of steps up to %d, a time from %s to %s, or auto", text, MaxDurableSteps, secondsText(MinDurableSeconds), secondsText(MaxDurableSeconds))
	}
	return DurableTime(s), nil
}

// DurableText is a DurableEvery as people write it.
func DurableText(every Step) string {
	s := Options{DurableEvery: every}.DurableSeconds()
	switch {
	case every == DurableAuto:
		return "auto"
	case every == DurableNever:
		return "0"
	case s > 0:
		return secondsText(s)
	}
	return fmt.Sprint(every)
}

// units of a time as people write it, the longest first. Package time has them too, beside a clock, which this package must not have.
var units = []struct {
	name    string
	seconds uint64
}{{"h", 3600}, {"m", 60}, {"s", 1}}

// parseSeconds reads whole hours, minutes and seconds in this order: "90s", "1h30m".
func parseSeconds(text string) (seconds uint64, ok bool) {
	for _, u := range units {
		number, rest, found := strings.Cut(text, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			return 0, false
		}
		seconds, text, ok = seconds+n*u.seconds, rest, true
	}
	return seconds, ok && text == ""
}

// secondsText writes what parseSeconds reads.
func secondsText(seconds uint64) string {
	text := ""
	for _, u := range units {
		if n := seconds / u.seconds; n > 0 {
			text += fmt.Sprint(n, u.name)
			seconds -= n * u.seconds
		}
	}
	return text
}
