package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/internal/durable/durabletest"
	"github.com/replicad/replicad/replica"
)

// prune --strip-optimizer is for runs that have ended; what is pinned, damaged, or has no optimizer stays, and each is said.
func TestCkptStrip(t *testing.T) {
	dir := t.TempDir()
	catalogtest.Write(t, dir, 10, 0)
	for _, step := range []replica.Step{20, 30, 40, 50} {
		catalogtest.WriteMade(t, dir, durabletest.Make(replica.Generation{Epoch: 1, Step: step}, 2, durabletest.Trained()...), 0)
	}
	was := ckptRows(t, dir)
	strip := []string{"prune", dir, "--keep", "5", "--strip-optimizer"}
	expect(t, exitFailed, strip, "may be live: the commit of step", "--idle 0s", "Nothing was changed")
	expect(t, exitUsage, append(strip, "--idle", "-1s"), "--idle -1s: want 0s or more")
	expect(t, exitOK, []string{"pin", dir + "@40", "--as", "ada"}, "pinned step 40")
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000030.e1", "group-1.*")
	expect(t, exitFailed, []string{"verify", dir + "@30"}, "DAMAGED")

	strip = append(strip, "--idle", "0s")
	expect(t, exitOK, append(strip, "--dry-run"), "would strip, 7.3 KiB of optimizer state", "not stripped: it is pinned")
	for i, r := range ckptRows(t, dir) {
		if r.Stripped || r.Bytes != was[i].Bytes {
			t.Errorf("a dry run strips: %+v", r)
		}
	}
	out := expect(t, exitOK, strip, "stripped, 7.3 KiB of optimizer state", "not stripped: it is pinned", "not stripped: no tensor of it is an optimizer's", "not stripped: it failed a read")
	if strings.Count(out, "  stripped,") != 2 {
		t.Errorf("%s", out)
	}
	rows := ckptRows(t, dir)
	for i, want := range map[int]bool{0: true, 1: false, 2: false, 3: true, 4: false} {
		if rows[i].Stripped != want || want && rows[i].Bytes+7488/2 > was[0].Bytes {
			t.Errorf("step %d: %+v", rows[i].Step, rows[i])
		}
	}
	expect(t, exitOK, []string{"ls", dir}, "good, stripped")
	expect(t, exitOK, []string{"show", dir + "@50", "--tensors"}, "stripped    of its optimizer state", "bias", "python's generator")
	expect(t, exitOK, []string{"verify", dir + "@50"}, "good")
	expect(t, exitOK, []string{"log", dir}, "strip 50  ckpt prune --strip-optimizer", "strip 20")
	expect(t, exitOK, strip, "stripped before")
	expect(t, exitFailed, []string{"diff", dir + "@40", dir + "@50"}, "optim.weight.exp_avg")

	// Stripped ones push out none that a job can go on from.
	expect(t, exitOK, []string{"unpin", dir + "@40", "--as", "ada"}, "unpinned")
	expect(t, exitOK, []string{"prune", dir, "--keep", "1", "--dry-run"}, "kept: "+ckptJob+" step 50", "kept: "+ckptJob+" step 40", "would delete: "+ckptJob+" step 20", "kept: "+ckptJob+" step 10")
	expect(t, exitOK, []string{"verify", dir + "@40"}, "good")
	expect(t, exitOK, []string{"prune", dir, "--keep", "1", "--dry-run"}, "would delete: "+ckptJob+" step 10")
	other := t.TempDir()
	expect(t, exitOK, []string{"cp", dir + "@50", other}, "copied step 50")
	expect(t, exitOK, []string{"diff", dir + "@50", other}, "equal")
	catalogtest.Bend(t, dir, ckptJob, "*", "step-00000040.e1", "node-b.*")
	expect(t, exitOK, []string{"pin", dir + "@30"}, "pinned step 30") // nothing goes, so that nothing is read first
	expect(t, exitFailed, append(strip, "--as", "ada"), "NOT stripped", "node-b")
	if names, err := filepath.Glob(filepath.Join(dir, ckptJob, "*", "commits", "step-00000040*")); err != nil || len(names) != 1 {
		t.Error(names, err)
	}
}
