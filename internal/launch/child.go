package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// Exit statuses of a process that could not be started, as a shell has them.
const (
	statusCannotRun = 126
	statusNotFound  = 127
)

// child is one running process of a rank. It leads a process group, so that what it started goes with it, and the kernel
// kills it when the launcher dies: nobody would report its end then.
type child struct {
	rank  replica.Rank
	seat  seat
	began time.Time // when it was the rank's
	os    *os.Process
	out   *output
	from  int      // the process that it was forked from; 0: it was executed
	place *os.File // what it waits for its rank on; nil: it has one

	killAt   time.Time // when it gets SIGKILL, having been asked to end; zero: not
	signaled bool      // by this launcher: its status says nothing of the program
}

// outcome is how a process ended.
type outcome struct {
	status int32
	ran    time.Duration
}

type exited struct {
	child  *child
	status int32
}

// wait returns the exit code, or 128 + signal, and ends what the process left behind in its group.
func (c *child) wait() int32 {
	state, err := c.os.Wait()
	_ = syscall.Kill(-c.os.Pid, syscall.SIGKILL)
	c.out.finish()
	if err != nil {
		return statusCannotRun
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return statusCannotRun
	case ws.Signaled():
		return 128 + int32(ws.Signal())
	}
	return int32(ws.ExitStatus())
}

func (c *child) pid() uint64 { return uint64(c.os.Pid) }

// origin says where it comes from, for the log.
func (c *child) origin() string {
	if c.from == 0 {
		return ""
	}
	return fmt.Sprintf(", forked from process %d", c.from)
}

// signal sends sig now and arms SIGKILL for later.
func (c *child) signal(sig syscall.Signal, killAt time.Time) {
	c.signaled = true
	_ = syscall.Kill(-c.os.Pid, sig) // its end is noticed by wait, whatever this returns
	if c.killAt = killAt; sig == syscall.SIGKILL {
		c.killAt = time.Time{}
	}
}

func startStatus(err error) int32 {
	if kind := want.OfStart(err); kind != want.Nothing {
		return -int32(kind)
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, syscall.ENOENT) {
		return statusNotFound
	}
	return statusCannotRun
}
