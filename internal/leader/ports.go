package leader

import (
	"context"
	"time"

	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/durable/tier"
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

// Tier is the durable tier as the leader needs it: a *tier.Tier.
type Tier interface {
	URL() string
	Find(ctx context.Context, name string, id replica.JobID) (found []tier.Found, skipped []tier.Skipped, err error)
	Holds(ctx context.Context, name string, id replica.JobID, g replica.Generation) (since time.Time, err error)
	ReadBack(ctx context.Context, f tier.Found, how tier.How) error
	// Prune removes what is not kept of a job's generations.
	Prune(ctx context.Context, of tier.Retention) error
	// Names lists the names that have runs, List the generations of one and when each was read, whether or not their files are there, and Look looks
	// at one of them.
	Names(ctx context.Context) ([]string, error)
	List(ctx context.Context, name string) ([]tier.Listed, error)
	Look(ctx context.Context, name string, id replica.JobID, g replica.Generation) (tier.Found, error)
	// Keep pins a generation for good.
	Keep(ctx context.Context, name string, id replica.JobID, g replica.Generation, why string) error
	// Resume takes a run for a fleet that goes on from a generation, with the epoch behind one, or a later one. tier.ErrFenced: another fleet does so
	// at this moment.
	Resume(ctx context.Context, f tier.Found, cluster replica.ClusterID, fleet string, was replica.Epoch) (tier.Resumed, error)
	// Commit makes a generation exist that nodes have written out of their spools.
	Commit(ctx context.Context, a tier.Attempt, said tier.Said, roots map[replica.Part]replica.Digest, objects []replica.Stored) error
}
