package replica

// Candidate is the generation the leader wants to commit next. A daemon obeys the highest (Term, N).
type Candidate struct {
	Job        JobID      `cbor:"1,keyasint"`
	Term       uint64     `cbor:"2,keyasint"` // Raft's
	N          uint64     `cbor:"3,keyasint"` // rises within a term, as Position.Step does
	Position   Position   `cbor:"4,keyasint"`
	Generation Generation `cbor:"5,keyasint"`
}

// Compare orders candidates by (Term, N).
func (c Candidate) Compare(o Candidate) int {
	switch {
	case c.Term == o.Term && c.N == o.N:
		return 0
	case c.Term < o.Term, c.Term == o.Term && c.N < o.N:
		return -1
	}
	return 1
}

// Pinned is a daemon's answer to a candidate: what it holds sealed and pinned of it. Sent again with every change; parts add up.
type Pinned struct {
	Job        JobID      `cbor:"1,keyasint"`
	Term       uint64     `cbor:"2,keyasint"`
	N          uint64     `cbor:"3,keyasint"`
	Generation Generation `cbor:"4,keyasint"`
	Holder     Holder     `cbor:"5,keyasint"`
	Session    Session    `cbor:"6,keyasint"` // pins of an older session of the node are void
	Parts      []Held     `cbor:"7,keyasint"`
	// Heard is how far the furthest rank there was when its daemon heard of the candidate, Live how far it is now; 0: none runs there.
	Heard Step `cbor:"20,keyasint,omitempty"`
	Live  Step `cbor:"21,keyasint,omitempty"`
}

// Passed is the answer of a daemon whose rank will not capture the candidate: it is beyond it, or it stands still below it because it
// waits for a commit of the step it is at (D29). Where the rank is tells the two apart.
type Passed struct {
	Job     JobID        `cbor:"1,keyasint"`
	Term    uint64       `cbor:"2,keyasint"`
	N       uint64       `cbor:"3,keyasint"`
	Holder  Holder       `cbor:"4,keyasint"`
	Session Session      `cbor:"5,keyasint"`
	Rank    Rank         `cbor:"6,keyasint"`
	Live    Generation   `cbor:"7,keyasint"` // where the rank is now
	Holds   []Generation `cbor:"8,keyasint"` // replicated parts sealed in its arena whose private part is there too
	// Heard is how far the furthest rank there was when its daemon heard of the candidate; 0: it did not say.
	Heard Step `cbor:"20,keyasint,omitempty"`
}

// Below tells whether the rank stands below the candidate, rather than beyond it.
func (p Passed) Below(c Candidate) bool { return p.Live.Step < c.Position.Step }

