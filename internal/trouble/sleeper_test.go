//go:build cgo

package trouble_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/libreplicad"
)

// TestNameUsedAgain: a rank sleeps while its job is ended and another job of the same name begins. Awake, it is told to stop,
// and the new job does not notice it.
func TestNameUsedAgain(t *testing.T) {
	for _, tc := range []struct {
		name    string
		restart bool // the daemon is killed and started again meanwhile
		says    string
	}{{"daemon stays", false, "the job has ended: asleep"}, {"daemon restarted", true, "the job has ended"}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := one(t)
			first := n.run("job", 1, rankSpec{}, "--spare")
			n.daemon.await("job_created", nil)
			old := n.rank("job", 0, 1, 0, rankSpec{Stubborn: true})
			loaded := old.await("loaded", nil)
			old.await("step", fields{"step": 5})
			old.Signal(syscall.SIGSTOP)
			awaitStopped(t, old.PID())
			if code, out := call(t, "job", "end", "job", "--config", n.File, "--reason", "asleep"); code != 0 {
				t.Fatalf("code %d: %s", code, out)
			}
			if code := first.exit(); code != 1 {
				t.Errorf("the launcher of a job that was ended: code %d", code)
			}
			first.says("asleep")
			if tc.restart {
				n.daemon.kill()
				n.start()
			}

			next := n.run("job", 1, rankSpec{})
			l := next.await("loaded", fields{"step": 0})
			if l.fields["job"] == loaded.fields["job"] {
				t.Errorf("the new job is the old one: %s", l.text)
			}
			next.await("step", fields{"step": 5})
			old.Signal(syscall.SIGCONT)
			if code := old.exit(); code != 3 {
				t.Errorf("the old rank's exit code is %d", code)
			}
			e := old.await("error", nil)
			if e.fields["code"] != float64(libreplicad.ErrStopped.Code) {
				t.Error(e.text)
			}
			contains(t, e.text, tc.says)
			from, daemon := next.mark(), n.daemon.mark()
			next.awaitFrom(from, "step", nil)
			n.daemon.awaitFrom(daemon, "commit_seen", nil)
			if next.saw(func(l line) bool { return l.is("fenced", nil) || l.is("error", nil) }) {
				t.Errorf("the new job was disturbed:\n%s", next.tail(20))
			}
		})
	}
}

// TestSleeperOfAnEndedJob: a rank that does not wake up is killed by its daemon, and its memory is given back.
func TestSleeperOfAnEndedJob(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.Timing.Settle = 100 * time.Millisecond })
	n.run("job", 1, rankSpec{}, "--spare")
	n.daemon.await("job_created", nil)
	old := n.rank("job", 0, 1, 0, rankSpec{})
	old.await("step", fields{"step": 5})
	n.statusWhen(func(status) bool { return len(memory(t, n.keeper.PID())) == 1 }) // the rank's arena
	old.Signal(syscall.SIGSTOP)
	awaitStopped(t, old.PID())
	if code, out := call(t, "job", "end", "job", "--config", n.File); code != 0 {
		t.Fatalf("code %d: %s", code, out)
	}
	n.daemon.await("note", fields{"code": "stop_timeout", "text": fmt.Sprintf("process %d", old.PID())})
	if code := old.exit(); code != -1 {
		t.Errorf("the sleeping rank ended with code %d, want a signal", code)
	}
	n.daemon.await("rank_died", nil)
	n.statusWhen(func(status) bool { return len(memory(t, n.keeper.PID())) == 0 }) // the keeper hears of it beside what the daemon does
}

// memory lists the memory files that a process has open, but for what its voter has promised.
func memory(t *testing.T, pid int) (list []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.Contains(to, "/memfd:") && !strings.Contains(to, "/memfd:replicad-promises") {
			list = append(list, to)
		}
	}
	return list
}
