package leader

import (
	"context"

	"github.com/replicad/replicad/internal/checkpoint"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// Log is the replicated log as the leader needs it: a *consensus.Node.
type Log interface {
	ID() replica.NodeName
	// Leadership says who leads in which term, and whether that is this node.
	Leadership() (leader replica.NodeName, addr string, term uint64, self bool)
	// State is the newest state that was applied here; what it points to is never written again.
	State() lock.View
	// Changes has a value after State or Leadership changed.
	Changes() <-chan struct{}
	// Propose waits until the command was applied, or for ctx; consensus.ErrUnknown: nobody knows whether it will be.
	Propose(ctx context.Context, c replica.Command) (index uint64, out lock.Outcome, err error)
	Voters() []consensus.Voter
	Joining() []consensus.Voter
	AddVoter(ctx context.Context, v consensus.Voter) error
	RemoveVoter(ctx context.Context, name replica.NodeName) error
	MajorityWithout(name replica.NodeName) error
	TransferTo(name replica.NodeName) error
}

// Tier is the durable tier as the leader needs it: a *checkpoint.Store.
type Tier interface {
	Dir() string
	Find(jobName string, job replica.JobID) (found []checkpoint.Found, skipped []checkpoint.Skipped, err error)
	Holds(jobName string, job replica.JobID, g replica.Generation) error
	ReadBack(ctx context.Context, f checkpoint.Found, how checkpoint.How) error
	// Names lists the names that have a directory, Marked the generations of one with their marks, whether or not their files are there, and Look
	// looks at one of them.
	Names() ([]string, error)
	Marked(jobName string) ([]checkpoint.Found, error)
	Look(jobName string, job replica.JobID, g replica.Generation) (checkpoint.Found, error)
	WentOn(jobName string, job replica.JobID, g replica.Generation) error
}
