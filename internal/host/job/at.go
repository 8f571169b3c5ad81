package job

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/growth"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/mirrors"
	"github.com/replicad/replicad/internal/host/push"
	"github.com/replicad/replicad/internal/host/restore"
	"github.com/replicad/replicad/internal/host/writer"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// At is where jobs live: their node, and what they share there.
type At struct {
	Node   Node
	Memory Memory
	Log    *journal.Journal
	Config *config.Config

	Launchers *launchers.Pool
	Admission *admission.Gate
	Growing   *growth.Room
	Restores  *restore.Room
	Mirrors   *mirrors.Room
	Push      *push.Room
	Writer    *writer.Room
}

// Node is what a job asks of its node. Its methods do not wait.
type Node interface {
	Now() time.Time
	// Up is for how long this daemon has run: what pulses and clocks count from.
	Up() time.Duration
	Self() replica.Node
	// Linked tells whether there is a link to a leader, and Unlinked since when there is none, with what it takes to have one.
	Linked() bool
	Unlinked() (since time.Time, remedy string)
	// Send is for the leader. Without a link it is dropped: a job repeats what still matters when it is Linked.
	Send(msg any)
	// Going tells whether this daemon is about to end.
	Going() bool
	// Notify has a room learn of something, and does what follows.
	Notify(to act.Room, ev act.Event)
	// Processes are those of this machine.
	Processes() Processes
	// Watch has the end of a process reported.
	Watch(pid int, start uint64) error
	// FenceDesk has the rendezvous refuse a job's epochs up to this one.
	FenceDesk(replica.JobID, replica.Epoch)
	// EndPushes ends all pushes of a job.
	EndPushes(replica.JobID)
	// Beside runs work beside the node. What it returns comes back to the job; nil: nothing does.
	Beside(job replica.JobID, work func(ctx context.Context) Ending)
	// Recheck reads a copy again, beside the node, and gives it up where it fails its digest: lost is the part of the plan that is lost with it.
	Recheck(job replica.JobID, copy holding.Copy, lost replica.Held)
}

// Ending is the end of what ran beside the node for a job. j is nil where the node has dropped the job meanwhile.
type Ending interface{ End(j *Job) }

// Memory is that of the node. Its methods do not wait.
type Memory interface {
	// Hold makes an arena of the node of its memory, under this key.
	Hold(a *shm.Arena, key string) *holding.Arena
	// Keep gives an arena to the keeper. It has its owner by then: a daemon that died in between would leave one that is nobody's.
	Keep(*holding.Arena)
	// Reserve has the memory of an arena in use touched, beside the node.
	Reserve(*holding.Arena)
	// Forget gives an arena up: keeper, list, memory.
	Forget(*holding.Arena)
	// Save has the list of arenas on disk written anew.
	Save()
	// After has an Ending come back to a job once keeper and list have all that they were given.
	After(replica.JobID, Ending)
}

// Processes are those of this machine. A process is named by its pid and its start time, because the kernel gives a pid out again.
type Processes interface {
	Alive(pid int, start uint64) bool
	// Kill sends SIGKILL. EPERM is an error, one that has ended is none.
	Kill(pid int, start uint64) error
	// Halted tells whether a signal has stopped the process.
	Halted(pid int, start uint64) bool
	// Mapped is the memory that the process has in reach, in bytes.
	Mapped(pid int) uint64
	// Group is the process' process group.
	Group(pid int) (int, error)
}

// send sends the leader something of the job.
func (a *At) send(msg any) { a.Node.Send(msg) }
