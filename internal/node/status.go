package node

import (
	"github.com/replicad/replicad/replica"
)

// Status is what `replicad status --json` prints: one daemon's view, served as JSON on its admin socket at /status.
type Status struct {
	Version     string                  `json:"version"`
	Cluster     replica.ClusterID       `json:"cluster"`
	Node        replica.NodeName        `json:"node"`
	Incarnation replica.NodeIncarnation `json:"incarnation"`
	Session     replica.Session         `json:"session"`
	Leader      replica.NodeName        `json:"leader"` // empty: none known
	Term        uint64                  `json:"term"`
	IsLeader    bool                    `json:"is_leader"`
	Adopting    bool                    `json:"adopting"`
	KeeperLost  bool                    `json:"keeper_lost"` // until a restart, ranks' memory does not survive this daemon
	// Certificate says that this node's certificate ends within thirty days, or is revoked. Empty: neither.
	Certificate string `json:"certificate,omitempty"`
	// Revoked lists the names whose certificates up to an epoch this node refuses.
	Revoked []RevokedStatus `json:"revoked,omitempty"`
	// GossipKeys are this node's, the one that it speaks with first.
	GossipKeys []GossipKeyStatus `json:"gossip_keys"`
	// DurableSilent is why this node makes no calls to its durable_dir: its file system did not answer. Empty: it did.
	DurableSilent string       `json:"durable_silent,omitempty"`
	Nodes         []NodeStatus `json:"nodes"`
	Jobs          []JobStatus  `json:"jobs"`
	// NoLink says why each voter takes no link of this node, Refused whose links this voter does not take, and why.
	NoLink  []NoLink `json:"no_link,omitempty"`
	Refused []NoLink `json:"refused,omitempty"`
	// From the seal of a replicated part on this node to the news of its commit, in microseconds, over the newest 1,024.
	CommitLagP50US int64 `json:"commit_lag_p50_us"`
	CommitLagP99US int64 `json:"commit_lag_p99_us"`
	// Steps is how well the leader keeps up; missing where it does not answer.
	Steps *StepStatus `json:"leader_steps,omitempty"`
}

// NodeStatus is one registered node.
type NodeStatus struct {
	Name    replica.NodeName `json:"name"`
	Addr    string           `json:"addr"`
	Voter   bool             `json:"voter"`
	State   string           `json:"state"` // "alive", "unobserved" (daemon down, host up), "silent", "unknown"
	Session replica.Session  `json:"session"`
}

// JobStatus is one job. The fields from Waiting on come from the leader and are empty elsewhere.
type JobStatus struct {
	Name      string             `json:"name"`
	ID        replica.JobID      `json:"id"`
	Owner     uint32             `json:"owner"` // the user, by number, that created it
	Phase     string             `json:"phase"`
	Epoch     replica.Epoch      `json:"epoch"`
	Position  replica.Position   `json:"position"`
	Committed replica.Generation `json:"committed"`
	Durable   replica.Generation `json:"durable"` // zero also where the leader does not find it at its durable_dir any more
	Copies    int                `json:"copies"`
	Degraded  bool               `json:"degraded"`
	Unvouched string             `json:"unvouched,omitempty"` // why the state that the job goes on from rests on one rank's word; until the next commit
	Ranks     []RankStatus       `json:"ranks"`
	Naming    bool               `json:"naming,omitempty"` // the ranks have not all named their groups yet
	EndReason string             `json:"end_reason,omitempty"`
	Waiting   []string           `json:"waiting,omitempty"` // who holds up the next commit or plan, and why
	// Uncommitted is how many steps the ranks have made since the commit: what one more fault may cost. AtRisk: it is more than usual.
	Uncommitted replica.Step `json:"uncommitted,omitempty"`
	AtRisk      bool         `json:"at_risk,omitempty"`
	// DurableError is why the newest durable write failed, or why what an earlier one wrote is gone.
	DurableError string    `json:"durable_error,omitempty"`
	Holdings     []Holding `json:"holdings,omitempty"`
	// Parts says which nodes held each part of Committed when it was committed, and have kept their memory since. Holdings is what they
	// reported last, which is not said anew with each step.
	Parts []PartStatus `json:"parts,omitempty"`
	// Offers says how many processes the launchers of each node could still start for this job.
	Offers []OfferStatus `json:"offers,omitempty"`
	// Disputes are the generations that ranks of a group reported different roots of, oldest first.
	Disputes    []DisputeStatus    `json:"disputes,omitempty"`
	Quarantined []replica.NodeName `json:"quarantined,omitempty"` // nodes that are kept out of this job
	LeftOut     string             `json:"left_out,omitempty"`    // which of these fields is not here, since the job is too large for one answer
}

// DisputeStatus is one dispute. With a majority the suspects are those that voted otherwise, without one all who voted.
type DisputeStatus struct {
	Group      replica.GroupID    `json:"group"`
	Step       replica.Step       `json:"step"`
	Generation replica.Generation `json:"generation"`
	Majority   bool               `json:"majority"`
	Suspects   []replica.Rank     `json:"suspects"`
	Votes      []replica.Vote     `json:"votes"`
}

// PartStatus is one part of the committed generation.
type PartStatus struct {
	Part  string             `json:"part"`
	Nodes []replica.NodeName `json:"nodes"`
}

// OfferStatus is what the launchers on a node offer.
type OfferStatus struct {
	Node      replica.NodeName `json:"node"`
	Processes int              `json:"processes"`
	Spare     bool             `json:"spare,omitempty"` // they take only ranks that were lost elsewhere
}

// RankStatus is one rank.
type RankStatus struct {
	Rank        replica.Rank        `json:"rank"`
	Group       replica.GroupID     `json:"group"`
	Node        replica.NodeName    `json:"node"`
	Incarnation replica.Incarnation `json:"incarnation"`
	PID         uint64              `json:"pid,omitempty"`
	Live        replica.Step        `json:"live"`
	State       string              `json:"state"` // "unclaimed", "alive", "stopped", "dead", "unobserved", "left"
}

// Holding says which node holds which generation of which part.
type Holding struct {
	Node       replica.NodeName   `json:"node"`
	Part       string             `json:"part"`
	Generation replica.Generation `json:"generation"`
	Root       replica.Digest     `json:"root"`
	Mirror     bool               `json:"mirror,omitempty"`
}
