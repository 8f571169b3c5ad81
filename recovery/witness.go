package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/replica"
)

// Silence collects what witnesses say of one life of a node that they find silent, on gossip and on the data path. Silence is of a
// daemon or of the network between daemons; training goes over other ways. Steps that the job made meanwhile prove that the
// node's ranks live: what is silent alone is unobserved, not dead. It is fed with the time since any fixed moment, as Leader is.
type Silence struct {
	words map[replica.NodeName]word
}

// Witness is one node's word that another is silent.
type Witness struct {
	For   time.Duration           // how long it has been, for this witness
	Steps map[replica.JobID]Steps // of the ranks on the witness's own node
}

// Steps says how the ranks of a job get on, as their node sees it.
type Steps struct {
	Still time.Duration // since one of them last moved; zero while one pauses on purpose
	Pace  time.Duration // the longest of their last steps; zero: not known yet
	// Broken tells that one has stopped under the open epoch: it has lost a peer.
	Broken bool
}

type word struct {
	Witness
	at time.Duration
}

// SilenceLimits say how long silence and standstill may last.
type SilenceLimits struct {
	Fresh  time.Duration // for which a witness's word counts
	After  time.Duration // of standstill at least: silent_after
	Grace  time.Duration // where nobody knows how long a step takes: daemon_grace
	Beyond time.Duration // of silence while the job passes steps: no collective holds its ranks together
}

// Standstill is compared with the longest of the last steps, three halves of it: ranks that need a dead one end the step that they
// are in and no other.
const (
	paceTimes = 3
	paceOver  = 2
)

// Hear takes a witness's word.
func (s *Silence) Hear(now time.Duration, from replica.NodeName, w Witness) {
	if s.words == nil {
		s.words = make(map[replica.NodeName]word)
	}
	s.words[from] = word{w, now}
}

// Witnesses counts those whose word still counts.
func (s *Silence) Witnesses(now time.Duration, l SilenceLimits) (n int) {
	for _, w := range s.words {
		if now-w.at <= l.Fresh {
			n++
		}
	}
	return n
}

// Dead tells whether a silent node is dead for a job, and why; the empty reason says that it is merely unobserved. Enough witnesses are
// the caller's to ask for. Where the epoch is not open, or the node runs no rank in it, nothing that trains would be lost: silence is enough.
func (s *Silence) Dead(now time.Duration, job *replica.Job, of replica.Holder, l SilenceLimits) string {
	if job.Phase != replica.Open || !HoldsRank(job, of) {
		return "silent on gossip and on the data path"
	}
	broken := false
	silent, still, pace, seen := time.Duration(0), time.Duration(-1), time.Duration(0), false
	for _, w := range s.words {
		age := now - w.at
		if age > l.Fresh {
			continue
		}
		silent = max(silent, w.For+age)
		steps, ok := w.Steps[job.ID]
		if !ok {
			continue
		}
		if stood := steps.Still + age; !seen || stood < still {
			still = stood
		}
		pace, seen, broken = max(pace, steps.Pace), true, broken || steps.Broken
	}
	bound := max(l.After, pace*paceTimes/paceOver)
	if pace == 0 {
		bound = max(l.After, l.Grace)
	}
	switch {
	case broken:
		return "silent on gossip and on the data path, and a rank of the job has lost its peers"
	case !seen && silent >= max(l.After, l.Grace):
		return fmt.Sprintf("silent on gossip and on the data path for %v, and nobody else runs a rank of the job", silent.Round(time.Millisecond))
	case seen && still >= bound:
		return fmt.Sprintf("silent on gossip and on the data path, and the job has stood still for %v (its longest step took %v)", still.Round(time.Millisecond), pace.Round(time.Millisecond))
	case silent >= l.Beyond && l.Beyond > 0:
		return fmt.Sprintf("silent on gossip and on the data path for %v, though other ranks pass steps", silent.Round(time.Second))
	}
	return ""
}

// HoldsRank tells whether that life of a node runs a rank of the job, by its records.
func HoldsRank(job *replica.Job, h replica.Holder) bool {
	return slices.ContainsFunc(job.Ranks, func(c replica.Claimed) bool {
		return c.Incarnation != 0 && c.Node == h.Node && c.NodeIncarnation == h.Incarnation
	})
}
