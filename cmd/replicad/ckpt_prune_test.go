package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/catalog"
	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/place"
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

// TestCkptPruneOfWhatIsKept: the reason is the true one, and what somebody reads since it was judged is no failure.
func TestCkptPruneOfWhatIsKept(t *testing.T) {
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20, 30} {
		catalogtest.Write(t, dir, step, 0)
	}
	expect(t, exitOK, []string{"verify", dir, "-q"}, "step 30")
	expect(t, exitOK, []string{"pin", dir + "@10", "--for", "90m"}, "pinned step 10")
	expect(t, exitOK, []string{"prune", dir, "--keep", "1", "--dry-run"}, "step 10 of 20261125T1716Z-ab010203, ", ": pinned for 1h", "would delete: "+ckptJob+" step 20")

	st, err := place.OpenStore(t.Context(), dir, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	cat := catalog.New(st, catalog.Options{Who: "ada"})
	list, err := cat.List(t.Context(), ckptJob)
	if err != nil || len(list) != 3 {
		t.Fatal(list, err)
	}
	if _, err := cat.Lease(t.Context(), list[1].Run, list[1].Generation, "ckpt verify"); err != nil {
		t.Fatal(err)
	}
	row := pruneRow{Reason: "newer ones are good"}
	if err := row.goes(t.Context(), cat, list[1]); err != nil || !row.Kept || !strings.Contains(row.Reason, "reader-ada-") || !strings.Contains(row.Reason, "ckpt verify") {
		t.Errorf("of what is read meanwhile: %v, %+v", err, row)
	}
	if kept, until, open := catalog.KeptBy(nil); kept || open || !until.Before(time.Now()) {
		t.Error(kept, until, open)
	}
}
