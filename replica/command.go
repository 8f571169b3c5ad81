package replica

// Command is an entry of the replicated log. Each is refused, never half applied, when what it cites is not what is; a
// repeated one is harmless.
type Command interface{ command() }

type (
	// RegisterNode records a daemon's start, after adoption. A new Session voids the earlier session's pins.
	RegisterNode struct {
		Node Node `cbor:"1,keyasint"`
		// Limit bounds the state that it may lead to, in bytes; zero in the log of a leader that knew none.
		Limit uint64 `cbor:"2,keyasint,omitempty"`
		// Running are the claims that the daemon still serves. Where the node has another memory than before, these claims go on in it, and
		// this entry puts the node's other claims at fault.
		Running []Running `cbor:"3,keyasint,omitempty"`
	}
	// CreateJob mints a job. Refused while a job of that name has not ended; ID must be new to this log.
	CreateJob struct {
		ID      JobID   `cbor:"1,keyasint"`
		Name    string  `cbor:"2,keyasint"`
		Layout  Layout  `cbor:"3,keyasint"`
		Options Options `cbor:"4,keyasint"`
		Copies  int     `cbor:"5,keyasint"`
		// Opening from a durable generation adopts its job's UUID (in ID), lineage and highest epoch, and what was condemned.
		Epoch     Epoch        `cbor:"6,keyasint"`
		Lineage   Lineage      `cbor:"7,keyasint"`
		Condemned []Generation `cbor:"8,keyasint"`
		Durable   Generation   `cbor:"9,keyasint"`
		// Geometries are those of its replicated parts, by group: a rank that registers another one can't load it.
		Geometries []Digest `cbor:"10,keyasint,omitempty"`
		// NameGroups leaves the groups to the ranks: each names its own with its claim, and once all have, those are the layout's.
		NameGroups bool `cbor:"11,keyasint,omitempty"` // Layout.Groups is empty then
		// Owner is the user, by number, whose launcher creates the job.
		Owner uint32 `cbor:"12,keyasint,omitempty"`
		// Creator is the node whose launcher asked for the job, which may end it.
		Creator NodeName `cbor:"13,keyasint,omitempty"`
		Limit   uint64   `cbor:"14,keyasint,omitempty"` // as RegisterNode's
		// Recipe and Grown are the durable generation's: how a process gets its regions, and since when they are those.
		Recipe []byte `cbor:"15,keyasint,omitempty"`
		Grown  Epoch  `cbor:"16,keyasint,omitempty"`
		// Began and Writes are as in Job: of a durable generation's run those that its store has.
		Began  uint64 `cbor:"17,keyasint,omitempty"`
		Writes uint64 `cbor:"18,keyasint,omitempty"`
		// From is as in Job. With a durable generation it is what that one's run began with.
		From *Origin `cbor:"19,keyasint,omitempty"`
	}
	// Begin mints the epoch in which ranks attach and seal their initial state.
	Begin struct {
		Job   JobID `cbor:"1,keyasint"`
		Epoch Epoch `cbor:"2,keyasint"` // must be the next unused
	}
	// Claim takes a rank by compare-and-set on its incarnation.
	Claim struct {
		Job      JobID       `cbor:"1,keyasint"`
		Rank     Rank        `cbor:"2,keyasint"`
		Expect   Incarnation `cbor:"3,keyasint"`
		Holder   Holder      `cbor:"4,keyasint"`
		Group    GroupID     `cbor:"5,keyasint"` // as the process understands it; must be the layout's, once that has groups
		Geometry Digest      `cbor:"6,keyasint"` // of its replicated part; must be its group's
		Nonce    uint64      `cbor:"7,keyasint"` // chosen at random by the claimant: a repeated claim returns the same incarnation
	}
	// Grow closes the open epoch and mints the next one, in which the same processes seal the committed step anew, with other regions.
	Grow struct {
		Job        JobID    `cbor:"1,keyasint"`
		Epoch      Epoch    `cbor:"2,keyasint"` // that is open
		Step       Step     `cbor:"3,keyasint"` // at which all ranks stand: must be the committed one
		Geometries []Digest `cbor:"4,keyasint"` // by group, of its replicated part
		Recipe     []byte   `cbor:"5,keyasint,omitempty"`
		Bytes      uint64   `cbor:"6,keyasint,omitempty"` // of a rank's parts
		What       string   `cbor:"7,keyasint,omitempty"`
	}
	// ReportFault closes the newest epoch, or joins the faults that did.
	ReportFault struct {
		Job   JobID `cbor:"1,keyasint"`
		Fault Fault `cbor:"2,keyasint"`
	}
	// ApplyPlan creates the plan's epoch.
	ApplyPlan struct {
		Job  JobID `cbor:"1,keyasint"`
		Plan Plan  `cbor:"2,keyasint"`
	}
	// Resume opens the planned epoch and commits its position. A second one, before the first commit of the epoch, records that
	// more nodes hold the generation by now, so that Previous may go.
	Resume struct {
		Job    JobID      `cbor:"1,keyasint"`
		Epoch  Epoch      `cbor:"2,keyasint"`
		Parts  []PartRoot `cbor:"3,keyasint"` // roots as loaded, and who holds them pinned
		Copies int        `cbor:"4,keyasint"`
		Spread bool       `cbor:"5,keyasint,omitempty"` // the second one
	}
	// Commit says that a generation is complete on the whole job.
	Commit struct {
		Job        JobID      `cbor:"1,keyasint"`
		Position   Position   `cbor:"2,keyasint"`
		Generation Generation `cbor:"3,keyasint"`
		Parts      []PartRoot `cbor:"4,keyasint"`
		// Write begins the durable write of what is committed, before anything newer is.
		Write bool `cbor:"5,keyasint,omitempty"`
		Turns bool `cbor:"6,keyasint,omitempty"` // as DurableWrite's
	}
	// CommitRoots is a Commit that leaves out what the job's record says already: which parts there are, and who holds those whose
	// holders are the recorded ones.
	CommitRoots struct {
		Job        JobID         `cbor:"1,keyasint"`
		Position   Position      `cbor:"2,keyasint"`
		Generation Generation    `cbor:"3,keyasint"`
		On         uint64        `cbor:"4,keyasint"`           // digest of the recorded holders; of others it is refused
		Roots      []byte        `cbor:"5,keyasint"`           // 16 bytes a part, in the order of the record
		Moved      []PartHolders `cbor:"6,keyasint,omitempty"` // parts that others hold than was recorded
		Write      bool          `cbor:"7,keyasint,omitempty"` // as in Commit
		Turns      bool          `cbor:"8,keyasint,omitempty"`
	}
	// ReportDispute closes the epoch for differing roots.
	ReportDispute struct {
		Job     JobID   `cbor:"1,keyasint"`
		Epoch   Epoch   `cbor:"2,keyasint"`
		Dispute Dispute `cbor:"3,keyasint"`
	}
	// Condemn excludes a generation whose bytes are bad.
	Condemn struct {
		Job        JobID      `cbor:"1,keyasint"`
		Generation Generation `cbor:"2,keyasint"`
		Reason     string     `cbor:"3,keyasint"`
	}
	// SetCopies raises or lowers copies(p).
	SetCopies struct {
		Job    JobID `cbor:"1,keyasint"`
		Copies int   `cbor:"2,keyasint"`
	}
	// SetHolder corrects who holds a part of the committed generation, or of Previous: a node has lost its copy (Lost), or has it again.
	SetHolder struct {
		Job        JobID      `cbor:"1,keyasint"`
		Generation Generation `cbor:"2,keyasint"`
		Part       Part       `cbor:"3,keyasint"`
		Root       Digest     `cbor:"4,keyasint"` // as recorded; another one is refused
		Holder     Holder     `cbor:"5,keyasint"`
		Lost       bool       `cbor:"6,keyasint,omitempty"`
	}
	// SetMirrors moves mirrors outside a recovery.
	SetMirrors struct {
		Job          JobID        `cbor:"1,keyasint"`
		Mirrors      [][]NodeName `cbor:"2,keyasint"`
		GroupMirrors [][]NodeName `cbor:"3,keyasint"`
	}
	// BeginDurable names a committed generation to write and the writer of its marker.
	BeginDurable struct {
		Job   JobID        `cbor:"1,keyasint"`
		Write DurableWrite `cbor:"2,keyasint"`
	}
	// EndDurable ends a durable write: its marker exists (Done), or it was given up.
	EndDurable struct {
		Job        JobID      `cbor:"1,keyasint"`
		Generation Generation `cbor:"2,keyasint"`
		Done       bool       `cbor:"3,keyasint"`
		// Number is the write's: a generation may be written again. 0, of a log of before: whichever is under way.
		Number uint64 `cbor:"4,keyasint,omitempty"`
	}
	// Quarantine keeps a node out of a job until cleared.
	Quarantine struct {
		Job   JobID    `cbor:"1,keyasint"`
		Node  NodeName `cbor:"2,keyasint"`
		Clear bool     `cbor:"3,keyasint"`
	}
	// ProveLost records that a node's memory is gone: another boot id, or the operator's or scheduler's word.
	ProveLost struct {
		Job    JobID  `cbor:"1,keyasint"`
		Holder Holder `cbor:"2,keyasint"`
		Why    string `cbor:"3,keyasint"`
	}
	// EndJob ends a job: finished, or stopped with a reason. Its epoch is closed. With an Epoch it ends only while that one is
	// open: who has finished in an epoch that is closed by now has to do its last steps again.
	EndJob struct {
		Job    JobID  `cbor:"1,keyasint"`
		Reason string `cbor:"2,keyasint"`
		Epoch  Epoch  `cbor:"3,keyasint,omitempty"`
		// Keep: where what is committed is to be on disk and is not, the job is stopped first, and ends once it is.
		Keep bool `cbor:"4,keyasint,omitempty"`
	}
	// StopJob stops a job that has committed something: its epoch is closed, and it keeps what is committed. With Clear somebody goes on
	// with a stopped job.
	StopJob struct {
		Job    JobID  `cbor:"1,keyasint"`
		Reason string `cbor:"2,keyasint"`
		Clear  bool   `cbor:"3,keyasint,omitempty"`
	}
	// NewEra starts an era after an operator recovered a lost quorum: jobs go on from the union of lineages at Epoch, which
	// is 1 + the highest epoch in any reachable log, fence word, arena or manifest.
	NewEra struct {
		Era      Era               `cbor:"1,keyasint"`
		Epochs   map[JobID]Epoch   `cbor:"2,keyasint"`
		Lineages map[JobID]Lineage `cbor:"3,keyasint"`
	}
	// Revoke ends the certificates of a node or an operator up to an epoch. A node's present life is dead to every job from then on.
	Revoke struct {
		Revocation Revocation `cbor:"1,keyasint"`
	}
)

func (RegisterNode) command()  {}
func (CreateJob) command()     {}
func (Begin) command()         {}
func (Claim) command()         {}
func (Grow) command()          {}
func (ReportFault) command()   {}
func (ApplyPlan) command()     {}
func (Resume) command()        {}
func (Commit) command()        {}
func (CommitRoots) command()   {}
func (ReportDispute) command() {}
func (Condemn) command()       {}
func (SetCopies) command()     {}
func (SetHolder) command()     {}
func (SetMirrors) command()    {}
func (BeginDurable) command()  {}
func (EndDurable) command()    {}
func (Quarantine) command()    {}
func (ProveLost) command()     {}
func (EndJob) command()        {}
func (StopJob) command()       {}
func (NewEra) command()        {}
func (Revoke) command()        {}
