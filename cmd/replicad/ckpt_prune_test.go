package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/replica"
)

// TestCkptPruneReadsFirst: of five generations the newest two rot, or lose a file. Whether anybody has read them or not, prune leaves a good one: what nobody
// has read pushes nothing out, and before anything goes a newer one is read.
func TestCkptPruneReadsFirst(t *testing.T) {
	for _, read := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			t.Run(fmt.Sprintf("read %v, lost %v", read, lost), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for step := replica.Step(10); step <= 50; step += 10 {
					catalogtest.Write(t, dir, step, 0)
				}
				if read {
					expect(t, exitOK, []string{"verify", dir, "--all", "-q"}, "step 50")
				}
				for _, step := range []string{"step-00000040.e1", "step-00000050.e1"} {
					if !lost {
						catalogtest.Bend(t, dir, ckptJob, "*", step, "group-0.*")
						continue
					}
					names, err := filepath.Glob(filepath.Join(dir, ckptJob, "*", step, "group-0.*"))
					if err != nil || len(names) != 1 || os.Remove(names[0]) != nil {
						t.Fatal(names, err)
					}
				}
				out := expect(t, exitOK, []string{"prune", dir, "--keep", "2"}, "kept: "+ckptJob+" step 30")
				if want := map[bool]int{false: 0, true: 1}[read]; strings.Count(out, "deleted: ") != want {
					t.Errorf("deletes other than %d: %s", want, out)
				}
				expect(t, exitFailed, []string{"verify", dir, "--all", "-q"}, "step 50 of", "2 of ")
				expect(t, exitFailed, []string{"verify", dir, "-q"}, "step 30 of 20261125T1716Z-ab010203: good")
			})
		}
	}
}

// TestCkptPruneOfWhatIsKept: the reason is the true one.
func TestCkptPruneOfWhatIsKept(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20, 30} {
		catalogtest.Write(t, dir, step, 0)
	}
	expect(t, exitOK, []string{"verify", dir, "-q"}, "step 30")
	expect(t, exitOK, []string{"pin", dir + "@10", "--for", "90m"}, "pinned step 10")
	expect(t, exitOK, []string{"prune", dir, "--keep", "1", "--dry-run"}, "step 10 of 20261125T1716Z-ab010203, ", ": pinned for 1h", "would delete: "+ckptJob+" step 20")
}
