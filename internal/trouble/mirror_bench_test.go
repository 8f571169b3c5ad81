//go:build cgo

package trouble_test

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkMirroredSteps measures a job of one rank whose whole part goes to a mirror: how long after its seal a step is committed, how
// many steps lie between two commits, and the time between them beside that of a push. TROUBLE_STATE_MB is the state in MiB, 256 where it
// is not set, TROUBLE_PACE the time of a step in ms, 100 where it is not set.
func BenchmarkMirroredSteps(t *testing.B) {
	number := func(name, otherwise string) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), otherwise))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	mib, pace := number("TROUBLE_STATE_MB", "256"), number("TROUBLE_PACE", "100")
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for _, n := range c.nodes {
		n.cfg.Log.Level = "debug"
		n.write()
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	steps, world := number("TROUBLE_STEPS", "150"), number("TROUBLE_WORLD", "2")
	spec := rankSpec{Floats: mib << 18, Pace: time.Duration(pace) * time.Millisecond, Patience: 10 * patience, Steps: steps}
	var launchers []*process
	for i := range world {
		flags := []string{"--ranks", strconv.Itoa(i), "--chunk-mb", "4", "--groups", "0,1"[:2*world-1]}
		launchers = append(launchers, c.nodes[i].run("large", world, spec, append(flags, strings.Fields(os.Getenv("TROUBLE_RUN_FLAGS"))...)...))
	}
	for _, l := range launchers {
		l.awaitLong(10*patience, "left", nil)
	}
	daemon := c.nodes[0].daemon
	var commits []float64
	var gaps, lags, pushes []float64
	var last time.Time
	at := func(l line) time.Time {
		when, err := time.Parse(time.RFC3339Nano, l.fields["time"].(string))
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	_, _, _ = daemon.scan(0, func(l line) bool {
		switch {
		case l.is("commit_seen", nil):
			step := l.fields["step"].(float64)
			if len(commits) > 0 && step > commits[len(commits)-1] {
				gaps = append(gaps, at(l).Sub(last).Seconds()*1e3)
			}
			last = at(l)
			commits = append(commits, step)
			lags = append(lags, l.fields["lag_us"].(float64)/1e3)
		case l.is("pushed", fields{"part": "group 0"}) && l.fields["error"] == nil:
			if took, ok := l.fields["took_us"].(float64); ok {
				pushes = append(pushes, took/1e3)
			}
		}
		return false
	})
	t.Logf("commits: %v", commits)
	t.Logf("gaps: %.0f", gaps)
	t.Logf("lags: %.0f", lags)
	t.Logf("pushes: %.0f", pushes)
	median := func(v []float64) float64 {
		if len(v) == 0 {
			return 0
		}
		v = slices.Sorted(slices.Values(v))
		return v[len(v)/2]
	}
	t.ReportMetric(0, "ns/op")
	t.ReportMetric(median(lags), "ms/lag")
	t.ReportMetric(median(gaps), "ms/commit-gap")
	t.ReportMetric(median(pushes), "ms/push")
	t.ReportMetric(float64(steps)/float64(max(len(gaps)+1, 1)), "steps/commit")
	if os.Getenv("TROUBLE_LOG") != "" {
		if err := os.WriteFile(os.Getenv("TROUBLE_LOG"), []byte(daemon.output()+"----\n"+c.nodes[1].daemon.output()+"----\n"+launchers[0].output()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
