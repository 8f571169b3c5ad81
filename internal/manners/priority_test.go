package manners

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const envRaise = "MANNERS_TEST_RAISE"

// TestRaise: every thread of a daemon has its priority, and goroutines that move state have threads with the ordinary one. In a process of its
// own, since a priority stays.
func TestRaise(t *testing.T) {
	if os.Getenv(envRaise) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestRaise$", "-test.v")
		c.Env = append(os.Environ(), envRaise+"=yes")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if strings.Contains(string(out), "--- SKIP") {
			t.Skip("this user may not raise a priority")
		}
		return
	}
	if err := Raise(); err != nil {
		t.Skip(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		if nice := niceOf(t, tid); nice != Priority {
			t.Errorf("thread %d has niceness %d", tid, nice)
		}
	}
	low, done := make(chan int), make(chan struct{})
	go func() {
		Lower()
		low <- niceOf(t, unix.Gettid())
		<-done
	}()
	if nice := <-low; nice != 0 {
		t.Errorf("a goroutine that moves state has niceness %d", nice)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if nice := niceOf(t, unix.Gettid()); nice != Priority {
		t.Errorf("beside it another one has %d", nice)
	}
	close(done)
}

func niceOf(t *testing.T, tid int) int {
	is, err := unix.Getpriority(unix.PRIO_PROCESS, tid)
	if err != nil {
		t.Error(err)
	}
	return 20 - is
}
