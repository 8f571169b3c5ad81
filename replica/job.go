package replica

// Layout is which ranks a job has and who replicates whom. It is a field of the epoch: a plan may change it.
type Layout struct {
	World  uint32    `json:"world" cbor:"1,keyasint"`
	Groups []GroupID `json:"groups" cbor:"2,keyasint"` // by rank: its replica group; groups are numbered 0..n-1 without a gap
}

// Options are fixed when a job is created; zero means the default in brackets.
type Options struct {
	MinCopies        int    `json:"min_copies" cbor:"1,keyasint"`         // nodes that must hold each part at a commit [2]
	Cadence          Step   `json:"cadence" cbor:"2,keyasint"`            // a generation each so many steps [1]
	Slots            int    `json:"slots" cbor:"3,keyasint"`              // replicated slots a rank, 2 to 4 [4; a new job's: Layout.DefaultSlots]
	ChunkBytes       uint32 `json:"chunk_bytes" cbor:"4,keyasint"`        // [512 KiB]
	DurableEvery     Step   `json:"durable_every" cbor:"5,keyasint"`      // between durable generations: steps, or as DurableTime and DurableAuto; 0 = never
	PrivateCap       uint64 `json:"private_cap" cbor:"6,keyasint"`        // bytes [64 MiB]
	RequireVotes     bool   `json:"require_votes" cbor:"7,keyasint"`      // forbid plans from a sole producer
	AllowShrink      bool   `json:"allow_shrink" cbor:"9,keyasint"`       // go on with fewer data-parallel replicas
	CollectiveWindow bool   `json:"collective_window" cbor:"10,keyasint"` // a fence makes UPDATING torn at once
	Nondeterministic []bool `json:"nondeterministic" cbor:"11,keyasint"`  // by group; nil: none
	// LoneAhead is by how many steps a generation that one producer alone vouches for must be ahead of the newest vouched one to be
	// resumed at [2]: below it the few steps are computed again. 1: it is always taken; RequireVotes: never.
	LoneAhead Step `json:"lone_ahead,omitempty" cbor:"12,keyasint,omitempty"`
}

// JobPhase is where a job is between epochs.
type JobPhase uint8

// The phases of a job. Legal moves: Opening -> Planned -> Open -> Closed -> Planned -> Open ...; a fault moves Planned to
// Closed and Opening to Begun-again (Opening with a new epoch); a growth moves Open to Opening with a new epoch, and a fault of that Opening to Closed; anything -> Ended.
const (
	Opening JobPhase = 1 // Begin minted Epoch; ranks attach and seal their initial state
	Planned JobPhase = 2 // Plan created Epoch; ranks restore
	Open    JobPhase = 3 // Resume opened Epoch; ranks train
	Closed  JobPhase = 4 // a fault closed Epoch; faults, claims and acknowledgements are collected
	Ended   JobPhase = 5
)

func (p JobPhase) String() string {
	switch p {
	case Opening:
		return "opening"
	case Planned:
		return "planned"
	case Open:
		return "open"
	case Closed:
		return "closed"
	case Ended:
		return "ended"
	}
	return "invalid"
}

// Claimed is who holds a rank.
type Claimed struct {
	Incarnation     Incarnation     `json:"incarnation" cbor:"1,keyasint"` // 0: nobody yet
	Node            NodeName        `json:"node" cbor:"2,keyasint"`
	NodeIncarnation NodeIncarnation `json:"node_incarnation" cbor:"3,keyasint"`
	Nonce           uint64          `json:"nonce,omitempty" cbor:"4,keyasint,omitempty"` // of the Claim that took it: a repeated claim is recognised by it
}

// Holder names a node in one life of its memory.
type Holder struct {
	Node        NodeName        `json:"node" cbor:"1,keyasint"`
	Incarnation NodeIncarnation `json:"incarnation" cbor:"2,keyasint"`
}

// PartRoot is a part of the committed generation: its root and who holds it pinned.
type PartRoot struct {
	Part    Part     `json:"part" cbor:"1,keyasint"`
	Root    Digest   `json:"root" cbor:"2,keyasint"`
	Holders []Holder `json:"holders" cbor:"3,keyasint"`
}

// PartHolders says who holds a part.
type PartHolders struct {
	Part    Part     `json:"part" cbor:"1,keyasint"`
	Holders []Holder `json:"holders" cbor:"2,keyasint"`
}

