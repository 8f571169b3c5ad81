package replica

import "fmt"

// Tier is where a part comes from.
type Tier uint8

// The tiers, nearest first.
const (
	OwnRAM  Tier = 1 // sealed in the rank's own arena
	PeerRAM Tier = 2
	Disk    Tier = 3
)

func (t Tier) String() string {
	switch t {
	case OwnRAM:
		return "own-ram"
	case PeerRAM:
		return "peer-ram"
	case Disk:
		return "durable"
	}
	return "invalid"
}

// Source is where one part of the planned generation comes from, and what it must hash to.
type Source struct {
	Part    Part     `json:"part" cbor:"1,keyasint"`
	Root    Digest   `json:"root" cbor:"2,keyasint"`
	Tier    Tier     `json:"tier" cbor:"3,keyasint"`    // PeerRAM also where the own arena may have it: the daemon looks there first
	Holders []Holder `json:"holders" cbor:"4,keyasint"` // every healthy holder; none for Disk
}

// Plan is, for a new epoch, the generation to resume at and where every part of it comes from.
type Plan struct {
	Epoch        Epoch        `json:"epoch" cbor:"1,keyasint"`      // the one it creates (for an opening: the one Begin minted)
	Cites        uint64       `json:"cites" cbor:"2,keyasint"`      // Job.LastIndex it was made on; any other is refused
	Generation   Generation   `json:"generation" cbor:"3,keyasint"` // its Step is T
	Sources      []Source     `json:"sources" cbor:"4,keyasint"`    // one a group, then one a rank
	Layout       Layout       `json:"layout" cbor:"5,keyasint"`
	Ranks        []Claimed    `json:"ranks" cbor:"6,keyasint"`   // the claims it is for, by rank
	Mirrors      [][]NodeName `json:"mirrors" cbor:"7,keyasint"` // by rank; they fetch T before Resume, or it is degraded
	GroupMirrors [][]NodeName `json:"group_mirrors,omitempty" cbor:"8,keyasint,omitempty"`
	Unvouched    bool         `json:"unvouched" cbor:"9,keyasint"` // some group had one producer left to speak for it
	Initial      bool         `json:"initial" cbor:"10,keyasint"`  // opening at (p, init)
	Reason       string       `json:"reason" cbor:"11,keyasint"`   // why this generation and these tiers, for people
	// StepsLost is how many steps are done again: from T to the newest that a rank is known to have made. CommittedLost are those of them that were
	// committed.
	StepsLost     Step `json:"steps_lost" cbor:"12,keyasint"`
	CommittedLost Step `json:"committed_lost,omitempty" cbor:"13,keyasint,omitempty"`
	// Resumed names, for people, the durable generation that the plan reads, and those that it passes over with what is wrong with them; empty:
	// memory has all.
	Resumed string `json:"resumed,omitempty" cbor:"14,keyasint,omitempty"`
}

// WentBack says that the plan goes back over committed steps, and why; empty: it does not.
func (p *Plan) WentBack() string {
	if p.CommittedLost == 0 {
		return ""
	}
	return fmt.Sprintf("went back over %d committed steps, from step %d to step %d: %s", p.CommittedLost, p.Generation.Step+p.CommittedLost, p.Generation.Step, p.Reason)
}

// Tier is the farthest tier the plan reads.
func (p *Plan) Tier() Tier {
	t := OwnRAM
	for _, s := range p.Sources {
		t = max(t, s.Tier)
	}
	return t
}

// Source finds the source of a part.
func (p *Plan) Source(part Part) (Source, bool) {
	for _, s := range p.Sources {
		if s.Part == part {
			return s, true
		}
	}
	return Source{}, false
}
