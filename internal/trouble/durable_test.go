//go:build cgo

package trouble_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/durable/catalog/find"
	"github.com/replicad/replicad/internal/durable/format"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// TestDamagedDurableShards: the whole job is lost but for the durable tier, and its newest generation, or every one, is damaged.
func TestDamagedDurableShards(t *testing.T) {
	truncate := func(t *testing.T, file string) {
		if err := os.Truncate(file, size(t, file)-1); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name   string
		part   replica.Part
		damage func(t *testing.T, file string)
		all    bool
		reason string
	}{
		{"truncated", replica.OfGroup(0), truncate, false, "bytes, the index says"},
		{"bit flipped", replica.OfGroup(0), flip, false, "chunk 0: digest differs"},
		{"bit flipped in a private part", replica.OfRank(0), flip, false, "chunk 0: digest differs"},
		{"missing", replica.OfRank(0), remove, false, "is missing"},
		{"every generation damaged", replica.OfGroup(0), flip, true, "chunk 0: digest differs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := one(t)
			durable := []string{"--durable-every", "5"}
			l := n.run("job", 1, rankSpec{}, durable...)
			for range 3 {
				n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
			}
			l.kill()
			n.die()
			if err := os.RemoveAll(filepath.Join(n.cfg.StateDir, "spool")); err != nil { // a later generation may lie there, whole
				t.Fatal(err)
			}
			found := generations(t, n)
			damaged := found[:1]
			if tc.all {
				damaged = found
			}
			for _, f := range damaged {
				tc.damage(t, fileOf(n, f, tc.part))
			}

			n.start()
			l = n.run("job", 1, rankSpec{}, durable...)
			for _, f := range damaged {
				skipped := n.daemon.await("durable_skipped", fields{"path": f.Where(), "reason": tc.reason})
				contains(t, skipped.text, filepath.Base(fileOf(n, f, tc.part)))
			}
			if tc.all { // nothing is left to go on from: the job ends and says why
				// Where a rank loaded the newest one before the daemon had read it again, that one is condemned; memory lacks it otherwise.
				ended := n.daemon.await("ended", fields{"reason": "no generation can be assembled"})
				if lacks, bad := "memory lacks group 0, private 0", fmt.Sprintf("the committed generation %v is condemned", found[0].Generation); !strings.Contains(ended.text, lacks) && !strings.Contains(ended.text, bad) {
					t.Errorf("it says neither that %s nor that %s: %s", lacks, bad, ended.text)
				}
				if j := n.statusWhen(func(s status) bool { return s.job("job").Phase == "ended" }).job("job"); !strings.Contains(j.EndReason, "the durable tier has no valid one") {
					t.Errorf("%+v", j)
				} else {
					contains(t, j.EndReason, fmt.Sprintf("step %d: %s, chunk 0: digest differs", found[0].Position.Step, filepath.Base(fileOf(n, found[0], tc.part))), fmt.Sprintf("step %d: group-0", found[len(found)-1].Position.Step))
				}
				return
			}
			o := l.await("loaded", nil)
			if o.fields["step"] != float64(found[1].Position.Step) || o.fields["source"] != "durable" {
				t.Errorf("want step %d of the durable tier: %s", found[1].Position.Step, o.text)
			}
			l.await("step", fields{"step": int(found[1].Position.Step) + 3})
			// The launcher says that the job went back, from what it goes on, and what it passed over.
			l.awaitText(0, fmt.Sprintf("recovered: step %d from disk, ", found[1].Position.Step))
			l.awaitText(0, "warning: the job went back over ")
			l.awaitText(0, fmt.Sprintf("resumed: step %d of file://%s/job (", found[1].Position.Step, n.cfg.DurableDir))
			at := l.awaitText(0, fmt.Sprintf("; passed over step %d: ", found[0].Position.Step))
			contains(t, l.text(at, at+1), filepath.Base(fileOf(n, found[0], tc.part)))
		})
	}
}