// Job is the replicated state of one job: what lock.Apply changes and everybody reads. Treat a value as immutable: Apply
// replaces what it changes and never writes through a slice or map of an earlier value.
type Job struct {
	ID      JobID    `json:"id" cbor:"1,keyasint"`
	Name    string   `json:"name" cbor:"2,keyasint"`
	Era     Era      `json:"era" cbor:"3,keyasint"`
	Layout  Layout   `json:"layout" cbor:"4,keyasint"`
	Options Options  `json:"options" cbor:"5,keyasint"`
	Phase   JobPhase `json:"phase" cbor:"6,keyasint"`

	Epoch       Epoch   `json:"epoch" cbor:"7,keyasint"`        // newest minted
	ClosedEpoch Epoch   `json:"closed_epoch" cbor:"8,keyasint"` // highest closed: what fence words are raised to
	Lineage     Lineage `json:"lineage" cbor:"9,keyasint"`

	Position  Position   `json:"position" cbor:"10,keyasint"`  // of the last commit or Resume
	Committed Generation `json:"committed" cbor:"11,keyasint"` // the generation it names; zero before the first
	Parts     []PartRoot `json:"parts" cbor:"12,keyasint"`     // of Committed
	Copies    int        `json:"copies" cbor:"13,keyasint"`    // copies(p): pins each part needs at a commit

	Ranks           []Claimed   `json:"ranks" cbor:"14,keyasint"`                    // by rank
	NextIncarnation Incarnation `json:"next_incarnation" cbor:"15,keyasint"`         // the last one handed out
	GroupGeometry   []Digest    `json:"group_geometry" cbor:"16,keyasint"`           // by group; zero until its first claim
	Faults          []Fault     `json:"faults" cbor:"17,keyasint"`                   // of the newest closed epoch, until Resume
	Plan            *Plan       `json:"plan,omitempty" cbor:"18,keyasint,omitempty"` // of Epoch, while Planned or Open

	Disputed     []Dispute     `json:"disputed,omitempty" cbor:"19,keyasint,omitempty"`
	Condemned    []Generation  `json:"condemned,omitempty" cbor:"20,keyasint,omitempty"`
	Quarantined  []NodeName    `json:"quarantined,omitempty" cbor:"21,keyasint,omitempty"`
	Mirrors      [][]NodeName  `json:"mirrors" cbor:"22,keyasint"`                           // by rank: nodes that mirror its private part (never its own)
	GroupMirrors [][]NodeName  `json:"group_mirrors,omitempty" cbor:"23,keyasint,omitempty"` // by group: nodes that mirror its replicated part
	Durable      Generation    `json:"durable" cbor:"25,keyasint"`                           // newest with a commit marker; zero: none
	Writer       *DurableWrite `json:"writer,omitempty" cbor:"26,keyasint,omitempty"`        // the durable write under way
	Proved       []Holder      `json:"proved,omitempty" cbor:"27,keyasint,omitempty"`        // memory proved lost by an operator, scheduler or another boot id
	Degraded     bool          `json:"degraded" cbor:"28,keyasint"`                          // Copies below MinCopies
	LastIndex    uint64        `json:"last_index" cbor:"29,keyasint"`                        // of the last entry that changed the job
	EndReason    string        `json:"end_reason,omitempty" cbor:"30,keyasint,omitempty"`
	// Naming is by rank the group that its claim named, NoGroup where none has, until all have. The layout then has each rank apart,
	// and nothing is sealed.
	Naming []GroupID `json:"naming,omitempty" cbor:"31,keyasint,omitempty"`
	// OpenedWith is NextIncarnation when the newest epoch was opened: no later process has had state of that epoch.
	OpenedWith Incarnation `json:"opened_with,omitempty" cbor:"36,keyasint,omitempty"`
	// Creator is the node whose launcher asked for the job; empty: nobody knows.
	Creator NodeName `json:"creator,omitempty" cbor:"40,keyasint,omitempty"`
	// Previous is what was committed before a Resume with too few copies, and lies on more nodes: it stays until Committed lies on as
	// many as a commit needs, or a newer generation is committed.
	Previous *Earlier `json:"previous,omitempty" cbor:"32,keyasint,omitempty"`
	// Owner is the user, by number, that created the job: its processes alone, and root's, may be ranks and launchers of it. Users have the same
	// numbers on all nodes.
	Owner uint32 `json:"owner" cbor:"37,keyasint,omitempty"`
	// Former is the step that an earlier run had committed which this one goes on from, as far as the log knew it; 0 once this one has resumed.
	Former Step `json:"former,omitempty" cbor:"44,keyasint,omitempty"`
	// Growth is a growth that was decided and has not resumed yet; GroupGeometry and Recipe are those that it leads to. A fault takes it back.
	Growth *Growth `json:"growth,omitempty" cbor:"45,keyasint,omitempty"`
	// Grown is the epoch of the newest growth that resumed: what was sealed in an epoch before it is laid out otherwise, and nobody can load it.
	Grown Epoch `json:"grown,omitempty" cbor:"46,keyasint,omitempty"`
	// Recipe is how a process gets the regions that the job has now, in the program's own words: a process of this job asks for it before it
	// registers. Empty: the job has never grown.
	Recipe []byte `json:"recipe,omitempty" cbor:"47,keyasint,omitempty"`
	// Stop says that somebody asked for the job to stop: its epoch is closed, and no other begins while it is set.
	Stop *Stop `json:"stop,omitempty" cbor:"48,keyasint,omitempty"`
	// Began is when the run was created, in milliseconds since 1970 by its leader's clock: it is in the name that the durable tier has of it. 0: a
	// record of before has none. Writes is the number of the newest durable write that was begun, and Fleet whose log this is, for the tier's claims.
	Began  uint64 `json:"began,omitempty" cbor:"49,keyasint,omitempty"`
	Writes uint64 `json:"writes,omitempty" cbor:"50,keyasint,omitempty"`
	Fleet  string `json:"fleet,omitempty" cbor:"51,keyasint,omitempty"`
	// From is what the job began with, where that was a generation of another run; nil: its program's own initial state.
	From *Origin `json:"from,omitempty" cbor:"52,keyasint,omitempty"`
}