// RankReport is a daemon's account of one local rank.
type RankReport struct {
	Rank        Rank        `json:"rank" cbor:"1,keyasint"`
	Incarnation Incarnation `json:"incarnation" cbor:"2,keyasint"`
	Alive       bool        `json:"alive" cbor:"3,keyasint"`    // its process exists
	Attached    bool        `json:"attached" cbor:"4,keyasint"` // its session is up (a live rank that has not re-attached is unobserved)
	PID         uint64      `json:"pid" cbor:"5,keyasint"`
	Live        Word        `json:"live" cbor:"6,keyasint"`                      // step word
	Good        Word        `json:"good" cbor:"7,keyasint"`                      // good word
	Settled     bool        `json:"settled" cbor:"8,keyasint"`                   // nothing of it is UPDATING, UPDATED or COPYING any more
	Stopped     bool        `json:"stopped" cbor:"9,keyasint"`                   // waits in rp_join under a closed epoch
	Whole       bool        `json:"whole" cbor:"10,keyasint"`                    // IDLE with good = live: could be captured now
	Initial     Epoch       `json:"initial" cbor:"11,keyasint"`                  // both parts sealed as (Initial, init)
	Loaded      Epoch       `json:"loaded" cbor:"12,keyasint"`                   // acknowledged its roots for the plan of this epoch
	Left        bool        `json:"left" cbor:"13,keyasint"`                     // said that it has finished
	Hung        bool        `json:"hung,omitempty" cbor:"14,keyasint,omitempty"` // stands still for longer than it may
	// Progress rises while its process, which is not at rest yet, gets on with that: megabytes of shared memory that it has in reach. While
	// its parts are brought to it for a plan: megabytes that have come.
	Progress uint64 `json:"progress,omitempty" cbor:"17,keyasint,omitempty"`
	// Halted tells that the kernel names the process as stopped, by a signal or a debugger.
	Halted bool `json:"halted,omitempty" cbor:"18,keyasint,omitempty"`
	// Ordered is the epoch of whose plan its process was told to load the parts, which lie in its arena.
	Ordered Epoch `json:"ordered,omitempty" cbor:"19,keyasint,omitempty"`
	// LoadMS is how long its parts may take for their size, in milliseconds: to come, or to be loaded.
	LoadMS uint64 `json:"load_ms,omitempty" cbor:"20,keyasint,omitempty"`
	// StillMS is for how long nothing of its process had changed when this was sent: a new leader counts on from there.
	StillMS uint64 `json:"still_ms,omitempty" cbor:"21,keyasint,omitempty"`
	// Failing is why its parts have not come yet, where some tries have failed.
	Failing string `json:"failing,omitempty" cbor:"22,keyasint,omitempty"`
	// EndingMS is for how long its process has said that it may be on its way out, in milliseconds; 0: it has not said so.
	EndingMS uint64 `json:"ending_ms,omitempty" cbor:"23,keyasint,omitempty"`
	// Growth is what the rank asks to grow to, while it waits for an answer; nil: it does not.
	Growth *RankGrowth `json:"growth,omitempty" cbor:"24,keyasint,omitempty"`
}

// RankGrowth is the growth that a rank asks for, between two steps.
type RankGrowth struct {
	Ask      uint64 `json:"ask" cbor:"1,keyasint"` // random: an answer names it
	Epoch    Epoch  `json:"epoch" cbor:"2,keyasint"`
	Step     Step   `json:"step" cbor:"3,keyasint"`     // at which the rank stands
	Geometry Digest `json:"geometry" cbor:"4,keyasint"` // of its replicated part, grown
	Recipe   Digest `json:"recipe" cbor:"5,keyasint"`
	// RecipeBytes is the recipe itself, as rank 0 has it.
	RecipeBytes []byte `json:"recipe_bytes,omitempty" cbor:"6,keyasint,omitempty"`
	// Prepared: the grown arena lies beside the present one. Refused is why it can't; empty and not Prepared: it is being made.
	Prepared bool   `json:"prepared,omitempty" cbor:"7,keyasint,omitempty"`
	Refused  string `json:"refused,omitempty" cbor:"8,keyasint,omitempty"`
	Bytes    uint64 `json:"bytes,omitempty" cbor:"9,keyasint,omitempty"`    // of the rank's parts, grown
	What     string `json:"what,omitempty" cbor:"10,keyasint,omitempty"`    // it grows by, as a number
	Differs  string `json:"differs,omitempty" cbor:"11,keyasint,omitempty"` // likewise, by name
}

