package consensus

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/replica"
)

// Voter is a member of the Raft cluster.
type Voter struct {
	Name replica.NodeName
	Addr string // host:port of its endpoint
}

// Config is a Node's.
type Config struct {
	ID        replica.NodeName
	Addr      string // host:port of this node's endpoint, as the other voters dial it
	Dir       string // on a local disk that keeps what it has synced: the log is what this node promised
	Voters    []Voter
	Bootstrap bool   // a cluster of Voters may begin here, if the log is empty and all others answer that theirs is too. It may be left on
	Join      bool   // this node is new: it waits with an empty log until the leader's AddVoter
	Memory    Memory // outlives this process, and a log that is lost or put back; nil: none
	Layer     StreamLayer
	Cluster   replica.ClusterID
	Logger    hclog.Logger // nil: none; see NewLogger

	// Required: internal/config has a daemon's. Too short ones elect new leaders when a disk or a CPU hesitates; long ones delay recovery by as much.
	Heartbeat     time.Duration
	Election      time.Duration // at least Heartbeat
	Lease         time.Duration // at most Heartbeat
	WatchdogAfter time.Duration // of one log write or proposal, then leadership is handed over

	digestEvery uint64 // entries; tests have fewer
}

const (
	maxProposals = 256 // under way at once; Propose waits beyond it
	maxUpkeep    = 16

	ioTimeout         = 5 * time.Second // of one message to a peer
	maxPooled         = 3               // idle streams kept to each peer
	acceptBacklog     = 64              // voters are few: more streams than this at once are not theirs
	retainSnapshots   = 2
	snapshotThreshold = 8192
	trailingLogs      = 16384 // an hour of commits at some 4 a second: a voter back within it needs no snapshot
	logCache          = 512
	lockTimeout       = time.Second // for another process to let go of the log
)

func (c Config) withDefaults() Config {
	if c.digestEvery == 0 {
		c.digestEvery = digestEvery
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	return c
}

// Validate reports all faults.
func (c Config) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := replica.CheckName(string(c.ID)); err != nil {
		fault("ID: %w", err)
	}
	if c.Addr == "" || c.Dir == "" || c.Layer == nil {
		fault("Addr, Dir and Layer are required")
	}
	if c.Cluster == (replica.ClusterID{}) {
		fault("Cluster is zero: logs of two clusters could be mixed")
	}
	if c.Bootstrap && c.Join {
		fault("Bootstrap and Join exclude each other")
	}
	seen := make(map[replica.NodeName]bool)
	addrs := make(map[string]bool)
	for _, v := range c.Voters {
		if err := replica.CheckName(string(v.Name)); err != nil {
			fault("Voters: %w", err)
		}
		if v.Addr == "" || seen[v.Name] || addrs[v.Addr] {
			fault("Voters: %q at %q: names and addresses must be set and unique: a majority would be counted wrong", v.Name, v.Addr)
		}
		seen[v.Name], addrs[v.Addr] = true, true
	}
	if c.Bootstrap && !seen[c.ID] {
		fault("Bootstrap: %q is not one of Voters", c.ID)
	}
	if c.WatchdogAfter <= 0 {
		fault("WatchdogAfter is %v: want more than 0, or the leader hands over at each write", c.WatchdogAfter)
	}
	if err := raft.ValidateConfig(c.raft(nil)); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("consensus: %w", err)
	}
	return nil
}

// commitNews is when followers hear, at least, of a commit that no further entry carries, and when a failed call is made again. It does not
// grow with the heartbeat: a commit may wait for that call.
const commitNews = 200 * time.Millisecond

func (c Config) raft(notify chan<- bool) *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = raft.ServerID(c.ID)
	r.HeartbeatTimeout, r.ElectionTimeout, r.LeaderLeaseTimeout = c.Heartbeat, c.Election, c.Lease
	r.CommitTimeout = min(commitNews, c.Heartbeat/2)
	r.BatchApplyCh = false // it would break the timeout of proposals
	r.ShutdownOnRemove = true
	r.TrailingLogs, r.SnapshotThreshold = trailingLogs, snapshotThreshold
	r.NotifyCh = notify
	r.Logger = c.Logger
	r.LogLevel = "WARN"
	r.NoLegacyTelemetry = true
	return r
}