// Stop is the stop of a job that was asked for. What is committed stays in memory until it is on disk.
type Stop struct {
	Reason string `json:"reason" cbor:"1,keyasint"`
	// End: the job ends as soon as what is committed is on disk. Otherwise it waits for launchers that go on with it.
	End bool `json:"end,omitempty" cbor:"2,keyasint,omitempty"`
}

// MaxRecipe is how many bytes a recipe may have: it is in every whole view of its job.
const MaxRecipe = 64 << 10

// Growth is what a growth that has not resumed yet changes, and what to go back to.
type Growth struct {
	Step       Step     `json:"step" cbor:"1,keyasint"`                       // at which it goes on; it is committed with the regions of before
	Geometries []Digest `json:"geometries" cbor:"2,keyasint"`                 // of before, by group
	Recipe     []byte   `json:"recipe,omitempty" cbor:"3,keyasint,omitempty"` // of before
	Bytes      uint64   `json:"bytes,omitempty" cbor:"4,keyasint,omitempty"`  // that a rank has after it: its seal and its mirrors have time for those
	What       string   `json:"what,omitempty" cbor:"5,keyasint,omitempty"`   // grows, for people
}

// Held is on how many nodes each part of the committed generation lies, by the record, of the copies that a commit needs: fewer than Copies
// where a copy was lost since.
func (j *Job) Held() int {
	n := j.Copies
	for _, p := range j.Parts {
		n = min(n, len(p.Holders))
	}
	return n
}

// Undurable tells whether what the job has committed is to be on disk and is not. The initial state is not worth a write: nobody has trained it.
func (j *Job) Undurable() bool {
	return j.Phase != Ended && j.Options.DurableEvery > 0 && j.Committed.Step > j.Start() && j.Durable != j.Committed
}

// Earlier is a generation that was committed before the present one, with who held its parts.
type Earlier struct {
	Generation Generation `json:"generation" cbor:"1,keyasint"`
	Parts      []PartRoot `json:"parts" cbor:"2,keyasint"`
}

// Dispute is two different roots actually reported for one generation of one group.
type Dispute struct {
	Group      GroupID    `json:"group" cbor:"1,keyasint"`
	Generation Generation `json:"generation" cbor:"2,keyasint"`
	Votes      []Vote     `json:"votes" cbor:"3,keyasint"`
	Suspects   []Rank     `json:"suspects" cbor:"4,keyasint"` // the minority, or all where there is no majority
}

// Majority tells whether some root has a majority: then only those that voted otherwise are suspect.
func (d Dispute) Majority() bool { return len(d.Suspects) < len(d.Votes) }

// Vote finds the vote of a rank; zero if it has none.
func (d Dispute) Vote(r Rank) Vote {
	for _, v := range d.Votes {
		if v.Rank == r {
			return v
		}
	}
	return Vote{}
}

// Vote is the root that a producing rank reported, and who held the rank then, which the state machine fills in.
type Vote struct {
	Rank        Rank        `json:"rank" cbor:"1,keyasint"`
	Root        Digest      `json:"root" cbor:"2,keyasint"`
	Node        NodeName    `json:"node,omitempty" cbor:"3,keyasint,omitempty"`
	Incarnation Incarnation `json:"incarnation,omitempty" cbor:"4,keyasint,omitempty"`
}

