package admission

import (
	"iter"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// Owner is the daemon around a gate. It calls the gate, and the gate calls it from inside those calls. No method may wait. A method may
// call the gate in turn, because the gate is whole at each of these calls.
type Owner interface {
	// Informed reports whether a leader was reached since the daemon's start: jobs can be judged.
	Informed() bool
	// Self is this node, in this life of its daemon.
	Self() replica.Holder
	// Known finds a job, and Named one that has not ended; nil: there is none.
	Known(replica.JobID) Job
	Named(string) Job
	// RankOf finds the rank that a session speaks for; a nil job: it speaks for none.
	RankOf(session.Peer) (Job, replica.Rank)
	// Send sends the leader something. Without a leader it is dropped, because Resend repeats it to the next one.
	Send(msg any)
	// May reports whether the pace of a user lets it ask the leader for one thing more of a job now, and counts it.
	May(user uint32, job replica.JobID) bool
	// NextRequest is a number above all that it gave before, and never 0.
	NextRequest() uint64
	// Report sends the leader the node's account of each job, where that has changed.
	Report()
	// Alive reports whether a process runs.
	Alive(pid int, start uint64) bool
	// HandOut makes a process the rank that it has claimed. The keeper has the arena. The owner gives the rank its Answer.
	HandOut(Job, Claimed)
	// HandOutAgain connects a rank whose process has no arena yet, because the daemon before this one has died. The owner gives it its
	// Answer.
	HandOutAgain(j Job, r replica.Rank, p session.Peer, request uint32)
	// Short notes a want that a rank of a job met on this node. MayTry reports whether a process of the job may try again.
	Short(id replica.JobID, r replica.Rank, kind want.Kind, why string, now time.Time)
	MayTry(id replica.JobID, now time.Time) bool
}

// Arenas is the memory of the daemon around a gate, on the same terms. What takes time runs beside the owner: it makes an Event of the end,
// and gives that to Handle.
type Arenas interface {
	// Spec is the arena of a rank, but for its geometry.
	Spec(*replica.Job, replica.Rank) shm.Spec
	// Descriptors is why this node has too few descriptors for an arena, and Room why it has too little memory; nil: there is enough.
	Descriptors() error
	Room(shm.Spec) error
	// Make reserves the memory of an arena of a job.
	Make(id replica.JobID, spec shm.Spec, made func(*shm.Arena, error) Event)
	// Unmap gives memory back that was never an arena of the node.
	Unmap(*shm.Arena)
	// Keep makes an arena of the node of its memory, and has the keeper hold it.
	Keep(a *shm.Arena, key string) *holding.Arena
	// Save has the list of arenas on disk written, with Listed in it.
	Save()
	// Park is Save. Once the keeper and the list have all that they were given, the owner gives done to Handle.
	Park(done Event)
	// Forget gives an arena up: keeper, list, memory.
	Forget(*holding.Arena)
	// HasStore reports whether this node has a durable tier. Regions reads what a rank has in the durable generation that its job opens
	// from; zero: it can't be read, which is logged.
	HasStore() bool
	Regions(j *replica.Job, r replica.Rank, read func(replica.Geometry) Event)
}

// Launchers is the launchers of the node, as far as processes on their way concern them.
type Launchers interface {
	// Launching reports whether a launcher waits for the job to be created.
	Launching(job string) bool
	// Attached notes that the process of a rank has its arena, and Refused why it gets none.
	Attached(job string, r replica.Rank)
	Refused(job string, r replica.Rank, why string)
	// UnderWay counts the creates that the leader has not answered, and UnderWayOf those of a user.
	UnderWay() int
	UnderWayOf(user uint32) int
	// Retries goes over the shortages after which processes may try again, and reports of each whether the node is short no more.
	Retries(now time.Time) iter.Seq[bool]
}

// Desk is the node's half of the rendezvous.
type Desk interface {
	Admit(desk.Peer, desk.Caller)
	Leave(desk.Peer)
}

// Job is this node's part of a job, as its owner has it.
type Job interface {
	Record() *replica.Job
	View() room.JobView
	// Held is a rank whose claim this node holds, or held.
	Held(replica.Rank) (Rank, bool)
	// Retire takes its place from a rank whose process is dead. Its arena stays as a holder, as the last of View().Retired.
	Retire(replica.Rank)
	// Admission is the same book for as long as the job is known.
	Admission() *Book
}

// Rank is a rank of this node.
type Rank struct {
	Incarnation replica.Incarnation
	Arena       *holding.Arena
	PID         int
	Start       uint64
	Peer        session.Peer // nil: it is not connected
	Alive       bool
	Initial     replica.Epoch // it has sealed the first state of this epoch
	Finishing   bool          // its arena is still read in the name of its dead process
}

// Claimed is a process that has its claim, and the arena that is to be its own.
type Claimed struct {
	Rank        replica.Rank
	Incarnation replica.Incarnation
	Arena       *holding.Arena
	Peer        session.Peer
	Request     uint32 // that Answer answers
}

// Event is the end of something that an owner did for its gate. It is the gate's alone to read.
type Event interface{ event() }

// Log takes what an operator should know of.
type Log interface {
	RefusedRank(job string, r replica.Rank, pid int, why string)
	Failed(what, subject, why string)
}

// Audit takes who was refused.
type Audit interface {
	Refused(what string, node replica.NodeName, f audit.Fields)
}
