package manners

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Priority is the niceness of a daemon, where the kernel lets it have that: it works little, and what it does late costs an election or a node.
const Priority = -10

// raised tells whether Raise was let.
var raised atomic.Bool

// Raise gives every thread of this process the daemon's priority; later ones have that of the thread which starts them. Bulk work gives it back
// (Lower, Yield).
func Raise() error {
	nice := func(who int) (int, error) {
		is, err := unix.Getpriority(unix.PRIO_PROCESS, who)
		return 20 - is, err // the system call counts from 40 down
	}
	is, err := nice(0)
	if err != nil || is <= Priority { // its unit asked for more
		raised.Store(err == nil)
		return err
	}
	seen := map[string]bool{}
	for more := true; more; { // threads may begin meanwhile
		more = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			if seen[t.Name()] {
				continue
			}
			seen[t.Name()], more = true, true
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				return fmt.Errorf("thread %q: %w", t.Name(), err)
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, tid, Priority); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	raised.Store(true)
	return nil
}

// Lower gives the goroutine, for the rest of its life, a thread with the priority of everybody else: it moves a job's state, and training goes
// before that. In a process that was not raised every thread has it.
func Lower() {
	if raised.Load() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 0)
	}
}
