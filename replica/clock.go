package replica

import "cmp"

// ClockKind says what kind of thing a clock is of. The rules of recovery name the kinds.
type ClockKind uint8

// Clock names one thing of a job whose time counts. The same thing has the same clock under whatever leader; another epoch, life or step of it
// is another thing.
type Clock struct {
	Kind  ClockKind `json:"kind" cbor:"1,keyasint"`
	Epoch Epoch     `json:"epoch,omitempty" cbor:"2,keyasint,omitempty"`
	Node  NodeName  `json:"node,omitempty" cbor:"3,keyasint,omitempty"`
	Rank  Rank      `json:"rank,omitempty" cbor:"4,keyasint,omitempty"`
	Part  Part      `json:"part,omitzero" cbor:"5,keyasint,omitempty"`
	Of    uint64    `json:"of,omitempty" cbor:"6,keyasint,omitempty"` // a session, an incarnation, a step
}

// Reading is what a clock reads, in milliseconds. Of a measure, which does not go on with time, it is the measure.
type Reading struct {
	Clock Clock  `json:"clock" cbor:"1,keyasint"`
	N     uint64 `json:"n" cbor:"2,keyasint"`
}

// MaxReadings bounds a ledger.
const MaxReadings = 256

// Ledger is what the clocks of a job read, as a leader hands it to the nodes. They keep it, each by its own monotonic clock, and say it to the next
// leader as their first word: since when something waits is the job's, and a leader is not there for as long.
type Ledger struct {
	Job JobID `json:"job" cbor:"1,keyasint"`
	// Era, Term and Seq tell ledgers apart: of two the newer one has what the other had and still counts.
	Era      Era       `json:"era,omitempty" cbor:"2,keyasint,omitempty"`
	Term     uint64    `json:"term,omitempty" cbor:"3,keyasint,omitempty"`
	Seq      uint64    `json:"seq,omitempty" cbor:"4,keyasint,omitempty"`
	Readings []Reading `json:"readings,omitempty" cbor:"5,keyasint,omitempty"`
	// Own is what the node knows by itself; a leader says none.
	Own []Reading `json:"own,omitempty" cbor:"6,keyasint,omitempty"`
}

// Compare tells which of two ledgers is newer.
func (l Ledger) Compare(than Ledger) int {
	return cmp.Or(cmp.Compare(l.Era, than.Era), cmp.Compare(l.Term, than.Term), cmp.Compare(l.Seq, than.Seq))
}
