package chaos

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"
)

// load is what one core is shared by, besides what belongs here.
const load = 20

// beginBusy takes every core: each has twenty processes that do nothing else. Commits get rarer then, and there must be some; who leads should
// stay, and how often that changed is said.
func (r *runner) beginBusy(f Fault) (act, error) {
	n := load * runtime.NumCPU()
	text := fmt.Sprintf("%s: %d processes that never rest for %.1f s", busy, n, f.For.Seconds())
	before := r.judge.counts()
	var all []*exec.Cmd
	end := func() error {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait() // killed
		}
		after := r.judge.counts()
		r.rec.say("busy for %.1f s: %d commits, the longest wait for one %.1f s; %d elections", f.For.Seconds(), after.commits-before.commits, r.judge.longest(before.at).Seconds(), after.elections-before.elections)
		if after.commits == before.commits {
			r.judge.report(violation{standstill, fmt.Sprintf("no commit in %.1f s with %d busy processes", f.For.Seconds(), n)})
		}
		return nil
	}
	for range n {
		c := exec.Command("sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			return act{text: text}, errors.Join(err, end())
		}
		all = append(all, c)
	}
	return act{text, end}, nil
}

// tally is what the daemons' logs say until now.
type tally struct {
	commits, elections int
	at                 time.Time
}

func (g *judge) counts() tally {
	g.mu.Lock()
	defer g.mu.Unlock()
	return tally{len(g.times), g.elections, time.Now()}
}

// longest is the longest time without a commit since then.
func (g *judge) longest(since time.Time) (gap time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	last := since
	for _, t := range g.times {
		if t.After(since) {
			gap, last = max(gap, t.Sub(last)), t
		}
	}
	return max(gap, time.Since(last))
}
