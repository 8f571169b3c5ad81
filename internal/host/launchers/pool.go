package launchers

import (
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Pool is the launchers of a node. It belongs to one goroutine.
type Pool struct {
	owner   Owner
	log     Log
	audit   Audit
	cfg     *config.Config
	cluster replica.ClusterID
	self    replica.NodeName
	all     map[uint64]*launcher // by session peer
	creates map[uint64]*launcher // by request, until the leader has answered; those of launchers that are gone too
	short   shortages
}

// Owner is the daemon around a pool. It calls the pool, and the pool calls it from inside those calls. No method may wait. A method may
// read the pool, and have launchers print something, because the pool is whole at each of these calls.
type Owner interface {
	// Informed reports whether a leader was reached since the daemon's start: jobs can be judged.
	Informed() bool
	Era() replica.Era
	// Known finds a job, and Named one that has not ended; nil: there is none.
	Known(replica.JobID) Job
	Named(string) Job
	// All lists the jobs that are known.
	All() []Job
	// Send sends the leader something. Without a leader it is dropped, because Resend repeats it to the next one.
	Send(msg any)
	// MayCreate reports whether the leader may be asked for one more job of a user now, and counts it.
	MayCreate(user uint32) bool
	// NextRequest is a number above all that it gave before.
	NextRequest() uint64
	// Report sends the leader the node's account of a job, where that has changed.
	Report(replica.JobID)
	// Remark enters the notes that a launcher gives its job.
	Remark(replica.JobID, []replica.Remark)
	// Expects reports whether a process for a rank waits for this daemon: at the rendezvous, or to attach.
	Expects(*replica.Job, replica.Rank) bool
	// Died takes the end of a rank's process.
	Died(replica.JobID, replica.Rank)
	// Brought is the tier that parts for ranks here came from in an epoch, and how long that took; zero: none came.
	Brought(replica.JobID, replica.Epoch) (replica.Tier, time.Duration)
	// HasStore reports whether this node has a durable tier.
	HasStore() bool
	// Halted reports whether a signal has stopped a process, and HaltedChild likewise of a child of another process.
	Halted(pid int, start uint64) bool
	HaltedChild(pid, parent int) bool
}

// Job is this node's part of a job, as its owner has it.
type Job interface {
	Record() *replica.Job
	// Rank is a rank whose claim this node holds, or held.
	Rank(replica.Rank) (Rank, bool)
	// ClosedAt is when this node closed the newest epoch that it has closed.
	ClosedAt() time.Time
	// Launched is the same book for as long as the job is known.
	Launched() *Book
}

// Rank is a rank of this node.
type Rank struct {
	PID     uint64
	Alive   bool
	Stopped bool // it waits in rp_join
	Trains  bool
	Left    bool          // it has finished
	Halted  bool          // a signal has stopped its process
	Ending  bool          // its process may be on its way out
	Initial replica.Epoch // it has sealed the first state of this epoch
	Loaded  replica.Epoch // it has loaded what this epoch goes on from
	Word    replica.Word  // its step word, where it trains
}

// Log takes what an operator should know of.
type Log interface {
	RefusedLauncher(job string, user, pid int, why string)
	Exited(job string, r replica.Rank, pid uint64, status int32)
	StartFailed(job *replica.Job, r replica.Rank, status int32, tries, of int)
	RankNote(job *replica.Job, r replica.Rank, code, text string)
	Note2(job *replica.Job, code, text string)
	Failed(what, subject, why string)
}

// Audit takes who was refused.
type Audit interface {
	Refused(what string, node replica.NodeName, f audit.Fields)
}

// New returns a pool without launchers. Changes of the configuration count at once.
func New(owner Owner, log Log, audit Audit, cfg *config.Config, cluster replica.ClusterID, self replica.NodeName) *Pool {
	return &Pool{owner: owner, log: log, audit: audit, cfg: cfg, cluster: cluster, self: self, all: map[uint64]*launcher{},
		creates: map[uint64]*launcher{}, short: shortages{}}
}

// Gone forgets a launcher, and names its job; false: the peer is none. Its processes are found by their own sessions.
func (p *Pool) Gone(peer uint64) (job string, was bool) {
	l := p.all[peer]
	if l == nil {
		return "", false
	}
	l.withdraw()
	delete(p.all, peer)
	return l.hello.Job, true
}

// Launching reports whether a launcher here waits for the job to be created.
func (p *Pool) Launching(job string) bool {
	for _, l := range p.all {
		if l.hello.Job == job && !l.done {
			return true
		}
	}
	return false
}

// Connected notes that a process for a rank has connected to the daemon.
func (p *Pool) Connected(job string, r replica.Rank) {
	for _, l := range p.all {
		if l.hello.Job == job {
			l.starts.hello(r)
		}
	}
}

// Attached notes that the process of a rank has its arena.
func (p *Pool) Attached(job string, r replica.Rank) {
	for _, l := range p.all {
		if l.hello.Job == job {
			l.starts.attached(r)
		}
	}
}

// Refused notes why the process of a rank gets no arena.
func (p *Pool) Refused(job string, r replica.Rank, why string) {
	for _, l := range p.all {
		if l.hello.Job == job {
			l.starts.refused(r, why, true)
		}
	}
}

// JobOf is the job that a launcher was accepted for, and that has not ended for it; false: none.
func (p *Pool) JobOf(peer uint64) (id replica.JobID, ok bool) {
	l := p.all[peer]
	if l == nil || !l.accepted || l.done {
		return id, false
	}
	return l.job, true
}

// Round sends a launcher what its torchrun agent is to do.
func (p *Pool) Round(peer uint64, round wire.Round) {
	if l := p.all[peer]; l != nil {
		l.send(wire.MRunRound, 0, round.Append(nil))
	}
}

// UnderWay counts the creates that the leader has not answered, and UnderWayOf those of a user.
func (p *Pool) UnderWay() int { return len(p.creates) }

func (p *Pool) UnderWayOf(user uint32) (n int) {
	for _, l := range p.creates {
		if uint32(l.user) == user {
			n++
		}
	}
	return n
}
