//go:build cgo

package trouble_test

import (
	"cmp"
	"os"
	"strconv"
	"testing"
	"time"
)

// BenchmarkStartBesideAnother measures what the start of a large job costs the commits of a small one on the same three nodes: the
// longest gap between two commits that a node sees. TROUBLE_STATE_MB is the large job's state in MiB, 256 where it is not set.
func BenchmarkStartBesideAnother(t *testing.B) {
	mib, err := strconv.Atoi(cmp.Or(os.Getenv("TROUBLE_STATE_MB"), "256"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "n1", "n2", "n3")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	var small []*process
	for _, n := range c.nodes {
		small = append(small, n.run("small", 3, rankSpec{Pace: 20 * time.Millisecond}, "--ranks", strconv.Itoa(len(small))))
	}
	for _, l := range small {
		l.await("step", fields{"step": 20})
	}
	marks := map[*node]int{}
	for _, n := range c.nodes {
		marks[n] = n.daemon.mark()
	}
	began := time.Now()
	over := make(chan time.Duration)
	stop := make(chan struct{})
	go func() { // the longest that a status takes, on the node where the large job starts
		var longest time.Duration
		for {
			select {
			case <-stop:
				over <- longest
				return
			default:
			}
			at := time.Now()
			c.nodes[0].status()
			longest = max(longest, time.Since(at))
			<-time.After(100 * time.Millisecond)
		}
	}()
	large := c.nodes[0].run("large", 1, rankSpec{Floats: mib << 18, Pace: 2 * time.Second, Patience: 10 * patience})
	end := time.After(10 * patience)
	for seen := false; !seen; {
		at, found, more := large.scan(0, func(l line) bool { return l.is("step", fields{"step": 4}) })
		if seen = found; !found {
			_ = at
			select {
			case <-more:
			case <-end:
				t.Fatal("the large job does not start")
			}
		}
	}
	took := time.Since(began)
	close(stop)
	status, longest := <-over, time.Duration(0)
	for _, n := range c.nodes {
		gap, last, commits := time.Duration(0), time.Time{}, 0
		_, _, _ = n.daemon.scan(marks[n], func(l line) bool {
			if l.is("commit_seen", fields{"job": "small"}) {
				if at, err := time.Parse(time.RFC3339Nano, l.fields["time"].(string)); err == nil {
					if commits++; !last.IsZero() {
						gap = max(gap, at.Sub(last))
					}
					last = at
				}
			}
			return false
		})
		if commits < 2 {
			t.Fatalf("%s saw %d commits of the small job meanwhile", n.cfg.Node, commits)
		}
		longest = max(longest, gap)
	}
	t.ReportMetric(0, "ns/op")
	t.ReportMetric(longest.Seconds()*1e3, "ms/longest-gap")
	t.ReportMetric(took.Seconds(), "s/start")
	t.ReportMetric(status.Seconds()*1e3, "ms/longest-status")
}
