package control

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/replicad/replicad/internal/wire"
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
	KeeperLost  bool                    `json:"keeper_lost"` // until another keeper has taken its place, ranks' memory does not survive this daemon
	// LogUnwritten says that lines of this daemon's log could not be written, and the remedy. Empty: the newest was.
	LogUnwritten string `json:"log_unwritten,omitempty"`
	// FormerKeepers are the keepers of former lives of this node that still run and hold memory that nobody can use, with the remedy.
	FormerKeepers []string `json:"former_keepers,omitempty"`
	// Scrubbed is what this daemon has read again of the copies that lie here.
	Scrubbed ScrubStatus `json:"scrubbed"`
	// Certificate says that this node's certificate ends within thirty days, or is revoked. Empty: neither.
	Certificate string `json:"certificate,omitempty"`
	// Revoked lists the names whose certificates up to an epoch this node refuses.
	Revoked []RevokedStatus `json:"revoked,omitempty"`
	// PassedOver counts the revocations that this node has heard of and does not believe.
	PassedOver []PassedOver `json:"revocations_passed_over,omitempty"`
	// GossipKeys are this node's, the one that it speaks with first.
	GossipKeys []GossipKeyStatus `json:"gossip_keys"`
	// GossipUnknown are registered nodes whose daemons answer and of whose gossip keys this node hears nothing: they are in no list of GossipKeys.
	GossipUnknown []replica.NodeName `json:"gossip_unknown,omitempty"`
	// Warnings say what is wrong at this daemon's ports and limits, and what to do about it.
	Warnings []string `json:"warnings,omitempty"`
	// LateMS is how long this daemon, a voter, waited for a core at the worst within the last 20 s, in milliseconds.
	LateMS int64 `json:"late_ms,omitempty"`
	// Leaving is why this daemon, which was asked to end, waits. Empty: it was not asked, or does not wait.
	Leaving string `json:"leaving,omitempty"`
	// DurableSilent is why this node makes no calls to its durable_dir: its file system did not answer. Empty: it did.
	DurableSilent string       `json:"durable_silent,omitempty"`
	Nodes         []NodeStatus `json:"nodes"`
	// Voters are the nodes in Raft's present configuration, by name, and which of them vote: the leader's word, or where none answers what this node
	// knows by itself.
	Voters []VoterStatus `json:"voters,omitempty"`
	Jobs   []JobStatus   `json:"jobs"`
	// NoLink says why each voter takes no link of this node, Refused whose links this voter does not take, and why.
	NoLink  []NoLink `json:"no_link,omitempty"`
	Refused []NoLink `json:"refused,omitempty"`
	// From the seal of a replicated part on this node to the news of its commit, in microseconds, over the newest 1,024.
	CommitLagP50US int64 `json:"commit_lag_p50_us"`
	CommitLagP99US int64 `json:"commit_lag_p99_us"`
	// Steps is how well the leader keeps up; missing where it does not answer.
	Steps *StepStatus `json:"leader_steps,omitempty"`
	// Accounts is what each user has of what all share.
	Accounts []AccountStatus `json:"accounts,omitempty"`
	// Network is how state moves to and from this node.
	Network NetworkStatus `json:"network"`
	// Sizes is what ranks on this node registered: of each job the rank with the largest state.
	Sizes []SizeStatus `json:"sizes,omitempty"`
}

// SizeStatus is a rank's state, in bytes.
type SizeStatus struct {
	Job        replica.JobID `json:"job"`
	Trained    uint64        `json:"trained_bytes"` // captured at each step, equal in its group, changed by updates alone
	Common     uint64        `json:"common_bytes"`  // the same, but changed at any time
	Frozen     uint64        `json:"frozen_bytes"`  // kept once
	Own        uint64        `json:"own_bytes"`     // captured at each step, the rank's alone
	Slots      int           `json:"slots"`
	ChunkBytes uint32        `json:"chunk_bytes"`
}

