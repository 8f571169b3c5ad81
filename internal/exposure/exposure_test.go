package exposure

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcript in testdata now says back into it")

// job is one that trains, and is looked at five times a second. Times are its own.
type job struct {
	w       Watch
	zero    time.Time
	now     time.Duration
	step    time.Duration // that one takes
	every   replica.Step
	commits func(now time.Duration, live replica.Step) replica.Step // the newest commit
	leader  func(now time.Duration) time.Duration                   // for how long none is heard
	tells   func(now time.Duration) bool                            // the leader has launchers print something
	seen    Seen
	out     []string
}

func (j *job) runs(until time.Duration) {
	for ; j.now < until; j.now += 200 * time.Millisecond {
		live := replica.Step(j.now / j.step)
		j.seen = Seen{Open: true, Epoch: 1, Live: live, Committed: max(j.seen.Committed, j.commits(j.now, live)), Cadence: j.every, Remedy: "2 of the 3 voters must run"}
		if j.leader != nil {
			j.seen.Leader = j.leader(j.now)
		}
		if j.tells != nil && j.tells(j.now) {
			j.w.Told(j.zero.Add(j.now))
		}
		if line := j.w.Look(j.zero.Add(j.now), j.seen); line != "" {
			j.out = append(j.out, fmt.Sprintf("%8v %s", j.now, line))
		}
	}
}

// behind commits what was live so long ago, at once.
func behind(lag, step time.Duration) func(time.Duration, replica.Step) replica.Step {
	return func(now time.Duration, _ replica.Step) replica.Step { return replica.Step(max(now-lag, 0) / step) }
}

// paused is behind, without commits from one time to another.
func paused(lag, step, from, to time.Duration) func(time.Duration, replica.Step) replica.Step {
	all := behind(lag, step)
	return func(now time.Duration, live replica.Step) replica.Step {
		if now >= from && now < to {
			now = from
		}
		return all(now, live)
	}
}

// each commits every so often what was live as it began.
func eachTakes(takes, step time.Duration) func(time.Duration, replica.Step) replica.Step {
	return func(now time.Duration, _ replica.Step) replica.Step {
		return replica.Step(max(now/takes-1, 0) * takes / step)
	}
}

func gone(from, to time.Duration) func(time.Duration) time.Duration {
	return func(now time.Duration) time.Duration {
		if now < from || now >= to {
			return 0
		}
		return now - from
	}
}

// TestTranscript: what is said of jobs that get on in some way, and when.
func TestTranscript(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	var b strings.Builder
	for _, x := range []struct {
		what  string
		job   job
		until time.Duration
	}{
		{"healthy", job{step: 300 * ms, every: 1, commits: behind(200*ms, 300*ms)}, 300 * s},
		{"healthy, steps of milliseconds: always some behind", job{step: 2 * ms, every: 1, commits: behind(100*ms, 2*ms)}, 60 * s},
		{"healthy, a cadence of 500 steps, which take 50 s", job{step: 100 * ms, every: 500, commits: func(_ time.Duration, live replica.Step) replica.Step { return live / 500 * 500 }}, 600 * s},
		{"no leader for 20 s", job{step: 300 * ms, every: 1, commits: paused(200*ms, 300*ms, 60*s, 80*s), leader: gone(60*s, 80*s)}, 200 * s},
		{"no leader for 10 minutes", job{step: 300 * ms, every: 1, commits: paused(200*ms, 300*ms, 60*s, 660*s), leader: gone(60*s, 660*s)}, 1500 * s},
		{"no commit, the leader says why at 10 s and at 20 s", job{step: 300 * ms, every: 1, commits: paused(200*ms, 300*ms, 60*s, 90*s), tells: func(now time.Duration) bool { return now == 70*s || now == 80*s }}, 200 * s},
		{"no commit, a leader each 7 s says nothing", job{step: 300 * ms, every: 1, commits: paused(200*ms, 300*ms, 60*s, 135*s), leader: func(now time.Duration) time.Duration {
			if now < 60*s || now > 135*s {
				return 0
			}
			return max(now%(7*s)-6*s, 0)
		}}, 300 * s},
		{"no commit, one leader that says nothing", job{step: 300 * ms, every: 1, commits: paused(200*ms, 300*ms, 60*s, 120*s)}, 300 * s},
		{"a commit takes 18 s", job{step: 500 * ms, every: 1, commits: eachTakes(18*s, 500*ms), tells: func(now time.Duration) bool { return now == 10*s || now == 20*s }}, 400 * s},
		{"a commit takes 18 s, and later 1 s", job{step: 500 * ms, every: 1, commits: func(now time.Duration, live replica.Step) replica.Step {
			return eachTakes(map[bool]time.Duration{true: 18 * s, false: s}[now < 200*s], 500*ms)(now, live)
		}, tells: func(now time.Duration) bool { return now == 10*s || now == 20*s }}, 400 * s},
		{"a cadence of 100 steps of 1 s, each fourth is committed", job{step: s, every: 100, commits: func(_ time.Duration, live replica.Step) replica.Step { return live / 400 * 400 }, tells: func(now time.Duration) bool { return true }}, 6000 * s},
		{"one commit takes 18 s", job{step: 500 * ms, every: 1, commits: paused(400*ms, 500*ms, 60*s, 74*s), tells: func(now time.Duration) bool { return now == 70*s }}, 200 * s},
	} {
		x.job.zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		x.job.runs(x.until)
		fmt.Fprintf(&b, "%s\n%s\n\n", x.what, strings.Join(append([]string{"----"}, x.job.out...), "\n"))
	}
	const file = "testdata/said.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("it says now\n%s", b.String())
	}
}
