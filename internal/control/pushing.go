package control

import "github.com/replicad/replicad/replica"

// PushReport says how far a node's pushes of a candidate's parts to their mirrors are, while a commit waits for long.
type PushReport struct {
	Job        replica.JobID      `cbor:"1,keyasint"`
	Generation replica.Generation `cbor:"2,keyasint"`
	Pushes     []Pushing          `cbor:"3,keyasint"`
}

// Pushing is one of them.
type Pushing struct {
	Part  replica.Part     `cbor:"1,keyasint"`
	To    replica.NodeName `cbor:"2,keyasint"`
	Bytes uint64           `cbor:"3,keyasint"`           // the most that any try has sent
	Why   string           `cbor:"4,keyasint,omitempty"` // the newest try failed; empty: none has
}
