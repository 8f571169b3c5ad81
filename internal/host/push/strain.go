package push

import (
	"context"
	"errors"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

const (
	strainFor   = time.Second      // pushes to a node that failed for so long are said to the leader
	strainEvery = time.Second      // again so often while they do
	strainOver  = 10 * time.Second // without a failure it begins anew
)

// strainKey is a part that could not be brought to a node; strain is since when. That another part gets there says nothing of it: a node may
// have room for the small one alone.
type strainKey struct {
	node replica.NodeName
	part replica.Part
}

type strain struct{ since, last, said time.Time }

// strained follows the end of a push: what keeps failing is said to the leader, which has another node mirror the part. What the other end
// refuses because the two know different states of the job passes by itself.
func (j *job) strained(now time.Time, k key, began time.Time, err error) (said control.Unreached, due bool) {
	at := strainKey{k.node, k.part}
	if err == nil {
		delete(j.strains, at)
		return said, false
	}
	for _, passes := range []error{context.Canceled, mover.ErrSuperseded, transfer.ErrFenced, transfer.ErrNotYet} {
		if errors.Is(err, passes) {
			return said, false
		}
	}
	s := j.strains[at]
	if s.since.IsZero() || began.Sub(s.last) > strainOver { // one that hangs fails no more often than it is given up
		s = strain{since: began}
	}
	if s.last = now; now.Sub(s.since) >= strainFor && now.Sub(s.said) >= strainEvery {
		s.said, due = now, true
		said = control.Unreached{To: []replica.NodeName{k.node}, Part: k.part, Why: err.Error(), TookMS: uint64(max(now.Sub(began), 0).Milliseconds())}
	}
	j.strains[at] = s
	return said, due
}
