package recovery

import (
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

func TestPulse(t *testing.T) {
	limits := HangLimits{Factor: 10, Least: 5 * time.Second, First: time.Minute}
	at := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	steps := func(p *Pulse, first replica.Step, n int, from, span float64) (end float64) {
		for i := range n {
			p.Look(at(from+float64(i)*span), replica.PackWord(3, first+replica.Step(i), replica.Idle))
		}
		return from + float64(n-1)*span
	}
	for _, c := range []struct {
		what  string
		run   func(p *Pulse) (last float64)
		limit float64 // seconds after last
	}{
		{"before the first step", func(p *Pulse) float64 { p.Look(at(0), replica.PackWord(3, 7, replica.Idle)); return 0 }, 60},
		{"one step is no measure", func(p *Pulse) float64 { return steps(p, 7, 3, 0, 0.1) }, 60},
		{"short steps", func(p *Pulse) float64 { return steps(p, 7, 5, 0, 0.1) }, 5},
		{"long steps", func(p *Pulse) float64 { return steps(p, 7, 5, 0, 2) }, 20},
		{"long ago", func(p *Pulse) float64 { return steps(p, 12, 9, steps(p, 7, 5, 0, 30)+0.1, 0.1) }, 5},
		{"in the window", func(p *Pulse) float64 {
			end := steps(p, 7, 5, 0, 0.1)
			p.Look(at(end+0.1), replica.PackWord(3, 12, replica.Updating))
			return end + 0.1
		}, 5},
		{"in another epoch", func(p *Pulse) float64 {
			end := steps(p, 7, 5, 0, 0.1)
			p.Look(at(end+1), replica.PackWord(4, 11, replica.Idle))
			return end + 1
		}, 60},
		{"after a pause", func(p *Pulse) float64 {
			end := steps(p, 7, 5, 0, 0.1)
			p.Pause(at(end), at(100))
			p.Pause(at(end+40), 0)
			return end + 40
		}, 5},
		{"after a pause that was not ended", func(p *Pulse) float64 {
			end := steps(p, 7, 5, 0, 0.1)
			p.Pause(at(end), at(100))
			return end
		}, 100},
	} {
		var p Pulse
		last := c.run(&p)
		if p.Hung(at(last+c.limit-0.01), limits) || !p.Hung(at(last+c.limit+0.01), limits) {
			t.Errorf("%s: %+v: hung not at %v s", c.what, p, c.limit)
		}
	}
	if new(Pulse).Hung(at(1e9), limits) {
		t.Error("hung without having been looked at")
	}
}

// The steps behind a pause may be seen before the word that ends it: how long the pause took is no step's time.
func TestAPauseIsNoStep(t *testing.T) {
	limits := HangLimits{Factor: 10, Least: time.Second, First: time.Minute}
	var p Pulse
	at := func(now time.Duration, step replica.Step) { p.Look(now, replica.PackWord(1, step, replica.Idle)) }
	for s := range replica.Step(5) {
		at(time.Duration(s)*5*time.Millisecond, s)
	}
	p.Pause(25*time.Millisecond, time.Minute)
	at(3*time.Second, 5)
	at(3005*time.Millisecond, 6)
	p.Pause(3006*time.Millisecond, 0)
	if p.Hung(4*time.Second, limits) || !p.Hung(5*time.Second, limits) {
		t.Errorf("the longest step is taken for one of %v", p.Pace())
	}
}
