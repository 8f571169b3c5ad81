package host

import (
	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/session"
)

// Processes are those of this machine.
type Processes interface {
	job.Processes
	// HaltedChild tells whether a signal has stopped a child of another process.
	HaltedChild(pid, parent int) bool
}

// kernel knows the processes that really run.
type kernel struct{}

func (kernel) Alive(pid int, start uint64) bool  { return session.Alive(pid, start) }
func (kernel) Kill(pid int, start uint64) error  { return session.Kill(pid, start) }
func (kernel) Halted(pid int, start uint64) bool { return session.Halted(pid, start) }
func (kernel) HaltedChild(pid, parent int) bool  { return session.HaltedChild(pid, parent) }
func (kernel) Mapped(pid int) uint64             { return session.Mapped(pid) }
func (kernel) Group(pid int) (int, error)        { return unix.Getpgid(pid) }
