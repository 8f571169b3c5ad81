//go:build cgo

package trouble_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestCtrlCEndsTheDemo: SIGINT at a bad moment leaves no process, no memory and no file of the demo behind.
func TestCtrlCEndsTheDemo(t *testing.T) {
	t.Parallel()
	bin := shortDir(t)
	program := filepath.Join(bin, "replicad")
	if err := programs(bin); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		moment string
		says   []string // one after the other
		memory bool     // arenas exist by then
		args   []string
	}{
		{"in the undisturbed run", []string{"committed"}, false, []string{"--steps", "100000"}},
		{"while it trains", []string{"daemons are up", "committed"}, true, []string{"--steps", "80", "--pace", "100ms", "--no-faults"}},
		{"while a node is lost", []string{"daemons are up", "fall silent"}, true, []string{"--steps", "80", "--pace", "100ms", "--faults", "node"}},
	} {
		dir := filepath.Join(bin, "demo")
		p := spawn(t, "demo", nil, program, append([]string{"demo", "--plain", "--seed", "7", "--dir", dir}, tc.args...)...)
		at := 0
		for _, text := range tc.says {
			// On a busy machine the undisturbed run alone outlasts the patience of others.
			p.awaitWithin(10*patience, at, text, func(l line) bool { return strings.Contains(l.text, text) })
			at, _, _ = p.scan(at, func(l line) bool { return strings.Contains(l.text, text) })
			at++
		}
		var before []int
		held := map[string]bool{}
		// A process has no program for a moment as it begins, and on a busy machine that is long: it is looked for again.
		if !poll(t, tc.moment+": processes of which something could be left behind", func() bool {
			before = processesIn(t, bin)
			for _, pid := range before {
				for file := range memoryFiles(pid) {
					held[file] = true
				}
			}
			return len(before) >= 2 && (!tc.memory || len(held) >= 4)
		}) {
			t.Errorf("%s: %d processes with %d memory files ran: nothing could be left behind", tc.moment, len(before), len(held))
		}
		if err := syscall.Kill(-p.PID(), syscall.SIGINT); err != nil { // as a terminal does: to the process group
			t.Fatal(err)
		}
		if code := p.exit(); code != 130 {
			t.Errorf("%s: exit code %d:\n%s", tc.moment, code, p.output())
		}
		if left := processesIn(t, bin); len(left) > 0 {
			t.Errorf("%s: processes %v are left", tc.moment, left)
		}
		for _, pid := range allProcesses(t) {
			for file := range memoryFiles(pid) {
				if held[file] {
					t.Errorf("%s: process %d still has memory file %s", tc.moment, pid, file)
				}
			}
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is left: %v", tc.moment, dir, err)
		}
	}
}

func allProcesses(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processesIn lists the processes whose program lies in dir.
func processesIn(t *testing.T, dir string) (pids []int) {
	t.Helper()
	for _, pid := range allProcesses(t) {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasPrefix(exe, dir+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// memoryFiles are the memory files that a process has mapped or open, by inode. A process that is gone, or another user's, has none.
func memoryFiles(pid int) map[string]bool {
	files := map[string]bool{}
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) > 5 && strings.HasPrefix(f[5], "/memfd:") {
			files[f[4]] = true
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		to, _ := os.Readlink(name)
		var st syscall.Stat_t
		if strings.HasPrefix(to, "/memfd:") && !strings.HasPrefix(to, "/memfd:replicad-promises") && syscall.Stat(name, &st) == nil {
			files[strconv.FormatUint(st.Ino, 10)] = true
		}
	}
	return files
}