// DurableWrite names the generation being written and who writes the commit marker.
type DurableWrite struct {
	Generation Generation `json:"generation" cbor:"1,keyasint"`
	Position   Position   `json:"position" cbor:"2,keyasint"`
	Writer     NodeName   `json:"writer" cbor:"3,keyasint"`
	Shards     []Shard    `json:"shards" cbor:"4,keyasint"`
	// Number tells the write from all others of the run, also of those of the same generation: the log counts them. It is in the names of its files.
	Number uint64 `json:"number,omitempty" cbor:"5,keyasint,omitempty"`
	// Turns: each node waits for the leader's word that it is its turn to give the store anything.
	Turns bool `json:"turns,omitempty" cbor:"6,keyasint,omitempty"`
}

// Shard says which node writes which part.
type Shard struct {
	Part Part     `json:"part" cbor:"1,keyasint"`
	Node NodeName `json:"node" cbor:"2,keyasint"`
	Root Digest   `json:"root" cbor:"3,keyasint"`
}

// Node is a node as it registered last.
type Node struct {
	Name        NodeName          `json:"name" cbor:"1,keyasint"`
	Incarnation NodeIncarnation   `json:"incarnation" cbor:"2,keyasint"`
	Session     Session           `json:"session" cbor:"3,keyasint"`
	Boot        BootID            `json:"boot" cbor:"4,keyasint"`
	Addr        string            `json:"addr" cbor:"5,keyasint"`                       // host:port of its QUIC endpoint
	Labels      map[string]string `json:"labels,omitempty" cbor:"6,keyasint,omitempty"` // failure domains: "host", "rack", "zone"
	Voter       bool              `json:"voter" cbor:"7,keyasint"`
	// Former lists the latest incarnations that were superseded: random numbers don't order, so a late duplicate of an old
	// registration is recognised by them. The state machine fills it in.
	Former []NodeIncarnation `json:"former,omitempty" cbor:"8,keyasint,omitempty"`
	// Addrs are further ways to the same endpoint, host:port each, at most MaxAddrs.
	Addrs []string `json:"addrs,omitempty" cbor:"9,keyasint,omitempty"`
}

// Ways are all addresses of the node's endpoint, Addr first.
func (n Node) Ways() []string { return append([]string{n.Addr}, n.Addrs...) }

// Holder is the node in its present life.
func (n Node) Holder() Holder { return Holder{Node: n.Name, Incarnation: n.Incarnation} }

// Running is a daemon's word that it serves a claim: the process lives, and the daemon has its arena.
type Running struct {
	Job         JobID       `cbor:"1,keyasint"`
	Rank        Rank        `cbor:"2,keyasint"`
	Incarnation Incarnation `cbor:"3,keyasint"`
}

// FaultKind is what was seen.
type FaultKind uint8

// Conditions (process and node death) are re-asserted while the incarnation holds the rank; events end with their epoch.
const (
	ProcessDead FaultKind = 1 // condition
	NodeDead    FaultKind = 2 // condition
	Exception   FaultKind = 3 // events from here on
	Hang        FaultKind = 4
	Torn        FaultKind = 5
	BadDigest   FaultKind = 6
	Health      FaultKind = 7
	Drain       FaultKind = 8  // SIGTERM, drain
	Silent      FaultKind = 9  // no acknowledgement within ack_timeout
	Outvoted    FaultKind = 10 // an event again: a dispute's majority has another root
)

func (k FaultKind) String() string {
	names := [...]string{ProcessDead: "process-dead", NodeDead: "node-dead", Exception: "exception", Hang: "hang", Torn: "torn", BadDigest: "bad-digest", Health: "health", Drain: "drain", Silent: "silent", Outvoted: "outvoted"}
	if k >= ProcessDead && int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// IsCondition tells whether the fault lasts while its incarnation holds the rank.
func (k FaultKind) IsCondition() bool { return k == ProcessDead || k == NodeDead || k == Silent }

// Fault is evidence against one incarnation of a rank, or of a node (Node set, Rank and Incarnation zero).
type Fault struct {
	Epoch           Epoch           `json:"epoch" cbor:"1,keyasint"` // the newest epoch its reporter knew
	Kind            FaultKind       `json:"kind" cbor:"2,keyasint"`
	Rank            Rank            `json:"rank" cbor:"3,keyasint"`
	Incarnation     Incarnation     `json:"incarnation" cbor:"4,keyasint"`
	Node            NodeName        `json:"node,omitempty" cbor:"5,keyasint,omitempty"`
	NodeIncarnation NodeIncarnation `json:"node_incarnation,omitempty" cbor:"6,keyasint,omitempty"`
	Detail          string          `json:"detail,omitempty" cbor:"7,keyasint,omitempty"`
}

// OfNode tells whether the fault's subject is a node.
func (f Fault) OfNode() bool { return f.Node != "" }
