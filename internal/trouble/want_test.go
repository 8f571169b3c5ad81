//go:build cgo

package trouble_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// starve leaves a process room for n more descriptors, and returns its limit as it was.
func starve(t *testing.T, pid, n int) (was unix.Rlimit) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	used := make(map[int]bool)
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		used[fd] = true
	}
	limit := 0
	for free := 0; free < n || used[limit]; limit++ { // a number below the limit is free until it is used
		if !used[limit] {
			free++
		}
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(limit), Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	return was
}

// However few descriptors the daemon of a spare has left, the rank that comes to it fails nobody: its process waits, which launcher, status and
// log name, and goes on where the daemon has descriptors again. Where another spare is there, that one has the rank.
func TestASpareWithoutDescriptors(t *testing.T) {
	for _, another := range []bool{false, true} {
		for _, left := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%d left, another spare %v", left, another), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, "n1", "n2", "n3", "n4")
				c.voters(1)
				for _, n := range c.nodes {
					n.start()
				}
				spec := rankSpec{}
				first := c.nodes[0].run("job", 2, spec, "--ranks", "0", "--min-copies", "2")
				second := c.nodes[1].run("job", 2, spec, "--ranks", "1", "--min-copies", "2")
				second.await("step", nil)
				poor, other := c.nodes[2], c.nodes[3]
				spare := poor.run("job", 2, spec, "--spare", "--capacity", "1")
				committed := c.nodes[0].statusWhen(func(s status) bool { return s.job("job").Position.Step > 5 && len(s.job("job").Offers) > 0 }).job("job").Position.Step
				was := starve(t, poor.daemon.PID(), left)

				second.kill()
				spare.awaitText(0, "node n3 is short of descriptors")
				poor.daemon.awaitText(0, "LimitNOFILE")
				c.nodes[0].statusWhen(func(s status) bool {
					return strings.Contains(strings.Join(s.job("job").Waiting, "\n"), "node n3 is short of descriptors")
				})
				has := spare
				if another {
					has = other.run("job", 2, spec, "--spare", "--capacity", "1")
				} else if err := unix.Prlimit(poor.daemon.PID(), unix.RLIMIT_NOFILE, &was, nil); err != nil {
					t.Fatal(err)
				}
				if o := has.awaitFrom(0, "loaded", nil); o.fields["step"].(float64) < float64(committed) {
					t.Errorf("committed %d, and loaded %s", committed, o.text)
				}
				first.awaitFrom(first.mark(), "step", nil)
			})
		}
	}
}
