//go:build cgo

package trouble_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/libreplicad"
)

// TestRankIsRefused: what a rank may not have is refused with the reason and the remedy, and whoever has it goes on.
func TestRankIsRefused(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.JobSecret = "0123456789abcdef" })
	right := n.cfg.JobToken("pair")
	spare := []string{"--spare"} // creates the job and starts nothing: ranks are started one by one here
	n.run("pair", 2, rankSpec{}, spare...)
	n.daemon.await("job_created", fields{"job": "pair"})
	good := rankSpec{Token: right}
	first := n.rank("pair", 0, 2, 0, rankSpec{Token: right, Twice: true})
	second := first.await("second", nil)
	contains(t, second.text, `"refused":true`, "has attached as rank 0", `job \"pair\"`, "use one handle")

	for _, tc := range []struct {
		name               string
		rank, world, group int
		job                string
		spec               rankSpec
		says               []string
	}{
		{"a live rank", 0, 2, 0, "pair", good, []string{`rank 0 of job \"pair\" is held by live process`, "stop it first"}},
		{"another geometry than the group's", 1, 2, 0, "pair", rankSpec{Token: right, Floats: 999}, []string{"geometry", "same regions in the same order"}},
		{"another world", 1, 3, 0, "pair", good, []string{"rank 1 of 3", "has 2 ranks"}},
		{"a rank beyond the world", 2, 3, 0, "pair", good, []string{"rank 2 of 3", "has 2 ranks"}},
		{"another group", 1, 2, 1, "pair", good, []string{"rank 1 of 2 in group 1", "that rank's group is 0"}},
		{"no such job", 0, 1, 0, "other", rankSpec{Token: n.cfg.JobToken("other")}, []string{`no job \"other\"`, "replicad run --job other"}},
		{"another job's token", 1, 2, 0, "pair", rankSpec{Token: n.cfg.JobToken("other")}, []string{"token", "replicad job token"}},
		{"another token", 1, 2, 0, "pair", rankSpec{Token: "wrong"}, []string{"token", "REPLICAD_TOKEN"}},
	} {
		r := n.rank(tc.job, tc.rank, tc.world, tc.group, tc.spec)
		l := r.await("error", nil)
		if code := r.exit(); code != 1 || l.fields["code"] != float64(libreplicad.ErrRefused.Code) {
			t.Errorf("%s: exit code %d, %s", tc.name, code, l.text)
		}
		contains(t, l.text, tc.says...)
	}
	if !first.Running() {
		t.Fatal("rank 0 is gone")
	}
	n.rank("pair", 1, 2, 0, good).await("step", fields{"step": 5})
	first.await("step", fields{"step": 5})
}

// TestPrivateWindowRegion: a private region that the window changes is refused unless it says so; with InWindow a process that comes
// after a SIGKILL loads the bytes of the step, not those of the step before. Ranks compare what they load.
func TestPrivateWindowRegion(t *testing.T) {
	t.Parallel()
	n := one(t)
	l := n.run("unsaid", 1, rankSpec{Own: "window"})
	contains(t, l.await("error", nil).text, `region moved: private and RP_WINDOW`, "copied when the step begins", "RP_IN_WINDOW", "RP_VOLATILE")
	if code := l.exit(); code != exitDoNotRequeue {
		t.Errorf("code %d", code)
	}

	l = n.run("said", 2, rankSpec{Own: "flagged"})
	for round := range 3 {
		step := l.await("step", fields{"rank": 1, "epoch": round + 1})
		l.await("step", fields{"rank": 1, "step": int(step.fields["step"].(float64)) + 4})
		if err := syscall.Kill(int(step.fields["pid"].(float64)), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.await("loaded", fields{"rank": 1, "epoch": round + 2})
	}
	l.await("step", fields{"rank": 1, "epoch": 4})
	if strings.Contains(l.output(), `"event":"error"`) {
		t.Error(l.output())
	}
}

// TestTooLittleMemory: a rank whose arena does not fit waits for memory, which the launcher and status name in figures. Its job goes on once
// there is enough: want of something is no failure of the rank.
func TestTooLittleMemory(t *testing.T) {
	t.Parallel()
	n := one(t, func(c *config.Config) { c.MemoryMargin = 1 << 40 })
	l := n.run("large", 1, rankSpec{})
	l.awaitText(0, "(met 4 times)")
	l.says("node n1 is short of memory", "too little memory: need ", "have 0 MiB", "margin of 1048576 MiB", "memory_margin")
	if j := n.statusWhen(linked).job("large"); j.Phase != "opening" {
		t.Errorf("%+v", j)
	}

	n.daemon.kill()
	n.cfg.MemoryMargin = 16 << 20
	n.write()
	n.start()
	l.await("step", fields{"step": 5})
}
