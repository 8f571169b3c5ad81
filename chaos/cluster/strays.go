package cluster

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AdoptOrphans makes this process the parent of processes whose own parent dies, so that none can hide from the last check.
// The returned function takes that back.
func AdoptOrphans() (release func(), err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("adopt orphans (prctl PR_SET_CHILD_SUBREAPER): %w", err)
	}
	return func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }, nil
}

// Children lists the processes whose parent is pid.
func Children(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []int
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil && parentOf(child) == pid {
			list = append(list, child)
		}
	}
	return list
}

// Descendants lists the processes below pid.
func Descendants(pid int) (list []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		if child, err := strconv.Atoi(e.Name()); err == nil {
			parent := parentOf(child)
			children[parent] = append(children[parent], child)
		}
	}
	for next := children[pid]; len(next) > 0; {
		list = append(list, next...)
		var below []int
		for _, p := range next {
			below = append(below, children[p]...)
		}
		next = below
	}
	return list
}

// parentOf reads a process's parent from /proc; 0 if there is no such process. The name, in parentheses, may hold anything.
func parentOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	return parent
}

// reapStrays kills and waits for every child that is left. It is called when all processes that its caller knows have been
// waited for, so whoever is still a child is an orphan of one of those.
func reapStrays(patience time.Duration) error {
	deadline := time.Now().Add(patience)
	for {
		left := Children(os.Getpid())
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v are left over and do not die", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