// NodeReport is a daemon's full account of one job, sent after each change that matters outside the hot path. The newest
// (Session, Seq) of a node counts; it is level-triggered, so a lost one costs nothing.
type NodeReport struct {
	Job     JobID        `json:"job" cbor:"1,keyasint"`
	Holder  Holder       `json:"holder" cbor:"2,keyasint"`
	Session Session      `json:"session" cbor:"3,keyasint"`
	Seq     uint64       `json:"seq" cbor:"4,keyasint"`
	Fenced  Epoch        `json:"fenced" cbor:"5,keyasint"`  // the fence acknowledged for: raised in every arena of the job
	Settled bool         `json:"settled" cbor:"6,keyasint"` // every local rank is; what was COPIED is sealed, the rest torn
	Ranks   []RankReport `json:"ranks" cbor:"7,keyasint"`
	Parts   []Held       `json:"parts" cbor:"8,keyasint"`  // every sealed part here, mirrors included
	Offers  int          `json:"offers" cbor:"9,keyasint"` // processes that its launchers could still start
	Spare   bool         `json:"spare" cbor:"10,keyasint"` // its launchers take only ranks lost elsewhere
	// Starting lists the ranks for which a process runs here that has not attached yet: it imports, or builds its model.
	Starting []Rank `json:"starting,omitempty" cbor:"13,keyasint,omitempty"`
	// StartingPIDs are the processes of Starting, in its order; 0 where the launcher has not said it yet.
	StartingPIDs []uint64 `json:"starting_pids,omitempty" cbor:"17,keyasint,omitempty"`
	// StartingHalted are those of Starting whose process a signal has stopped.
	StartingHalted []Rank `json:"starting_halted,omitempty" cbor:"24,keyasint,omitempty"`
	// Launchers counts the launchers of the job here, those too that can start no more processes.
	Launchers int `json:"launchers,omitempty" cbor:"19,keyasint,omitempty"`
	// Short names what the node is short of, so that it starts no process for the job, and one that runs may not get its rank. Empty: nothing.
	Short string `json:"short,omitempty" cbor:"23,keyasint,omitempty"`
	// SettleMS is how long ranks here have to settle since the fence, in milliseconds, where copies under way need longer than settle_timeout.
	SettleMS uint64 `json:"settle_ms,omitempty" cbor:"18,keyasint,omitempty"`
	// Epoch and Phase are those of the job as the node knows it, and SinceMS for how long it had known them when this was sent: a new leader
	// counts on from there, and reads no clock but its own.
	Epoch   Epoch    `json:"epoch,omitempty" cbor:"20,keyasint,omitempty"`
	Phase   JobPhase `json:"phase,omitempty" cbor:"21,keyasint,omitempty"`
	SinceMS uint64   `json:"since_ms,omitempty" cbor:"22,keyasint,omitempty"`
	// StillMS is for how long the node had had nothing else to say when this was sent: to a new leader it repeats what it has said.
	StillMS uint64 `json:"still_ms,omitempty" cbor:"29,keyasint,omitempty"`
	// Lacks is what copies of ranks here lack, by their own word: also of processes that have ended, while a generation of theirs may be written.
	Lacks []Lacks `json:"lacks,omitempty" cbor:"28,keyasint,omitempty"`
	// Candidate is the generation that the node pins, or pushes, for the newest candidate that it has heard of and that is not committed yet. A new leader
	// goes on with it.
	Candidate Generation `json:"candidate,omitzero" cbor:"31,keyasint,omitempty"`
	// Bad lists the copies here that failed their digest since the job last ran, and were given up.
	Bad []Held `json:"bad,omitempty" cbor:"11,keyasint,omitempty"`
	// BadDisk lists the durable parts that failed their digest when this node read them for the newest plan.
	BadDisk []Held `json:"bad_disk,omitempty" cbor:"12,keyasint,omitempty"`
}

// RegionDigest is what the bytes of one region hash to, as a rank sealed them.
type RegionDigest struct {
	Name   string `json:"name" cbor:"1,keyasint"`
	Digest Digest `json:"digest" cbor:"2,keyasint"`
}

// RegionReport is a daemon's answer to the question what the regions of a sealed part hash to, each by itself.
type RegionReport struct {
	Job        JobID          `json:"job" cbor:"1,keyasint"`
	Generation Generation     `json:"generation" cbor:"2,keyasint"`
	Part       Part           `json:"part" cbor:"3,keyasint"`
	Rank       Rank           `json:"rank" cbor:"4,keyasint"` // in whose arena it lies
	Root       Digest         `json:"root" cbor:"5,keyasint"`
	Regions    []RegionDigest `json:"regions" cbor:"6,keyasint"` // at most MaxRegions
	Failed     string         `json:"failed,omitempty" cbor:"7,keyasint,omitempty"`
}

// Differing names the regions that two ranks of a group sealed differently, in the first one's order; then those that the
// second alone has.
func Differing(a, b []RegionDigest) []string {
	theirs := make(map[string]Digest, len(b))
	for _, r := range b {
		theirs[r.Name] = r.Digest
	}
	var names []string
	for _, r := range a {
		if d, ok := theirs[r.Name]; !ok || d != r.Digest {
			names = append(names, r.Name)
		}
		delete(theirs, r.Name)
	}
	for _, r := range b {
		if _, ok := theirs[r.Name]; ok {
			names = append(names, r.Name)
		}
	}
	return names
}
