package journal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/replica"
)

// Another level holds from the next line on, and is said whatever it is. One that is none changes nothing.
func TestTheLevelCanBeTakenAnew(t *testing.T) {
	for _, perMinute := range []config.Bytes{0, 1 << 20} {
		var out bytes.Buffer
		j, err := New(&out, config.Log{Level: "warn", PerMinute: perMinute}, "n1")
		if err != nil {
			t.Fatal(err)
		}
		line := func(write func()) string {
			out.Reset()
			write()
			return out.String()
		}
		leads := func() { j.Leader(7) }
		reports := func() { j.each("committed").Msg("") }
		for _, tc := range []struct {
			level        string
			leads, debug bool
			says         string
		}{{"info", true, false, `"was":"warn","is":"info"`}, {"debug", true, true, `"was":"info","is":"debug"`}, {"error", false, false, `"was":"debug","is":"error"`}, {"error", false, false, `"was":"error","is":"error"`}} {
			said := line(func() {
				if err := j.Relevel(tc.level); err != nil {
					t.Error(err)
				}
			})
			if !strings.Contains(said, `"event":"log_level"`) || !strings.Contains(said, tc.says) || strings.Count(said, `"level"`) != 1 {
				t.Errorf("%s is said as %q", tc.level, said)
			}
			if got := line(leads) != ""; got != tc.leads {
				t.Errorf("at %s who leads is written: %v", tc.level, got)
			}
			if got := line(reports) != ""; got != tc.debug {
				t.Errorf("at %s each commit is written: %v", tc.level, got)
			}
		}
		if err := j.Relevel("loud"); err == nil || line(leads) != "" {
			t.Errorf("loud is a level: %v", err)
		}
	}
}

// What an operator is woken for is written at `log: {level: warn}`; what is in order is not.
func TestWhatIsAWarning(t *testing.T) {
	job := &replica.Job{Name: "lm", Ranks: make([]replica.Claimed, 2)}
	for what, tc := range map[string]struct {
		write func(*Journal)
		warns bool
	}{
		"a rank is lost":   {func(j *Journal) { j.RankDied(job, 0, 7, 0, false) }, true},
		"a rank has left":  {func(j *Journal) { j.RankDied(job, 0, 7, 0, true) }, false},
		"a start fails":    {func(j *Journal) { j.StartFailed(job, 0, 1, 1, 5) }, true},
		"a job is created": {func(j *Journal) { j.JobChanged(nil, job, time.Time{}) }, false},
		"a fault": {func(j *Journal) {
			is := *job
			is.Faults = []replica.Fault{{Epoch: 1, Rank: 1}}
			j.JobChanged(job, &is, time.Time{})
		}, true},
	} {
		var out bytes.Buffer
		j, err := New(&out, config.Log{Level: "warn"}, "n1")
		if err != nil {
			t.Fatal(err)
		}
		if tc.write(j); out.Len() > 0 != tc.warns || tc.warns && !strings.Contains(out.String(), `"level":"warn"`) {
			t.Errorf("%s: %q", what, out.String())
		}
	}
}
