// Package pace has the limits of tests follow what the machine gives. Where a program waits for others that want the same cores, time counts less by so
// much: what a quiet machine does in a minute may take a busy one ten. Tests use it, and what drives a demo and chaos; nothing of the product does.
package pace

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// most bounds how much longer a limit becomes: what hangs ends a test at last.
const most = 10

// saysEvery is how often a test that waits says for what.
const saysEvery = 30 * time.Second

// Slowed is how many threads want a core now, of those that the kernel counts on this machine: 1 to 10. One that runs alone has 1.
func Slowed() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	return slowed(string(b), runtime.NumCPU())
}

// slowed reads a line of /proc/loadavg: the mean of the last minute, and how many want to run at this moment, count both.
func slowed(line string, cores int) float64 {
	f := strings.Fields(line)
	if len(f) < 4 {
		return 1
	}
	mean, _ := strconv.ParseFloat(f[0], 64) // 0 where it is none
	now, _, _ := strings.Cut(f[3], "/")
	running, _ := strconv.ParseFloat(now, 64)
	return min(max(1, max(mean, running)/float64(cores)), most)
}

// Of is a duration of a quiet machine, as long as it is on this one now.
func Of(d time.Duration) time.Duration { return time.Duration(float64(d) * Slowed()) }

// Limit is how long a test waits for one thing. It belongs to one goroutine.
type Limit struct {
	C <-chan time.Time // a second has passed: ask Over

	ticker            *time.Ticker
	began, last, said time.Time
	left              time.Duration
	what              string
}

// New is a limit of d, of a quiet machine, for what the text says; without a text Over says nothing. Stop ends it.
func New(d time.Duration, what string) *Limit {
	now, ticker := time.Now(), time.NewTicker(time.Second)
	return &Limit{C: ticker.C, ticker: ticker, began: now, last: now, said: now, left: d, what: what}
}

// Over tells whether the limit has passed. Each 30 s of a wait it says on stderr what is waited for.
func (l *Limit) Over() bool {
	now, by := time.Now(), Slowed()
	if text := l.pass(now, by); text != "" && l.what != "" {
		fmt.Fprint(os.Stderr, text)
	}
	return l.left <= 0
}

// pass is Over, of a moment.
func (l *Limit) pass(now time.Time, by float64) (text string) {
	l.left -= time.Duration(float64(now.Sub(l.last)) / by)
	l.last = now
	if now.Sub(l.said) >= saysEvery {
		l.said = now
		text = fmt.Sprintf("%v: waits for %s; a core has %.1f threads to run, and %v are left at that\n", now.Sub(l.began).Round(time.Second), l.what, by, time.Duration(float64(max(0, l.left))*by).Round(time.Second))
	}
	return text
}

// Waited is how long it has been.
func (l *Limit) Waited() time.Duration { return time.Since(l.began).Round(time.Second) }

// Stop ends it.
func (l *Limit) Stop() { l.ticker.Stop() }
