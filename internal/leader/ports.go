package leader

import (
	"context"
	"errors"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/consensus"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// Config is what a leader needs of its daemon. The functions may be called from any goroutine; where one is missing, what it would
// have known is not known.
type Config struct {
	Log     Log
	Cluster replica.ClusterID
	Node    replica.NodeName // this one, for people
	Timing  config.Timing
	Tier    Tier // nil: no durable tier on this node
	// Encrypts: what is written to it is.
	Encrypts bool
	// DurableWriters is how many nodes write a durable generation at once; 0: config.DefaultDurableWriters.
	DurableWriters int
	Reread         RereadConfig
	// PerUser is what one user may have; zero: the defaults of a configuration.
	PerUser config.PerUser
	Journal *journal.Journal
	Audit   *journal.Auditor
	Refused *control.NoLinks // the links that this node refused lately
	// Answers tells whether a node's daemon answered this one's newest probe; missing: each does.
	Answers func(replica.NodeName) bool
	// Hears is likewise, and nothing less: not one of which nothing is known.
	Hears func(replica.NodeName) bool
	// Quiet tells whether a node and its host have been silent for silent_after; missing: none is.
	Quiet func(replica.NodeName) bool
	// Token is what processes of a job must show; empty: nothing.
	Token func(job string) string
	// Operators names who signed an order, of which the certificate, the bytes and the signature are given.
	Operators func(certificate, message, signature []byte, now time.Time) (name string, epoch replica.CertEpoch, err error)
	// Learn takes in what the log revokes.
	Learn func([]replica.Revocation) (news []replica.Revocation)
	// Standing is this daemon's own part in Raft.
	Standing func() control.Standing
	// Newest is the newest epoch that was seen of a name's certificates; 0: none.
	Newest func(replica.Role, string) replica.CertEpoch
}

// RereadConfig says how durable generations are read, and which of a job's stay.
type RereadConfig struct {
	Back  uint64        // bytes a second, of what nobody has read since it was written; 0: nothing is read
	Every time.Duration // is what was read read again; 0: it is not
	Rate  uint64        // bytes a second, of that; 0: it is not
	Keep  replica.Keep
}

// recoveryTiming is what recovery needs of a configuration's delays.
func recoveryTiming(t config.Timing) recovery.Timing {
	return recovery.Timing{Collect: t.Collect, Settle: t.Settle, Ack: t.Ack, Claim: t.Claim, Start: t.Start,
		HolderGrace: t.HolderGrace, ResumeGrace: t.ResumeGrace, DaemonGrace: t.DaemonGrace, Abandoned: t.Abandoned}
}

// withDefaults fills in what a lone leader does.
func (c Config) withDefaults() Config {
	everybody := func(replica.NodeName) bool { return true }
	if c.Refused == nil {
		c.Refused = new(control.NoLinks)
	}
	if c.PerUser == (config.PerUser{}) {
		c.PerUser = config.Default().PerUser
	}
	if c.Answers == nil {
		c.Answers = everybody
	}
	if c.Hears == nil {
		c.Hears = everybody
	}
	if c.Quiet == nil {
		c.Quiet = func(replica.NodeName) bool { return false }
	}
	if c.Token == nil {
		c.Token = func(string) string { return "" }
	}
	if c.Operators == nil {
		c.Operators = func([]byte, []byte, []byte, time.Time) (string, replica.CertEpoch, error) {
			return "", 0, errors.New("this leader knows no operators")
		}
	}
	if c.Learn == nil {
		c.Learn = func([]replica.Revocation) []replica.Revocation { return nil }
	}
	if c.Standing == nil {
		c.Standing = func() control.Standing { return control.Standing{State: control.Votes} }
	}
	if c.Newest == nil {
		c.Newest = func(replica.Role, string) replica.CertEpoch { return 0 }
	}
	return c
}

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