// NetworkStatus is a node's account of the state that it moves, since its daemon began.
type NetworkStatus struct {
	Sent     uint64          `json:"sent_bytes"`
	Received uint64          `json:"received_bytes"`
	Peers    []TrafficStatus `json:"peers"`
	// Paths are the addresses of the other nodes, as this one meets them.
	Paths []PathStatus `json:"paths"`
	// HeldTo is how many bytes a second may leave this node while ranks train here, for the transfers under way; 0: nothing is held back. HeldWhy says why.
	HeldTo  float64  `json:"held_to_bytes_per_second,omitempty"`
	HeldWhy string   `json:"held_why,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what makes it slower than it could be, and the remedies
}

// TrafficStatus is what a node moved to and from another over one transport. Of those that it has to a peer a node takes the one that moves most;
// the others serve while that one connects, or fails.
type TrafficStatus struct {
	Peer     replica.NodeName `json:"peer"`
	Over     string           `json:"over"` // "TCP" or "QUIC"
	Fetched  uint64           `json:"fetched_bytes"`
	Pushed   uint64           `json:"pushed_bytes"`
	Rate     float64          `json:"bytes_per_second"` // of the newest exchange of a mebibyte or more; 0: there was none
	Failures int              `json:"failures"`
	Why      string           `json:"why,omitempty"` // of the newest failure
	WhyAt    time.Time        `json:"why_at,omitzero"`
}

// PathStatus is one address of another node: what its newest probe met, and the state that moved over connections that the asked node
// opened to it.
type PathStatus struct {
	Peer     replica.NodeName `json:"peer"`
	Addr     string           `json:"addr"`
	State    string           `json:"state"`    // "alive", "adopting", "unobserved" (daemon down, host up), "silent", "unknown" (not probed yet)
	ProbeUS  int64            `json:"probe_us"` // the newest answered probe took so many microseconds; 0: none was
	Sent     uint64           `json:"sent_bytes"`
	Received uint64           `json:"received_bytes"`
	Rate     float64          `json:"bytes_per_second"` // of the newest exchange of a mebibyte or more over one connection; 0: there was none
}

// ScrubStatus counts from the daemon's start.
type ScrubStatus struct {
	Bytes uint64 `json:"bytes"` // that were held against their digests
	Bad   uint64 `json:"bad"`   // copies that failed: they were given up
}

// NodeStatus is one registered node.
type NodeStatus struct {
	Name    replica.NodeName `json:"name"`
	Addr    string           `json:"addr"`
	Voter   bool             `json:"voter"`           // it has a vote in Raft's present configuration
	Votes   bool             `json:"votes,omitempty"` // and can give it now, as far as it is known
	State   string           `json:"state"`           // "alive", "unobserved" (daemon down, host up), "silent", "unknown"
	Session replica.Session  `json:"session"`
	Revoked bool             `json:"revoked,omitempty"` // the leader has seen no certificate of it that is good
}

// JobStatus is one job. The fields from Waiting on come from the leader; elsewhere most are empty.
type JobStatus struct {
	Name      string             `json:"name" cbor:"1,keyasint"`
	ID        replica.JobID      `json:"id" cbor:"2,keyasint"`
	Owner     uint32             `json:"owner" cbor:"3,keyasint"` // the user, by number, that created it
	Phase     string             `json:"phase" cbor:"4,keyasint"`
	Epoch     replica.Epoch      `json:"epoch" cbor:"5,keyasint"`
	Position  replica.Position   `json:"position" cbor:"6,keyasint"`
	Committed replica.Generation `json:"committed" cbor:"7,keyasint"`
	Durable   replica.Generation `json:"durable" cbor:"8,keyasint"` // zero also where the leader does not find it at its durable_dir any more
	Copies    int                `json:"copies" cbor:"9,keyasint"`
	Degraded  bool               `json:"degraded" cbor:"10,keyasint"`
	Unvouched string             `json:"unvouched,omitempty" cbor:"11,keyasint"` // why the state that the job goes on from rests on one rank's word; until the next commit
	Ranks     []RankStatus       `json:"ranks" cbor:"12,keyasint"`
	Naming    bool               `json:"naming,omitempty" cbor:"13,keyasint"` // the ranks have not all named their groups yet
	EndReason string             `json:"end_reason,omitempty" cbor:"14,keyasint"`
	Waiting   []string           `json:"waiting,omitempty" cbor:"15,keyasint"` // who holds up the next commit or plan, and why
	// Uncommitted is how many steps the ranks have made since the commit: what one more fault may cost. AtRisk: it is above three cadences.
	// Where no leader answers the node says both, and in Waiting for how long.
	Uncommitted replica.Step `json:"uncommitted,omitempty" cbor:"16,keyasint"`
	AtRisk      bool         `json:"at_risk,omitempty" cbor:"17,keyasint"`
	// DurableError is why the newest durable write failed, or why what an earlier one wrote is gone.
	DurableError string    `json:"durable_error,omitempty" cbor:"18,keyasint"`
	Holdings     []Holding `json:"holdings,omitempty" cbor:"19,keyasint"`
	// Parts says which nodes hold each part of Committed: those that held it when it was committed and have kept their memory since, and those
	// that got it later. Holdings is what they reported last, which is not said anew with each step.
	Parts []PartStatus `json:"parts,omitempty" cbor:"20,keyasint"`
	// Losses says what would become of the job at the loss of a process, of each registered node, and of each failure domain that some of them
	// share. They count on nothing of the nodes in Silent. Empty before the first commit.
	Losses []LossStatus       `json:"losses,omitempty" cbor:"21,keyasint"`
	Silent []replica.NodeName `json:"silent,omitempty" cbor:"22,keyasint"`
	// Odds count the ways to lose one, two and three nodes at once, beyond those in Silent, of the nodes that hold a part of Committed or vote: after how many
	// of them memory alone would have every committed step, with a majority of the voters. Empty while the job is not open.
	Odds []OddsStatus `json:"odds,omitempty" cbor:"27,keyasint"`
	// Offers says how many processes the launchers of each node could still start for this job.
	Offers []OfferStatus `json:"offers,omitempty" cbor:"23,keyasint"`
	// Disputes are the generations that ranks of a group reported different roots of, oldest first.
	Disputes    []DisputeStatus    `json:"disputes,omitempty" cbor:"24,keyasint"`
	Quarantined []replica.NodeName `json:"quarantined,omitempty" cbor:"25,keyasint"` // nodes that are kept out of this job
	LeftOut     string             `json:"left_out,omitempty" cbor:"26,keyasint"`    // which of these fields is not here, since the job is too large for one answer
	// Commits is how often the open epoch commits lately; missing before it has committed a few times.
	Commits *CommitStatus `json:"commits,omitempty" cbor:"28,keyasint"`
	// Stalled says that the job trains and nothing is committed any more, which part waits for whom, what was done about it and what one more fault
	// would cost. Degraded is true meanwhile: steps since the commit have too few copies.
	Stalled string `json:"stalled,omitempty" cbor:"29,keyasint"`
	// WentBack says that the job goes on from before a step that was committed, and why; until it has committed as far again.
	WentBack string `json:"went_back,omitempty" cbor:"30,keyasint"`
	// Lacks is what copies lack, by the ranks' own word: a restart is not the same run.
	Lacks []replica.Lacking `json:"lacks,omitempty" cbor:"31,keyasint,omitempty"`
	// Resumed names the durable generation that the present epoch went on from, and those that were passed over; empty: it went on from memory, or from
	// its beginning.
	Resumed string `json:"resumed,omitempty" cbor:"36,keyasint,omitempty"`
	// Undurable tells that what is committed is to be on disk and is not yet. Stopped is why the job was stopped; empty: it was not. Ending: it ends
	// once Committed is on disk.
	Undurable bool   `json:"undurable,omitempty" cbor:"32,keyasint,omitempty"`
	Stopped   string `json:"stopped,omitempty" cbor:"33,keyasint,omitempty"`
	Ending    bool   `json:"ending,omitempty" cbor:"34,keyasint,omitempty"`
	// DurablePace is how often durable writes are due, with its working. Empty: never.
	DurablePace string `json:"durable_pace,omitempty" cbor:"35,keyasint,omitempty"`
	// DurableAgeMS is how long ago the newest durable generation was written, by its store's clock; 0: there is none, or nobody knows.
	DurableAgeMS uint64 `json:"durable_age_ms,omitempty" cbor:"37,keyasint,omitempty"`
	// DurableEnded tells that nothing more is written, since another fleet owns the run: DurableError says which, and the ways out.
	DurableEnded bool `json:"durable_ended,omitempty" cbor:"38,keyasint,omitempty"`
	// From is the generation of another run that the job began with; nil: none.
	From *replica.Origin `json:"from,omitempty" cbor:"39,keyasint,omitempty"`
}

// CommitStatus is how often a job commits, over its newest commits.
type CommitStatus struct {
	Count   int           `json:"count" cbor:"1,keyasint"` // commits, after the first that is looked at
	Steps   replica.Step  `json:"steps" cbor:"2,keyasint"` // that these came forward
	StepUS  int64         `json:"step_us" cbor:"3,keyasint"`
	LagUS   int64         `json:"lag_us" cbor:"4,keyasint"`            // from the first word of a step's seal to its commit
	Slowest *MirrorStatus `json:"slowest,omitempty" cbor:"5,keyasint"` // the mirror that commits wait for; missing where they wait for none
	Why     string        `json:"why,omitempty" cbor:"6,keyasint"`     // commits come more seldom than the cadence asks for
}

// Every is how many steps lie from one commit to the next.
func (s CommitStatus) Every() float64 { return float64(s.Steps) / float64(max(s.Count, 1)) }

// MirrorStatus is how long a mirror takes.
type MirrorStatus struct {
	Part   string           `json:"part" cbor:"1,keyasint"`
	Node   replica.NodeName `json:"node" cbor:"2,keyasint"`
	TookUS int64            `json:"took_us" cbor:"3,keyasint"` // from its maker's seal to the mirror's
}

// DisputeStatus is one dispute. With a majority the suspects are those that voted otherwise, without one all who voted.
type DisputeStatus struct {
	Group      replica.GroupID    `json:"group" cbor:"1,keyasint"`
	Step       replica.Step       `json:"step" cbor:"2,keyasint"`
	Generation replica.Generation `json:"generation" cbor:"3,keyasint"`
	Majority   bool               `json:"majority" cbor:"4,keyasint"`
	Suspects   []replica.Rank     `json:"suspects" cbor:"5,keyasint"`
	Votes      []replica.Vote     `json:"votes" cbor:"6,keyasint"`
}

// PartStatus is one part of the committed generation.
type PartStatus struct {
	Part  string             `json:"part" cbor:"1,keyasint"`
	Nodes []replica.NodeName `json:"nodes" cbor:"2,keyasint"`
}

// LossStatus is what a loss would come to, were it now.
type LossStatus struct {
	Of     string             `json:"of" cbor:"1,keyasint"`            // "process", "node a", "rack r1"
	Nodes  []replica.NodeName `json:"nodes" cbor:"2,keyasint"`         // that would be lost; none: a process alone, which its node starts again
	Resume replica.Generation `json:"resume" cbor:"3,keyasint"`        // the newest generation that the memory of the others would have whole; zero: none
	Why    []string           `json:"why,omitempty" cbor:"4,keyasint"` // the job would not go on by itself from memory; empty: it would
}

// OddsStatus is one row of the odds: of Ways to lose Lost of Of nodes, Survive keep every committed step in memory.
type OddsStatus struct {
	Lost    int    `json:"lost" cbor:"1,keyasint"`
	Of      int    `json:"of" cbor:"2,keyasint"`
	Ways    uint64 `json:"ways" cbor:"3,keyasint"`
	Survive uint64 `json:"survive" cbor:"4,keyasint"`
}

// OfferStatus is what the launchers on a node offer.
type OfferStatus struct {
	Node      replica.NodeName `json:"node" cbor:"1,keyasint"`
	Processes int              `json:"processes" cbor:"2,keyasint"`
	Spare     bool             `json:"spare,omitempty" cbor:"3,keyasint"` // they take only ranks that were lost elsewhere
}

// RankStatus is one rank.
type RankStatus struct {
	Rank        replica.Rank        `json:"rank" cbor:"1,keyasint"`
	Group       replica.GroupID     `json:"group" cbor:"2,keyasint"`
	Node        replica.NodeName    `json:"node" cbor:"3,keyasint"`
	Incarnation replica.Incarnation `json:"incarnation" cbor:"4,keyasint"`
	PID         uint64              `json:"pid,omitempty" cbor:"5,keyasint"`
	Live        replica.Step        `json:"live" cbor:"6,keyasint"`
	State       string              `json:"state" cbor:"7,keyasint"` // "unclaimed", "alive", "stopped", "dead", "unobserved", "left"
}

// Holding says which node holds which generation of which part.
type Holding struct {
	Node       replica.NodeName   `json:"node" cbor:"1,keyasint"`
	Part       string             `json:"part" cbor:"2,keyasint"`
	Generation replica.Generation `json:"generation" cbor:"3,keyasint"`
	Root       replica.Digest     `json:"root" cbor:"4,keyasint"`
	Mirror     bool               `json:"mirror,omitempty" cbor:"5,keyasint"`
}

// GossipKeyStatus is a gossip key, by its fingerprint, and who lacks it and speaks with it among the nodes that live and say so in their
// gossip.
type GossipKeyStatus struct {
	Fingerprint string             `json:"fingerprint"`
	Primary     bool               `json:"primary"` // this node speaks with it
	Missing     []replica.NodeName `json:"missing,omitempty"`
	SpokenBy    []replica.NodeName `json:"spoken_by,omitempty"` // other nodes
}

// RevokedStatus is a name whose certificates up to an epoch are refused.
type RevokedStatus struct {
	Role  string            `json:"role"` // "node" or "operator"
	Name  string            `json:"name"`
	Epoch replica.CertEpoch `json:"epoch"`
}

// PassedOver are revocations of one operator that count for nothing on a node.
type PassedOver struct {
	Operator string    `json:"operator"` // as the certificate says; empty: it names none
	Count    int       `json:"count"`
	Of       string    `json:"of"`  // the newest: "node b, up to epoch 1764000000"
	Why      string    `json:"why"` // it is not believed
	At       time.Time `json:"at"`  // it was heard first
}

// NoLink is a link between a node and a voter that failed lately.
type NoLink struct {
	Node        replica.NodeName        `json:"node"` // the other end
	Incarnation replica.NodeIncarnation `json:"incarnation,omitempty"`
	Why         string                  `json:"why"` // it failed last
	Tries       int                     `json:"tries"`
	Since       time.Time               `json:"since"`
}

// StepStatus is how well the leader's one goroutine keeps up, since its daemon started.
type StepStatus struct {
	BudgetMS   int64  `json:"budget_ms" cbor:"1,keyasint"`
	OverBudget uint64 `json:"over_budget" cbor:"2,keyasint"` // steps that took longer
	LongestMS  int64  `json:"longest_ms" cbor:"3,keyasint"`
	Longest    string `json:"longest,omitempty" cbor:"4,keyasint"` // what it was for
	LongestJob string `json:"longest_job,omitempty" cbor:"5,keyasint"`
}

// LeaderStatus is the leader's part of the picture.
type LeaderStatus struct {
	Jobs    []JobStatus        `json:"jobs" cbor:"1,keyasint"`
	Steps   StepStatus         `json:"steps" cbor:"2,keyasint"`
	Revoked []replica.NodeName `json:"revoked,omitempty" cbor:"3,keyasint"` // registered nodes of which it has seen no certificate that is good

	Accounts []AccountStatus `json:"accounts,omitempty" cbor:"4,keyasint"`
	// Voters are the nodes in Raft's present configuration, by name.
	Voters []VoterStatus `json:"voters,omitempty" cbor:"5,keyasint,omitempty"`
}

// AccountStatus is what a user has of what all users share, and may have. Sessions and requests are those of the node that was asked.
type AccountStatus struct {
	User           uint32 `json:"user" cbor:"1,keyasint"`
	Jobs           int    `json:"jobs" cbor:"2,keyasint"`
	MostJobs       int    `json:"most_jobs" cbor:"3,keyasint"`
	Ranks          int    `json:"ranks" cbor:"4,keyasint"`
	MostRanks      int    `json:"most_ranks" cbor:"5,keyasint"`
	Rendezvous     int    `json:"rendezvous_bytes" cbor:"6,keyasint"`
	MostRendezvous int    `json:"most_rendezvous_bytes" cbor:"7,keyasint"`
	Sessions       int    `json:"sessions" cbor:"8,keyasint"`
	MostSessions   int    `json:"most_sessions" cbor:"9,keyasint"`
	// Requests are what this node asked the leader for the user in the newest whole tenth of a second; further ones waited.
	Requests     int `json:"requests" cbor:"10,keyasint,omitempty"`
	MostRequests int `json:"most_requests" cbor:"11,keyasint,omitempty"`
}

// Here is what a node counts of its users.
type Here struct {
	Sessions map[int]int    // that each user has
	Requests map[uint32]int // to the leader, in a tenth of a second

	MostSessions, MostRequests int
}

// AddTo adds it to what the leader says.
func (h Here) AddTo(leads []AccountStatus) []AccountStatus {
	all := slices.Clone(leads)
	has := func(user uint32) {
		if !slices.ContainsFunc(all, func(a AccountStatus) bool { return a.User == user }) {
			all = append(all, AccountStatus{User: user})
		}
	}
	for user := range h.Sessions {
		has(uint32(user))
	}
	for user := range h.Requests {
		has(user)
	}
	for i := range all {
		a := &all[i]
		a.Sessions, a.MostSessions, a.Requests, a.MostRequests = h.Sessions[int(a.User)], h.MostSessions, h.Requests[a.User], h.MostRequests
	}
	slices.SortFunc(all, func(a, b AccountStatus) int { return cmp.Compare(a.User, b.User) })
	return all
}

// MaxStatus caps an answer to status, in bytes as it is sent.
const MaxStatus = MaxLinkFrame / 2

// leaveOutFrom is of how many ranks a job is large: something may be left out of its status.
const leaveOutFrom = 256

// maxListed caps each list of an answer: who reads it takes no longer ones.
const maxListed = replica.MaxRanks

// Fit is the answer as it can be sent. Of jobs so large that it would not pass, what takes the most room is left out, and they say so.
func (s LeaderStatus) Fit() LeaderStatus {
	s.Jobs = slices.Clone(s.Jobs)
	for i := range s.Jobs {
		s.Jobs[i].readable()
	}
	for _, less := range []func(*JobStatus) string{
		func(j *JobStatus) string { j.Holdings = nil; return "holdings" },
		func(j *JobStatus) string { j.Parts = nil; return "holdings, parts" },
		func(j *JobStatus) string { j.Ranks = []RankStatus{}; return "holdings, parts, ranks" },
		func(j *JobStatus) string { j.Losses = nil; return "holdings, parts, ranks, losses" },
	} {
		if b, err := wire.Marshal(s); err == nil && len(b) <= MaxStatus && !slices.ContainsFunc(s.Jobs, JobStatus.tooLong) {
			return s
		}
		for i := range s.Jobs {
			if len(s.Jobs[i].Ranks) > leaveOutFrom || s.Jobs[i].LeftOut != "" || s.Jobs[i].tooLong() {
				s.Jobs[i].LeftOut = less(&s.Jobs[i])
			}
		}
	}
	return s
}

func (j JobStatus) tooLong() bool {
	return max(len(j.Holdings), len(j.Parts), len(j.Ranks), len(j.Losses)) > maxListed
}

// readable replaces what is no UTF-8 in texts that may quote a file's name: a link would end with such a message.
func (j *JobStatus) readable() {
	for _, s := range []*string{&j.EndReason, &j.DurableError, &j.Unvouched, &j.Stalled, &j.WentBack, &j.Resumed} {
		*s = Readable(*s)
	}
	j.Waiting = slices.Clone(j.Waiting)
	for i := range j.Waiting {
		j.Waiting[i] = Readable(j.Waiting[i])
	}
}

// Readable is a text as a message may carry it: what is no UTF-8 is replaced.
func Readable(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// StatusOf is what the log says of a job, and what the nodes reported of it; nil: nothing is known of that.
func StatusOf(job *replica.Job, reports map[replica.NodeName]replica.NodeReport) JobStatus {
	s := JobStatus{Name: job.Name, ID: job.ID, Owner: job.Owner, Phase: job.Phase.String(), Epoch: job.Epoch, Position: job.Position, Committed: job.Committed, Durable: job.Durable,
		Copies: job.Copies, Degraded: job.Degraded, EndReason: job.EndReason, Ranks: []RankStatus{}, Quarantined: job.Quarantined, Naming: job.Naming != nil, From: job.From}
	if held := job.Held(); job.Phase == replica.Open && held < s.Copies { // a copy was lost since the commit
		s.Copies, s.Degraded = held, true
	}
	if p := job.Plan; p != nil && p.Unvouched && job.Position.Step <= p.Generation.Step {
		s.Unvouched = p.Reason
	}
	s.WentBack, s.Undurable = wentBack(job), job.Undurable()
	if p := job.Plan; p != nil {
		s.Resumed = p.Resumed
	}
	if stop := job.Stop; stop != nil {
		s.Stopped, s.Ending = stop.Reason, stop.End
	}
	s.Lacks = replica.LackingNow(job, reports)
	for _, d := range job.Disputed {
		s.Disputes = append(s.Disputes, DisputeStatus{Group: d.Group, Step: d.Generation.Step, Generation: d.Generation, Majority: d.Majority(), Suspects: d.Suspects, Votes: d.Votes})
	}
	said := map[replica.Rank]replica.RankReport{}
	for node, rep := range reports {
		for _, rr := range rep.Ranks {
			if int(rr.Rank) < len(job.Ranks) && job.Ranks[rr.Rank].Node == node && job.Ranks[rr.Rank].Incarnation == rr.Incarnation {
				said[rr.Rank] = rr
			}
		}
	}
	for r, c := range job.Ranks {
		rs := RankStatus{Rank: replica.Rank(r), Node: c.Node, Incarnation: c.Incarnation, State: "unobserved"}
		if r < len(job.Layout.Groups) {
			rs.Group = job.Layout.Groups[r]
		}
		if c.Incarnation == 0 {
			rs.State = "unclaimed"
		}
		if rr, ok := said[rs.Rank]; ok {
			rs.PID, rs.Live, rs.State = rr.PID, rr.Live.Step(), rankState(rr)
		}
		s.Ranks = append(s.Ranks, rs)
	}
	for node, rep := range reports {
		for _, h := range rep.Parts {
			s.Holdings = append(s.Holdings, Holding{Node: node, Part: h.Part.String(), Generation: h.Generation, Root: h.Root, Mirror: h.Mirror})
		}
	}
	slices.SortFunc(s.Holdings, func(a, b Holding) int {
		if c := strings.Compare(a.Part, b.Part); c != 0 {
			return c
		}
		if c := a.Generation.Compare(b.Generation); c != 0 {
			return c
		}
		return strings.Compare(string(a.Node), string(b.Node))
	})
	return s
}

// wentBack says how far the job's plan went back over committed steps; empty: it did not, or they are committed again.
func wentBack(job *replica.Job) string {
	p := job.Plan
	if p == nil || p.CommittedLost == 0 || job.Position.Step >= p.Generation.Step+p.CommittedLost {
		return ""
	}
	return p.WentBack()
}

// PartsStatus lists the holders of what is committed.
func PartsStatus(held []replica.PartHolders) (out []PartStatus) {
	for _, p := range held {
		s := PartStatus{Part: p.Part.String(), Nodes: []replica.NodeName{}}
		for _, h := range p.Holders {
			s.Nodes = append(s.Nodes, h.Node)
		}
		out = append(out, s)
	}
	return out
}

// OffersStatus lists the offers by node.
func OffersStatus(reports map[replica.NodeName]replica.NodeReport) (out []OfferStatus) {
	for node, r := range reports {
		if r.Offers > 0 {
			out = append(out, OfferStatus{Node: node, Processes: r.Offers, Spare: r.Spare})
		}
	}
	slices.SortFunc(out, func(a, b OfferStatus) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return out
}

func rankState(r replica.RankReport) string {
	switch {
	case r.Left:
		return "left"
	case !r.Alive:
		return "dead"
	case !r.Attached:
		return "unobserved"
	case r.Stopped:
		return "stopped"
	}
	return "alive"
}
