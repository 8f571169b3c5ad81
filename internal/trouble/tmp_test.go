//go:build cgo

package trouble_test

import (
	"os"
	"testing"
)

// TestTemporaryDirectory: where the demo or a --dev daemon can't keep its files, it says which folder and what to set, and
// leaves no process.
func TestTemporaryDirectory(t *testing.T) {
	demo := []string{"demo", "--plain", "--trainer", "/bin/true"}
	for _, tc := range []struct {
		name string
		dir  func(*testing.T) string
		env  string
		args []string
		says []string
	}{
		{"demo, not writable", readOnly, "TMPDIR", demo, []string{"demo directory", "TMPDIR or --dir"}},
		{"demo, full", func(t *testing.T) string { return full(t, tmpfs(t, "64k")) }, "TMPDIR", demo, []string{"no space", "TMPDIR or --dir"}},
		{"dev daemon, not writable", readOnly, "XDG_STATE_HOME", []string{"daemon", "--dev"}, []string{"dev directory", "set XDG_STATE_HOME"}},
		{"dev daemon, full", func(t *testing.T) string { return full(t, tmpfs(t, "64k")) }, "XDG_STATE_HOME", []string{"daemon", "--dev"}, []string{"no space", "XDG_STATE_HOME"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := tc.dir(t)
			p := spawn(t, tc.args[0], []string{tc.env + "=" + dir}, replicad, tc.args...)
			if code := p.exit(); code == 0 {
				t.Error("exit code 0")
			}
			p.says(append(tc.says, dir)...)
			if left := processesOf(t, dir); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if tc.args[0] == "demo" && e.Name() != "ballast" {
					t.Errorf("%s is left", e.Name())
				}
			}
		})
	}
}
