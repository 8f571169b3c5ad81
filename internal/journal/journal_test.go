package journal

import (
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// Two lines for each commit were 0.7 GB a day at ten steps a second: the log has one line for the commits of some seconds.
func TestCommitsAreLoggedBySpells(t *testing.T) {
	for _, tc := range []struct {
		name  string
		log   config.Log
		lines int // of each commit
	}{{"as configured by default", config.Log{Level: "info"}, 0}, {"for programs that read along", config.Log{Level: "info", Commits: true}, 200}, {"debug", config.Log{Level: "debug"}, 200}} {
		t.Run(tc.name, func(t *testing.T) {
			out := &fixture.Lines{}
			j, err := New(out, tc.log, "n1")
			if err != nil {
				t.Fatal(err)
			}
			var spell CommitSpell
			start := time.Now()
			was := fixture.Job()
			for i := range 200 { // a commit each 100 ms, for 20 s
				is := fixture.Changed(was, func(j *replica.Job) { j.Position.Step++; j.Committed.Step++ })
				j.JobChanged(was, is, time.Time{})
				for range 2 { // two ranks here
					j.CommitLag(is, time.Millisecond)
					j.CommitsSeen(is, &spell, time.Duration(i+1)*time.Millisecond, start.Add(time.Duration(i)*commitsEach/100))
				}
				was = is
			}
			if n, m := out.Count(`"event":"committed"`), out.Count(`"event":"commit_seen"`); n != tc.lines || m != 2*tc.lines {
				t.Errorf("%d lines of commits on the leader, want %d, and %d where two ranks live, want %d", n, tc.lines, m, 2*tc.lines)
			}
			if n := out.Count(`"event":"commits"`); n != 2 {
				t.Errorf("%d lines on 20 seconds of commits, want one for the first and one after ten seconds", n)
			}
			if n := out.Count(`"event":"commits","job":"job","epoch":3,"count":100,"step":106,"worst_lag_us":101000`); n != 1 {
				t.Errorf("no line tells of the 100 commits after the first:\n%s", out.String())
			}
		})
	}
}
