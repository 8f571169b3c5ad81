package host

import (
	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/session"
)

// Processes are those of this machine. A process is named by its pid and its start time, because the kernel gives a pid out again.
type Processes interface {
	Alive(pid int, start uint64) bool
	// Kill sends SIGKILL. EPERM is an error, one that has ended is none.
	Kill(pid int, start uint64) error
	// Halted tells whether a signal has stopped the process.
	Halted(pid int, start uint64) bool
	// HaltedChild tells likewise of a child of another process.
	HaltedChild(pid, parent int) bool
	// Mapped is the memory that the process has in reach, in bytes.
	Mapped(pid int) uint64
	// Group is the process' process group.
	Group(pid int) (int, error)
}

// kernel knows the processes that really run.
type kernel struct{}

func (kernel) Alive(pid int, start uint64) bool  { return session.Alive(pid, start) }
func (kernel) Kill(pid int, start uint64) error  { return session.Kill(pid, start) }
func (kernel) Halted(pid int, start uint64) bool { return session.Halted(pid, start) }
func (kernel) HaltedChild(pid, parent int) bool  { return session.HaltedChild(pid, parent) }
func (kernel) Mapped(pid int) uint64             { return session.Mapped(pid) }
func (kernel) Group(pid int) (int, error)        { return unix.Getpgid(pid) }
