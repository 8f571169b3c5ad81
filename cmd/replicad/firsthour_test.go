package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The mistakes of the first hour, each by the program itself, in a folder without a daemon: what is said names what to type instead.
func TestTheFirstHour(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"job ls --dev", exitUsage, "unknown verb \"ls\": `replicad status` shows all nodes and jobs"},
		{"job status w --dev", exitUsage, "unknown verb \"status\": `replicad status`"},
		{"job stopp w --dev", exitUsage, "did you mean stop?"},
		{"job show w --dev", exitUsage, "unknown verb \"show\": `replicad status`"},
		{"ckpt rm /x@1", exitUsage, "`replicad ckpt prune`"},
		{"torchrun train.py", exitUsage, "`replicad run --job NAME"},
		{"run --dev --job w --world 1", exitUsage, "no command: want `-- COMMAND"},
		{"run --dev --job é --world 1 -- true", exitUsage, "character 'é' at 0"},
		{"node list --dev", exitUsage, "unknown verb \"list\": `replicad status`"},
		{"node list --config x", exitUsage, "`replicad status`"},
		{"top --dev", exitUsage, "watch -n 1 replicad status"},
		{"logs", exitUsage, "journalctl -u replicad"},
		{"staus --dev", exitUsage, "did you mean status?"},
		{"job --fly", exitUsage, "unknown flag: --fly"},
		{"status w --dev", exitUsage, "status takes no name"},
		{"status --dev --watch", exitUsage, "`watch -n 1 replicad status`"},
		{"status --dev", exitConfig, "start it with `replicad daemon --dev`"},
		{"run --dev --job w --world 1 -- true", exitConfig, "start it with `replicad daemon --dev`"},
		{"run --dev --world 1 -- true", exitUsage, "--job NAME is required"},
		{"run --dev --job w -- true", exitUsage, "--world N is required"},
		{"run --dev --job ll/m --world 1 -- true", exitUsage, "--job: name \"ll/m\""},
		{"run --dev --job w --world 1 -- ./nosuch.py", exitUsage, "./nosuch.py"},
		{"run --socket /none/s --dev --job w --world 2 --slots 9 -- true", exitUsage, "--slots 9"},
	} {
		cmd := exec.CommandContext(t.Context(), self, strings.Fields(tc.args)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CMD_TEST=replicad", "XDG_STATE_HOME="+dir)
		out, _ := cmd.CombinedOutput() // its code is looked at
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(strings.Join(strings.Fields(string(out)), " "), tc.says) {
			t.Errorf("replicad %s: code %d, want %d with %q:\n%s", tc.args, code, tc.code, tc.says, out)
		}
	}
}
