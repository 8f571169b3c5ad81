package journal

import (
	"bytes"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/config"
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
