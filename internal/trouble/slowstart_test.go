//go:build cgo

package trouble_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
)

// A process that imports for longer than survivors have to come to rest, and prefaults its arena for as long again, is not killed for it:
// each of its deadlines counts from its own last step. Launcher and status say what is waited for.
func TestASlowStartIsNotKilled(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) {
		c.Timing.Settle, c.Timing.Ack, c.Timing.DaemonGrace, c.Timing.Claim = 100*time.Millisecond, time.Second, time.Second, 100*time.Millisecond
	})
	slow := t.TempDir()
	attach, join := filepath.Join(slow, "attach"), filepath.Join(slow, "join")
	write(t, attach, "")
	write(t, join, "")
	l := n.run("job", 2, rankSpec{Slow: slow})
	at := l.await("step", fields{"step": 20, "rank": 0})
	n.committed(20)

	remove(t, attach)
	remove(t, join)
	from := l.mark()
	if err := syscall.Kill(int(at.fields["pid"].(float64)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	runs := regexp.MustCompile(`rank 0: process (\d+) runs`)
	pid := runs.FindStringSubmatch(l.awaitLine(from, "a new process", func(o line) bool { return runs.MatchString(o.text) }).text)[1]
	// Settle and ack are 1.1 s together.
	past := func(text string) func(string) bool {
		said := regexp.MustCompile(fmt.Sprintf(text, pid) + `([2-9]|\d\d+)s`)
		return func(s string) bool { return said.MatchString(s) }
	}
	says := func(text string) {
		t.Helper()
		n.statusWhen(func(s status) bool { return past(text)(strings.Join(s.job("job").Waiting, "\n")) })
	}
	noted := past(`rank 0: process %s has run `)
	contains(t, l.awaitLine(from, "who is waited for", func(o line) bool { return noted(o.text) }).text, "has not called resume() yet")
	says(`rank 0: process %s on node n1 has run `)
	write(t, attach, "")
	l.awaitFrom(from, "attached", nil)
	says(`rank 0: process %s on node n1 has attached and has been on its way to rp_join for `)
	write(t, join, "")
	if o := l.awaitFrom(from, "loaded", fields{"rank": 0}); o.fields["step"].(float64) < 20 || fmt.Sprint(o.fields["pid"]) != pid {
		t.Errorf("want process %s to load step 20 or later: %s", pid, o.text)
	}
	if n.daemon.saw(func(o line) bool { return o.is("fault", fields{"kind": "hang"}) }) {
		t.Error("a process that started was taken for a hang")
	}
}
