package room

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
)

// Missed is the holders of a part that a fetch could not dial.
type Missed struct {
	Part  replica.Part
	Nodes []replica.NodeName
	Took  time.Duration
}

// TriesSaid is how many fetches of a part of a plan fail before the leader is told.
const TriesSaid = 3

// Unreached says that a part of the plan can't be had from where it should come from: the leader has a third node fetch it. due is false where
// there is nothing to say.
func (m Missed) Unreached(job replica.JobID, epoch replica.Epoch, rank replica.Rank, tries int, err error) (said control.Unreached, due bool) {
	if tries < TriesSaid || len(m.Nodes) == 0 {
		return said, false
	}
	part := m.Part
	if part.Kind == replica.FrozenPart {
		part.Kind = replica.ReplicatedPart // it lies beside the parts that bind it
	}
	took := uint64(max(m.Took, 0).Milliseconds())
	return control.Unreached{Job: job, To: m.Nodes, Part: part, Why: err.Error(), Fetch: true, Epoch: epoch, Rank: rank, TookMS: took}, true
}
