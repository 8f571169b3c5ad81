//go:build cgo

package trouble_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/replica"
)

// shardedPair runs a job of two ranks, each the only one that computes its part, on two of three nodes. The first node leads.
func shardedPair(t *testing.T, dir, spool string, spec rankSpec, flags ...string) (*cluster, []*process) {
	t.Helper()
	c := newCluster(t, "n1", "n2", "n3")
	c.voters(1)
	for _, n := range c.nodes {
		n.cfg.DurableDir, n.cfg.SpoolDir = dir, spool
		n.write()
		n.launch()
	}
	for _, n := range c.nodes {
		n.daemon.await("linked", nil)
	}
	var launchers []*process
	for i, n := range c.nodes[:2] {
		launchers = append(launchers, n.run("job", 2, spec, append([]string{"--groups", "0,1", "--ranks", fmt.Sprint(i)}, flags...)...))
	}
	return c, launchers
}

// steps are those that lines of an event name, in order.
func (p *process) steps(from int, event string) (steps []int) {
	_, _, _ = p.scan(from, func(l line) bool {
		if l.is(event, nil) {
			if s, ok := l.fields["step"].(float64); ok {
				steps = append(steps, int(s))
			}
		}
		return false
	})
	return steps
}

// madeBefore is the newest step that a rank has said from a place on, before an event behind that.
func (p *process) madeBefore(from int, event string) (newest int) {
	_, _, _ = p.scan(from, func(l line) bool {
		if l.is("step", nil) {
			newest = max(newest, stepAt(l))
		}
		return l.is(event, nil)
	})
	return newest
}

// longestStep is the most steps that lie between two of a list.
func longestStep(steps []int) (most int) {
	_, most = longest(steps)
	return most
}

// longest is where most steps lie between two of a list, and how many.
func longest(steps []int) (at, most int) {
	for i := range steps[min(1, len(steps)):] {
		if apart := steps[i+1] - steps[i]; apart > most {
			at, most = i, apart
		}
	}
	return at, most
}

// commitsGoOn judges by the steps between two commits of a leader's output that they don't wait for a bad disk: 30 are what 3 s come to.
func commitsGoOn(t *testing.T, leader *process, from int) {
	t.Helper()
	commits := leader.steps(from, "commit_seen")
	at, most := longest(commits)
	if most > 30 || len(commits) == 0 {
		t.Errorf("between two commits were up to %d steps: %v", most, commits)
		if at+1 < len(commits) {
			t.Logf("the leader meanwhile:\n%s", leader.between(from, "commit_seen", commits[at], commits[at+1]))
		}
	}
	t.Logf("%d commits, at most %d steps from one to the next", len(commits), most)
}

// between are the lines from an event of one step to that of another.
func (p *process) between(from int, event string, first, last int) string {
	is := func(step int) func(line) bool {
		return func(l line) bool { return l.is(event, fields{"step": step}) }
	}
	begin, _, _ := p.scan(from, is(first))
	end, _, _ := p.scan(begin, is(last))
	p.mu.Lock()
	defer p.mu.Unlock()
	var out strings.Builder
	for _, l := range p.lines[begin:min(end+1, len(p.lines))] {
		out.WriteString(l.text + "\n")
	}
	return out.String()
}

// pid is a rank's process.
func (n *node) pid(job string, rank int) (pid int) {
	n.t.Helper()
	n.statusWhen(func(s status) bool {
		for _, r := range s.job(job).Ranks {
			if r.Rank == rank {
				pid = r.PID
			}
		}
		return pid > 0
	})
	return pid
}

// skippedGeneration is how the leader names a generation of which a shard failed.
var skippedGeneration = regexp.MustCompile(`of generation \((\d+),(\d+)\)`)

// badDisk is a file system that can be frozen.
type badDisk interface {
	freeze()
	thaw()
	copied() string // a copy of what is in it
}

// loopFS is a real one, on a loop device.
type loopFS struct {
	t   testing.TB
	dir string
}

