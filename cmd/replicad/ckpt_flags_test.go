package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/replicad/replicad/internal/durable/catalogtest"
	"github.com/replicad/replicad/replica"
)

// What cannot be meant is refused, with what could be.
func TestWhatCommandsRefuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, step := range []replica.Step{10, 20} {
		catalogtest.Write(t, dir, step, 1)
	}
	inside := filepath.Join(dir, ckptJob)
	for _, tc := range []struct {
		code int
		args []string
		says string
	}{
		{exitUsage, []string{"log", dir, "-n", "-5"}, "want 1 or more"},
		{exitUsage, []string{"pin", dir + "@10", "--for", "-1h"}, "want some time"},
		{exitUsage, []string{"pin", dir + "@10", "--for", "0s"}, "want some time"},
		{exitFailed, []string{"ls", dir + "/nojob"}, "has no job \"nojob\": it has " + ckptJob},
		{exitFailed, []string{"ls", "--json", dir + "/nojob"}, "has no job"},
		{exitUsage, []string{"cp", dir, inside}, "lies in the root " + dir},
		{exitUsage, []string{"cp", dir, inside + "/sub"}, "lies in the root " + dir},
		{exitUsage, []string{"prune", dir, "--best", "2", "--metric", "los", "--dry-run"}, "no generation of job " + ckptJob + " has that metric: they have loss"},
		{exitUsage, []string{"wait", dir, "--every", "0s"}, "want some time between two looks"},
		{exitOK, []string{"ls", inside}, ckptJob},
		{exitOK, []string{"prune", dir, "--best", "2", "--metric", "loss", "--dry-run"}, "step 20"},
	} {
		expect(t, tc.code, tc.args, tc.says)
	}
	if _, err := os.Stat(filepath.Join(inside, "replicad.json")); err == nil {
		t.Error("there is a root inside of a job")
	}
}
