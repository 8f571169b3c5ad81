package operators

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/replica"
)

// Asker is the link on which an order came. Its methods may be called from any goroutine.
type Asker interface {
	// Await has done called with the answer to an order.
	Await(id uint64, done func(control.OperatorReply))
	// Answer sends the answer to an order, and ends Await. Reply sends a refusal of one that nobody awaits.
	Answer(id uint64, r control.OperatorReply)
	Reply(id uint64, r control.OperatorReply)
}

// Owner is the leader around a Room. It calls the room, and the room calls it from inside those calls; no method may wait.
type Owner interface {
	// Now is for what lasts, Date for certificates.
	Now() time.Duration
	Date() time.Time
	View() lock.View
	// Running are the jobs that have not ended, and Job is one of them; nil: it has ended, or is not known.
	Running() []*replica.Job
	Job(replica.JobID) *replica.Job
	// Without is what would become of a running job without a node.
	Without(replica.JobID, replica.NodeName) odds.Survival
	// Begins reports whether a launcher on a node may be about to start ranks of a running job that nobody has run yet.
	Begins(replica.JobID, replica.NodeName) bool
	// Here reports whether the daemon of that life of a node is known to run.
	Here(replica.Node) bool
	// Propose brings a command about a job into the log. done is called with the outcome, later and on the leader's goroutine; nil: nobody waits.
	Propose(ctx context.Context, job replica.JobID, c replica.Command, done func(lock.Outcome, error))
	// Fault is evidence for the recovery of a job.
	Fault(ctx context.Context, job replica.JobID, f replica.Fault)
	// Beside runs something that waits beside the leader, which waits for its end before it ends itself.
	Beside(func())
	// VotersText lists the voters, and VotersChanged logs a change of them; that one may be called from any goroutine.
	VotersText() string
	VotersChanged(text string)
}

// Log is the replicated log: what may be asked of it from any goroutine.
type Log interface {
	ID() replica.NodeName
	State() lock.View
	Propose(ctx context.Context, c replica.Command) (index uint64, out lock.Outcome, err error)
	Voters() []consensus.Voter
	Joining() []consensus.Voter
	AddVoter(ctx context.Context, v consensus.Voter) error
	RemoveVoter(ctx context.Context, name replica.NodeName) error
	MajorityWithout(name replica.NodeName) error
}

// Config is what a room is given. Newest is the newest epoch that was seen of a name's certificates, 0 where none was; it may be called from any
// goroutine. Timeout is how long a command may take before its outcome is unknown.
type Config struct {
	Cluster   replica.ClusterID
	Log       Log
	Authority *Authority
	Newest    func(replica.Role, string) replica.CertEpoch
	Timeout   time.Duration
}

// Room is what operators have under way.
type Room struct {
	owner     Owner
	cluster   replica.ClusterID
	log       Log
	authority *Authority
	newest    func(replica.Role, string) replica.CertEpoch
	timeout   time.Duration
	drains    []*drain
	voting    atomic.Bool // a change of voters is under way
	revoking  atomic.Bool // a revocation is under way
}

// New returns a room with nothing under way.
func New(owner Owner, c Config) *Room {
	return &Room{owner: owner, cluster: c.Cluster, log: c.Log, authority: c.Authority, newest: c.Newest, timeout: c.Timeout}
}

// Busy reports whether something is under way that waits for a time.
func (r *Room) Busy() bool { return len(r.drains) > 0 }

// Resign forgets what is under way: another node leads. Who asked learns of it by the loss of the link.
func (r *Room) Resign() { r.drains = nil }

// Order takes an order that came through a node. Who may not give it is refused, and nothing is done.
func (r *Room) Order(ctx context.Context, node replica.NodeName, from Asker, m control.Order) {
	who := ""
	if m.Verb != control.Voters { // which changes nothing
		var done func(control.OperatorReply)
		var err error
		if who, done, err = r.authority.Admit(node, m, r.owner.Now(), r.owner.Date()); err != nil {
			from.Reply(m.ID, control.Refusal(err.Error()))
			return
		}
		from.Await(m.ID, done)
	}
	r.Operate(ctx, from, m, who)
}

// Operate does what somebody asks. by is empty for what needs nobody's authority.
func (r *Room) Operate(ctx context.Context, from Asker, m control.Order, by string) {
	switch m.Verb {
	case control.Lost:
		r.lostForGood(ctx, from, m)
	case control.Drain:
		r.drain(ctx, from, m)
	case control.Clear:
		r.clearNode(ctx, from, m)
	case control.Voters, control.AddVoter, control.RemoveVoter:
		r.changeVoters(ctx, from, m)
	case control.RevokeNode, control.RevokeOperator:
		r.revoke(ctx, from, m, by)
	default:
		from.Answer(m.ID, control.Refusal(fmt.Sprintf("the leader does not know request %d: are the daemons of one release?", m.Verb)))
	}
}

// Unknown is the text of a request of which nobody knows what became.
func Unknown(err error) string {
	return fmt.Sprintf("the outcome is unknown (%v): check replicad status before you repeat the command", err)
}
