package recovery

import (
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// stage is the phase of an epoch that the job is in, and since when. A leader that found the job there goes by the nodes' own words of how long
// that has been so: what waits must not wait anew with each leader.
type stage struct {
	epoch  replica.Epoch
	closed replica.Epoch
	phase  replica.JobPhase
	at     time.Duration
	found  bool
	words  map[replica.NodeName]time.Duration // when the nodes heard of it
}

// learnStage follows the job.
func (kn *known) learnStage(first bool) {
	s := &kn.stage
	if j := kn.job; first || s.epoch != j.Epoch || s.closed != j.ClosedEpoch || s.phase != j.Phase {
		*s = stage{epoch: j.Epoch, closed: j.ClosedEpoch, phase: j.Phase, at: kn.now, found: first,
			words: make(map[replica.NodeName]time.Duration)}
	}
}

// hear takes in a node's word.
func (s *stage) hear(now time.Duration, r replica.NodeReport) {
	if s.found && r.Phase == s.phase && r.Epoch == s.epoch && r.Fenced >= s.closed {
		s.words[r.Holder.Node] = now - millis(r.SinceMS)
	}
}

// stageAt is when the job came to where it is. Of the nodes' words the middle one counts, or the later of two: one that lies, or heard of
// it late, moves nothing.
func (kn *known) stageAt() time.Duration {
	s := &kn.stage
	if len(s.words) == 0 {
		return s.at
	}
	words := make([]time.Duration, 0, len(s.words))
	for _, at := range s.words {
		words = append(words, at)
	}
	slices.Sort(words)
	return min(s.at, words[len(words)/2])
}

// faultAt is when the newest fault was seen, or the epoch was closed under another leader.
func (kn *known) faultAt() time.Duration {
	if kn.stage.found && kn.faults.last == kn.stage.at {
		return kn.stageAt()
	}
	return kn.faults.last
}

// settlesSince is since when a node that settles has said nothing new of it.
func (kn *known) settlesSince(rep replica.NodeReport) time.Duration {
	word := kn.heard[rep.Holder] - millis(rep.StillMS)
	if n := rep.Holder.Node; !kn.stage.found || kn.came[n] {
		return max(kn.away[n], word)
	}
	return max(kn.stageAt(), word)
}

// missedSince is since when an acknowledgement is missed. One that this leader has seen go, or come anew, has its own time.
func (kn *known) missedSince(n replica.NodeName) (since time.Duration) {
	since = kn.away[n]
	if kn.stage.found && !kn.came[n] {
		since = min(since, kn.stageAt())
	}
	return since
}