// mountLoop mounts an empty one.
func mountLoop(t testing.TB, dir string) *loopFS {
	t.Helper()
	image := filepath.Join(shortDir(t), "image")
	for _, cmd := range [][]string{{"truncate", "-s", "256M", image}, {"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, dir}} {
		out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput()
		if err != nil && cmd[0] == "truncate" {
			t.Fatalf("%v: %v: %s", cmd, err, out)
		} else if err != nil {
			t.Skipf("needs a file system on a loop device: %v: %v: %s", cmd, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return &loopFS{t, dir}
}

// freeze does so, and has a process thaw it should the test be killed: it would stay so, and no process in it could be killed either.
func (f *loopFS) freeze() {
	f.t.Helper()
	guard := exec.Command("sh", "-c", "read x; fsfreeze -u "+f.dir)
	end, err := guard.StdinPipe()
	if err == nil {
		err = guard.Start()
	}
	if err == nil {
		err = exec.Command("fsfreeze", "-f", f.dir).Run()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = end.Close()
		_ = guard.Wait() // it has nothing to thaw where the test did
	})
}

func (f *loopFS) thaw() {
	f.t.Helper()
	if out, err := exec.Command("fsfreeze", "-u", f.dir).CombinedOutput(); err != nil {
		f.t.Fatalf("fsfreeze -u: %v: %s", err, out)
	}
}

func (f *loopFS) copied() string {
	f.t.Helper()
	for {
		was, dir := commitsIn(f.t, f.dir), f.copy()
		if slices.Equal(commitsIn(f.t, f.dir), was) { // else the job has committed, or deleted, what was being copied
			return dir
		}
	}
}

func (f *loopFS) copy() string {
	f.t.Helper()
	dir := shortDir(f.t)
	if out, err := exec.Command("cp", "-r", f.dir+"/job", dir).CombinedOutput(); err != nil && !strings.Contains(string(out), "No such file") { // pruned meanwhile
		f.t.Fatalf("cp: %v: %s", err, out)
	}
	return dir
}

// TestDurableDirFreezes: below a job of short steps the file system of durable_dir answers no call that changes something, as a frozen one
// does. Commits go on, and a rank that dies then costs few steps, with and without a spool; what is skipped is named, with the remedy, and no marker
// ever names a file that a call may still write into. Once the file system thaws durable generations are written again.
func TestDurableDirFreezes(t *testing.T) {
	for _, c := range []struct {
		slots int
		spool string
		real  bool
		long  bool // between two that the default has, or on a loop device
	}{{2, "", false, false}, {3, "", false, true}, {4, "", false, true}, {2, config.NoSpool, false, true}, {3, config.NoSpool, false, true}, {4, config.NoSpool, false, false}, {2, "", true, true}, {2, config.NoSpool, true, true}, {3, config.NoSpool, true, true}} {
		t.Run(fmt.Sprintf("%d slots, spool %q, by fsfreeze %v", c.slots, c.spool, c.real), func(t *testing.T) {
			if c.long && os.Getenv("TROUBLE_LONG") == "" {
				t.Skip("the same with other slots, or on a loop device: set TROUBLE_LONG")
			}
			t.Parallel()
			dir := shortDir(t)
			var disk badDisk
			if c.real {
				disk = mountLoop(t, dir)
			} else {
				disk = mountMem(t, dir)
			}
			cl, launchers := shardedPair(t, dir, c.spool, rankSpec{Floats: 1 << 18, Pace: 100 * time.Millisecond}, "--slots", fmt.Sprint(c.slots), "--durable-every", "10")
			leader := cl.nodes[0]
			leader.daemon.await("durable", nil)
			disk.freeze()
			from, heard := leader.daemon.mark(), launchers[0].mark()
			launchers[0].awaitFrom(heard, "step", nil)
			began := launchers[0].steps(heard, "step")[0]
			launchers[0].awaitLine(heard, "the steps of some seconds", func(l line) bool {
				s, ok := l.fields["step"].(float64)
				return l.is("step", nil) && ok && int(s) > began+90
			})
			leader.daemon.awaitWithin(3*patience, from, "what is skipped", func(l line) bool {
				return l.is("failed", fields{"what": "durable"}) && strings.Contains(l.text, "durable_dir")
			})
			launchers[0].awaitText(heard, "warning: durable writes fail: ")
			contains(t, leader.statusWhen(func(s status) bool { return s.job("job").DurableError != "" }).job("job").DurableError, "durable_dir")

			rank, told := leader.pid("job", 0), launchers[1].mark()
			if err := syscall.Kill(rank, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			loaded := launchers[1].awaitFrom(told, "loaded", nil)
			made := launchers[1].madeBefore(heard, "loaded")
			resumed := int(loaded.fields["step"].(float64))
			// What 2 s come to, though 10 steps would do, and those by which the leader went further ahead meanwhile, with each candidate that lapsed.
			const lost = 30
			if made-resumed > lost || loaded.fields["source"] == "durable" {
				t.Errorf("the death of a rank cost %d steps: %d were made, and %s", made-resumed, made, loaded.text)
			}
			commitsGoOn(t, leader.daemon, from)
			t.Logf("%d steps lost", made-resumed)

			was := markers(t, disk.copied())
			thawed := leader.daemon.mark()
			disk.thaw()
			leader.daemon.awaitFrom(thawed, "durable", nil)
			launchers[0].awaitText(heard, "durable writes work again")
			leader.statusWhen(func(s status) bool { return s.job("job").DurableError == "" })
			if now := markers(t, disk.copied()); now <= was && now < leader.cfg.DurableKeep.Last {
				t.Errorf("%d markers after the thaw, %d before", now, was)
			}
			whole(t, disk, leader, from)
		})
	}
}

// whole reads all that markers name, and looks for markers of generations that were skipped since.
func whole(t *testing.T, disk badDisk, n *node, from int) {
	t.Helper()
	dir := disk.copied()
	s, err := tier.OpenDirectory(t.Context(), dir, tier.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	found, _, err := s.Find(t.Context(), "job", replica.JobID{})
	if err != nil || len(found) == 0 {
		t.Fatalf("no durable generation: %v", err)
	}
	for _, f := range found {
		if err := s.ReadBack(t.Context(), f, tier.How{}); err != nil {
			t.Errorf("%s: %v", f.Where(), err)
		}
	}
	_, _, _ = n.daemon.scan(from, func(l line) bool {
		m := skippedGeneration.FindStringSubmatch(fmt.Sprint(l.fields["subject"]))
		if !l.is("failed", fields{"what": "durable"}) || m == nil {
			return false
		}
		named, err := filepath.Glob(filepath.Join(dir, "job", "*", "commits", fmt.Sprintf("step-%08s.e%s.json", m[2], m[1])))
		if err != nil || len(named) > 0 {
			t.Errorf("generation %s was skipped and has a marker: %v, %v", m[0], named, err)
		}
		return false
	})
}

// TestDurableDirIsSlow: writing a generation takes much longer than a commit may wait for a slot, of which there are two. It is written all the
// same, out of the spool, and so is the next; commits go on meanwhile.
func TestDurableDirIsSlow(t *testing.T) {
	for _, c := range []struct {
		floats int
		rate   float64
		pace   time.Duration
		writes int
		long   bool
	}{
		{2 << 20, 2 << 20, 100 * time.Millisecond, 2, false},
		{64 << 20, 10e6, time.Second, 3, true},
	} {
		t.Run(fmt.Sprintf("%d MiB a rank", c.floats>>18), func(t *testing.T) {
			if c.long && os.Getenv("TROUBLE_LONG") == "" {
				t.Skip("takes minutes: set TROUBLE_LONG")
			}
			t.Parallel()
			dir := shortDir(t)
			disk := mountMem(t, dir)
			disk.slow(c.rate)
			cl, launchers := shardedPair(t, dir, "", rankSpec{Floats: c.floats, Pace: c.pace}, "--slots", "2", "--durable-every", "5")
			leader := cl.nodes[0]
			launchers[0].awaitLong(3*patience, "step", fields{"step": 10})
			for i := range c.writes {
				from := leader.daemon.mark()
				l := leader.daemon.awaitWithin(3*patience, from, "durable", func(l line) bool { return l.is("durable", nil) })
				committed := leader.daemon.awaitFrom(leader.daemon.mark(), "commit_seen", nil)
				t.Logf("write %d: step %v is durable; then step %v is committed", i, l.fields["step"], committed.fields["step"])
			}
			durable, commits := leader.daemon.steps(0, "durable"), leader.daemon.steps(0, "commit_seen")
			t.Logf("durable %v; %d commits, at most %d steps from one to the next", durable, len(commits), longestStep(commits))
			if !slices.IsSorted(durable) || len(slices.Compact(slices.Clone(durable))) < c.writes {
				t.Errorf("durable generations %v", durable)
			}
			if !c.long { // large states wait for their mirrors as well, on a busy machine for longer
				commitsGoOn(t, leader.daemon, 0)
			}
			for _, bad := range []string{"failed", "commit_stalled"} {
				if _, seen, _ := leader.daemon.scan(0, func(l line) bool {
					return l.is(bad, nil) && (bad != "failed" || l.is(bad, fields{"what": "durable"}))
				}); seen {
					t.Errorf("the leader logged %q", bad)
				}
			}
			whole(t, disk, leader, 0)
		})
	}
}

// TestDurableDirIsSlowWithoutSpool: the same disk, and no spool. Commits do not wait for it; each write is skipped, and people are told what would help.
func TestDurableDirIsSlowWithoutSpool(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	disk := mountMem(t, dir)
	disk.slow(1 << 20)
	cl, launchers := shardedPair(t, dir, config.NoSpool, rankSpec{Floats: 5 << 20, Pace: 100 * time.Millisecond}, "--slots", "2", "--durable-every", "5")
	leader := cl.nodes[0]
	launchers[0].awaitText(0, "warning: durable writes fail: ")
	l := leader.daemon.await("failed", fields{"what": "durable", "why": "the commit of step "})
	contains(t, l.text, "Give the daemon a spool_dir on a local disk")
	launchers[0].awaitLong(3*patience, "step", fields{"step": 150})
	commitsGoOn(t, leader.daemon, 0)
}

// TestAFullDurableDirGetsNoFuller: there is room for one generation, and for the shard of one node of the next. What is written of that goes again each
// time: it used to stay, a directory for each try.
func TestAFullDurableDirGetsNoFuller(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, "900k")
	cl, launchers := shardedPair(t, dir, "", rankSpec{Floats: 1 << 16, Pace: 100 * time.Millisecond}, "--durable-every", "5")
	leader := cl.nodes[0]
	leader.daemon.await("durable", nil)
	from := 0
	for range 3 {
		f := leader.daemon.awaitFrom(from, "failed", fields{"what": "durable", "subject": "shard "})
		contains(t, f.text, "no space left on device")
		from = leader.daemon.mark()
	}
	leader.statusWhen(func(status) bool { return len(unfinished(t, dir)) == 0 })
	if n := markers(t, dir); n != 1 {
		t.Errorf("%d markers", n)
	}
	if launchers[0].saw(func(l line) bool { return l.is("fenced", nil) }) {
		t.Error("training was disturbed")
	}
}

// unfinished are the shards in a durable directory whose generation has no commit.
func unfinished(t *testing.T, dir string) (without []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "job", "*", "step-*", "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		step := filepath.Dir(f)
		if _, err := os.Lstat(filepath.Join(filepath.Dir(step), "commits", filepath.Base(step)+".json")); errors.Is(err, fs.ErrNotExist) {
			without = append(without, f)
		}
	}
	return without
}
