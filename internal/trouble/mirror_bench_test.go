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

// BenchmarkMirroredSteps measures a job whose ranks are each their own group, so that all of their state goes to mirrors: how long after
// its seal a step is committed, how many steps lie between two commits, the time between them, and what a push of a group's part and one of
// a private part take. Of two nodes TROUBLE_NODES train, with TROUBLE_RANKS ranks each, of TROUBLE_STATE_MB MiB, at a step each TROUBLE_PACE
// ms. TROUBLE_LOG is a file for the logs.
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
	steps, nodes, each := number("TROUBLE_STEPS", "150"), number("TROUBLE_NODES", "2"), number("TROUBLE_RANKS", "1")
	spec := rankSpec{Floats: mib << 18, Pace: time.Duration(pace) * time.Millisecond, Patience: 10 * patience, Steps: steps}
	var groups []string
	ranks := make([][]string, nodes)
	for r := range nodes * each {
		groups = append(groups, strconv.Itoa(r))
		ranks[r%nodes] = append(ranks[r%nodes], strconv.Itoa(r))
	}
	var launchers []*process
	for i, list := range ranks {
		flags := []string{"--ranks", strings.Join(list, ","), "--capacity", strconv.Itoa(each), "--chunk-mb", "4", "--groups", strings.Join(groups, ",")}
		launchers = append(launchers, c.nodes[i].run("large", len(groups), spec, append(flags, strings.Fields(os.Getenv("TROUBLE_RUN_FLAGS"))...)...))
	}
	for _, l := range launchers {
		l.awaitLong(10*patience, "left", nil)
	}
	daemon := c.nodes[0].daemon
	var commits []float64
	var gaps, lags, pushes, private []float64
	seen := map[any]bool{} // a part that is sent again is there already
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
			if n := len(commits); n == 0 || step > commits[n-1] { // each rank says it
				if n > 0 {
					gaps = append(gaps, at(l).Sub(last).Seconds()*1e3)
				}
				last = at(l)
				commits = append(commits, step)
			}
			lags = append(lags, l.fields["lag_us"].(float64)/1e3)
		case l.is("pushed", nil) && l.fields["error"] == nil:
			what := [2]any{l.fields["part"], l.fields["generation"]}
			took := l.fields["took_us"].(float64) / 1e3
			switch {
			case seen[what]:
			case strings.HasPrefix(what[0].(string), "private"):
				private = append(private, took)
			default:
				pushes = append(pushes, took)
			}
			seen[what] = true
		}
		return false
	})
	t.Logf("commits: %v", commits)
	part := func(v []float64, p int) float64 {
		if len(v) == 0 {
			return 0
		}
		v = slices.Sorted(slices.Values(v))
		return v[(len(v)-1)*p/100]
	}
	t.ReportMetric(0, "ns/op")
	t.ReportMetric(part(lags, 50), "ms/lag")
	t.ReportMetric(part(gaps, 50), "ms/commit-gap")
	t.ReportMetric(part(pushes, 50), "ms/push")
	t.ReportMetric(part(private, 50), "ms/private")
	t.ReportMetric(part(private, 99), "ms/private-p99")
	t.ReportMetric(float64(steps)/float64(max(len(commits), 1)), "steps/commit")
	if os.Getenv("TROUBLE_LOG") != "" {
		if err := os.WriteFile(os.Getenv("TROUBLE_LOG"), []byte(daemon.output()+"----\n"+c.nodes[1].daemon.output()+"----\n"+launchers[0].output()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