// TestResumePassesOverDamage: a cluster that lost its state opens a job from the durable tier, whose newest generation is damaged.
func TestResumePassesOverDamage(t *testing.T) {
	t.Parallel()
	n := one(t)
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	for range 3 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	l.kill()
	n.die()
	found := generations(t, n)
	flip(t, fileOf(n, found[0], replica.OfGroup(0)))

	if err := os.RemoveAll(n.cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	n.flags = []string{"--bootstrap"} // again: its log is gone
	n.start()
	l = n.run("job", 1, rankSpec{}, "--resume", "--durable-every", "5")
	n.daemon.await("durable_skipped", fields{"path": found[0].Where(), "reason": "chunk 0: digest differs"})
	l.await("loaded", fields{"step": int(found[1].Position.Step), "source": "durable"})
	at := l.awaitText(0, fmt.Sprintf("resumed: step %d of file://%s/job (", found[1].Position.Step, n.cfg.DurableDir))
	contains(t, l.text(at, at+1), fmt.Sprintf("; passed over step %d: %s, chunk 0: digest differs", found[0].Position.Step, filepath.Base(fileOf(n, found[0], replica.OfGroup(0)))))
	if j := n.statusWhen(linked).job("job"); !strings.HasPrefix(j.Resumed, fmt.Sprintf("step %d of file://", found[1].Position.Step)) {
		t.Errorf("status says it resumed from %q", j.Resumed)
	}
	// The next write used to delete the older, good one and to keep the damaged one: keeping counted files and sizes. It goes once as many newer ones were read back.
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	_, gone := os.Stat(commitOf(n, found[1]))
	list, err := open(t, n).List(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	newer := 0
	for _, l := range list {
		if l.State == find.Good && l.Generation.Step > found[1].Generation.Step {
			newer++
		}
	}
	if gone != nil && newer < n.cfg.DurableKeep.Last {
		t.Errorf("what the job went on from is gone, and %d newer ones were read back: %v", newer, gone)
	}
}

// TestResumeIsRefusedByName: nothing in the durable tier is whole, whether reads have found that, or nobody has read the damage before. The launcher says
// each file, and starts no process.
func TestResumeIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, marked := range []bool{false, true} {
		t.Run(fmt.Sprintf("marked %v", marked), func(t *testing.T) {
			t.Parallel()
			n, want := allDamaged(t)
			for _, f := range finds(t, n) {
				if !marked {
					break // marks are as the daemon left them: of before the damage, or none
				}
				if err := open(t, n).ReadBack(t.Context(), f, tier.How{}); !tier.IsDamage(err) {
					t.Fatal(err)
				}
			}
			n.start()
			l := n.run("job", 1, rankSpec{}, "--resume")
			if code := l.exit(); code != 1 {
				t.Errorf("code %d", code)
			}
			l.says(append(want, "no durable generation in file://"+n.cfg.DurableDir+"/job can be used: ")...)
			if l.saw(func(l line) bool {
				return l.is("loaded", nil) || strings.Contains(l.text, "starting") || strings.Contains(l.text, "the job has ended")
			}) {
				t.Errorf("a process was started:\n%s", l.output())
			}
		})
	}
}

// allDamaged is a node, not started, of whose durable generations every one is damaged, and which has lost its state; and what is said of each.
func allDamaged(t *testing.T) (n *node, want []string) {
	n = one(t)
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	for range 3 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	l.kill()
	n.die()
	found := generations(t, n)
	for i, f := range found {
		file := fileOf(n, f, []replica.Part{replica.OfGroup(0), replica.OfRank(0)}[i%2])
		flip(t, file)
		want = append(want, fmt.Sprintf("step %d: %s, chunk 0: digest differs", f.Position.Step, filepath.Base(file)))
	}
	if err := os.RemoveAll(n.cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	n.flags = []string{"--bootstrap"}
	return n, want
}

// generations are the complete durable ones, newest first.
func generations(t *testing.T, n *node) []tier.Found {
	t.Helper()
	found := finds(t, n)
	if len(found) < 2 {
		t.Fatalf("%d durable generations, want at least 2", len(found))
	}
	return found
}

// fileOf is the file of a part of a generation.
func fileOf(n *node, f tier.Found, p replica.Part) string {
	at, _ := f.Index.Part(p)
	return filepath.Join(n.cfg.DurableDir, f.Run.Under(f.Index.Files[at.File].Key))
}

// commitOf is the commit of a generation.
func commitOf(n *node, f tier.Found) string {
	return filepath.Join(n.cfg.DurableDir, f.Run.Key(format.Name{Kind: format.CommitKind, Generation: f.Generation}))
}

// open opens the durable tier of a node beside its daemon.
func open(t *testing.T, n *node) *tier.Tier {
	t.Helper()
	s, err := tier.OpenDirectory(t.Context(), n.cfg.DurableDir, tier.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// finds is the same, where there may be none.
func finds(t *testing.T, n *node) []tier.Found {
	t.Helper()
	found, _, err := open(t, n).Find(t.Context(), "job", replica.JobID{})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func size(t *testing.T, file string) int64 {
	t.Helper()
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

// flip turns one bit of the last byte over, which is a tensor's.
func flip(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, at := make([]byte, 1), size(t, file)-1
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

// TestDurableDirIsNotMounted: memory is lost while the durable tier is not there. The job waits and says for what, and goes on
// from the tier once it is.
func TestDurableDirIsNotMounted(t *testing.T) {
	t.Parallel()
	n := one(t)
	durable := []string{"--durable-every", "5"}
	l := n.run("job", 1, rankSpec{}, durable...)
	for range 2 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	l.kill()
	n.die()
	newest := generations(t, n)[0]
	there, away := filepath.Join(n.cfg.DurableDir, "job"), filepath.Join(n.cfg.DurableDir, "away")
	if err := os.Rename(there, away); err != nil {
		t.Fatal(err)
	}

	n.start()
	l = n.run("job", 1, rankSpec{}, durable...)
	const why = "the durable tier can't be read, it is tried again: "
	contains(t, n.daemon.await("note", fields{"code": "waiting", "text": why}).text, "mount it")
	n.statusWhen(func(s status) bool { return strings.Contains(strings.Join(s.job("job").Waiting, "\n"), why) })
	if err := os.Rename(away, there); err != nil {
		t.Fatal(err)
	}
	o := l.await("loaded", fields{"source": "durable"})
	if step, _ := o.fields["step"].(float64); replica.Step(step) < newest.Position.Step { // a later one may have lain in the spool, whole
		t.Errorf("want step %d or a later one: %s", newest.Position.Step, o.text)
	}
}

// TestDurableDirIsReplaced: under a running job the durable directory is moved away and another one made in its place. What was
// written into the former is not claimed any more, people are told, and writes go on where the path leads; likewise when the
// directory is away for a while.
func TestDurableDirIsReplaced(t *testing.T) {
	t.Parallel()
	n := one(t)
	dir, old := n.cfg.DurableDir, n.cfg.DurableDir+".old"
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	n.daemon.await("durable", nil)
	replace(t, dir, old)
	f := n.daemon.await("failed", fields{"what": "durable", "why": "moved, unmounted or replaced"})
	contains(t, f.text, dir, "inode")
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	n.statusWhen(func(s status) bool { return s.job("job").Durable.Step > 0 && s.job("job").DurableError == "" })
	was := markers(t, old)

	// Of what status claims from now on there is a marker at the path.
	from := n.daemon.mark()
	move(t, dir, dir+".away")
	f = n.daemon.awaitFrom(from, "failed", fields{"what": "durable", "why": "mount it"})
	contains(t, f.text, dir, "no such file or directory")
	n.statusWhen(func(s status) bool {
		return linked(s) && s.job("job").Durable.Step == 0 && strings.Contains(s.job("job").DurableError, dir)
	})
	n.daemon.awaitFrom(n.daemon.mark(), "failed", fields{"what": "durable", "subject": " by node "}) // what was under way has ended
	away := markers(t, dir+".away")
	if away == 0 {
		t.Error("nothing was written into the new directory")
	}
	from = l.mark()
	l.awaitFrom(from, "step", nil)
	if again := markers(t, dir+".away"); again != away {
		t.Errorf("%d generations more in a directory that is away", again-away)
	}
	move(t, dir+".away", dir)
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	newest := n.statusWhen(func(s status) bool { return s.job("job").Durable.Step > 0 && s.job("job").DurableError == "" }).job("job").Durable.Step
	if found := finds(t, n); len(found) == 0 || int(found[0].Position.Step) < newest {
		t.Errorf("status said durable step %d, at the path are %v", newest, found)
	}
	if again := markers(t, old); again > was {
		t.Errorf("%d generations more in the directory that was moved away", again-was)
	}
	if l.saw(func(l line) bool { return l.is("fenced", nil) }) {
		t.Error("training was disturbed")
	}
}

// TestDurableDirOfTwoNodesIsReplaced: every node that writes finds out by itself, and all parts meet in the new directory.
func TestDurableDirOfTwoNodesIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "n1", "n2")
	c.voters(1)
	for i, n := range c.nodes {
		n.start()
		n.run("job", 2, rankSpec{}, "--ranks", fmt.Sprint(i), "--durable-every", "5")
	}
	n := c.nodes[0]
	n.daemon.await("durable", nil)
	dir := n.cfg.DurableDir
	replace(t, dir, dir+".old")
	n.daemon.await("failed", fields{"what": "durable", "why": "moved, unmounted or replaced"})
	was := markers(t, dir+".old")
	for range 2 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	for _, n := range c.nodes {
		n.die() // else the job deletes beside the look at the second one
	}
	generations(t, n) // each has all its parts
	if again := markers(t, dir+".old"); again > was {
		t.Errorf("%d generations more in the directory that was moved away", again-was)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// replace moves a directory to old and puts an empty one in its place, at once: a write must not find neither.
func replace(t *testing.T, dir, old string) {
	t.Helper()
	if err := errors.Join(os.Mkdir(old, 0o700), unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, old, unix.RENAME_EXCHANGE)); err != nil {
		t.Fatal(err)
	}
}

// markers counts the durable generations that are committed in a directory.
func markers(t testing.TB, dir string) int {
	t.Helper()
	return len(commitsIn(t, dir))
}

// commitsIn are the files of their commits.
func commitsIn(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "job", "*", "commits", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestDurableDirIsSilent: the server of the durable tier's mount is gone, and no call to it returns. Training goes on, status says what
// does not answer, a job can't be resumed and says why, the daemon ends when it is told to, and starts. Once the server is back so is the tier.
func TestDurableDirIsSilent(t *testing.T) {
	t.Parallel()
	n := one(t)
	dir := n.cfg.DurableDir
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	n.daemon.await("durable", nil)
	end := fixture.Mute(t, dir)
	const silent = "the file system does not answer"
	contains(t, n.daemon.await("failed", fields{"what": "durable", "why": silent}).text, dir, "durable_dir of a daemon")
	n.daemon.awaitFrom(n.daemon.mark(), "commit_seen", nil)
	s := n.statusWhen(func(s status) bool { return s.DurableSilent != "" && s.job("job").DurableError != "" })
	contains(t, s.DurableSilent, dir, silent)
	contains(t, s.job("job").DurableError, dir, silent)
	other := n.run("other", 1, rankSpec{}, "--resume")
	if code := other.exit(); code != 1 {
		t.Errorf("resuming from a silent tier: code %d", code)
	}
	other.says(`resume job "other" from the durable tier`, dir, silent)
	end()
	n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	n.statusWhen(func(s status) bool { return s.DurableSilent == "" && s.job("job").DurableError == "" })

	end = fixture.Mute(t, dir)
	n.statusWhen(func(s status) bool { return s.DurableSilent != "" })
	n.daemon.Signal(syscall.SIGTERM)
	if code := n.daemon.exit(); code != 0 {
		t.Errorf("the daemon ended with code %d", code)
	}
	n.start()
	contains(t, n.daemon.await("failed", fields{"what": "durable", "why": silent}).text, "the store can't be used now, and is tried again")
	contains(t, n.statusWhen(func(s status) bool { return s.DurableSilent != "" }).DurableSilent, dir, silent)
	l.awaitFrom(l.mark(), "step", nil)
	end()
	n.daemon.awaitWithin(3*patience, n.daemon.mark(), "a durable write", func(l line) bool { return l.is("durable", nil) })
	n.statusWhen(func(s status) bool { return s.DurableSilent == "" })
}

// TestADurableDirThatCanNotBeUsed keeps no daemon from starting, whatever ails it. Status names it, and it is used once it can be.
func TestADurableDirThatCanNotBeUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, n *node) (mend func())
		says  string
	}{
		"away": {func(t *testing.T, n *node) func() {
			n.cfg.DurableDir = filepath.Join(shortDir(t), "not-mounted")
			return func() {
				if err := os.Mkdir(n.cfg.DurableDir, 0o700); err != nil {
					t.Error(err)
				}
			}
		}, "make the directory, or name one that every node shares"},
		"full": {func(t *testing.T, n *node) func() {
			n.cfg.DurableDir = tmpfs(t, "900k")
			fill := filepath.Join(n.cfg.DurableDir, "fill")
			if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("it is not full: %v", err)
			}
			return func() { remove(t, fill) }
		}, "free space in "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newCluster(t, "n1").nodes[0]
			mend := tc.spoil(t, n)
			n.write()
			n.start()
			contains(t, n.daemon.await("failed", fields{"what": "durable", "subject": "the store can't be used now, and is tried again"}).text, tc.says)
			contains(t, n.statusWhen(func(s status) bool { return s.DurableSilent != "" }).DurableSilent, n.cfg.DurableDir, tc.says)
			l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
			l.await("step", fields{"step": 10})
			l.awaitText(0, "warning: durable writes fail: ")
			contains(t, n.statusWhen(func(s status) bool { return s.job("job").DurableError != "" }).job("job").DurableError, tc.says)
			mend()
			n.daemon.awaitWithin(3*patience, n.daemon.mark(), "a durable write", func(l line) bool { return l.is("durable", nil) })
			n.statusWhen(func(s status) bool { return s.DurableSilent == "" && s.job("job").DurableError == "" })
			if l.saw(func(l line) bool { return l.is("fenced", nil) }) {
				t.Error("training was disturbed")
			}
		})
	}
}

// TestResumeAtANamedPipe: a named pipe where a file of the newest generation should be is passed over, and holds nobody up.
func TestResumeAtANamedPipe(t *testing.T) {
	t.Parallel()
	n := one(t)
	l := n.run("job", 1, rankSpec{}, "--durable-every", "5")
	for range 3 {
		n.daemon.awaitFrom(n.daemon.mark(), "durable", nil)
	}
	l.kill()
	n.die()
	found := generations(t, n)
	pipe := commitOf(n, found[0])
	remove(t, pipe)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	n.flags = []string{"--bootstrap"} // again: its log is gone
	n.start()
	l = n.run("job", 1, rankSpec{}, "--resume")
	n.daemon.await("durable_skipped", fields{"path": found[0].Where(), "reason": "no commit: it was never finished"})
	l.await("loaded", fields{"step": int(found[1].Position.Step), "source": "durable"})
	n.daemon.Signal(syscall.SIGTERM)
	if code := n.daemon.exit(); code != 0 {
		t.Errorf("the daemon ended with code %d", code)
	}
}

// TestDurableIsReadBack: what was just written is read again from the disk, at a bounded rate, and the mark beside it says so.
func TestDurableIsReadBack(t *testing.T) {
	t.Parallel()
	n := one(t)
	n.run("job", 1, rankSpec{}, "--durable-every", "125")
	n.daemon.await("durable", nil)
	n.daemon.await("note", fields{"code": "durable_read"})
	s, err := tier.OpenDirectory(t.Context(), n.cfg.DurableDir, tier.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n.statusWhen(func(status) bool { // by a mark; the job deletes what has one
		marked, err := s.List(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(marked, func(g find.Listed) bool { return g.State == find.Good })
	})
}
