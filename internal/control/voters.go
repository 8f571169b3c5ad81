package control

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/replica"
)

// VoteState is what a daemon's Raft does.
type VoteState uint8

const (
	VoteUnknown VoteState = iota // nothing was heard of it
	NoRaft                       // the daemon runs none: it is a client of the voters
	Votes                        // its Raft runs, and can write its log
	Learns                       // it gets the log and has no vote
	WaitsToVote                  // it asks the other voters before it begins
	LogBehind                    // its log is older than what it has promised
	RaftFailed                   // its Raft did not open, has ended, or can't write its log
)

var voteStates = [...]string{"unknown", "client", "votes", "learns", "waits", "behind", "failed"}

func (s VoteState) String() string {
	if int(s) < len(voteStates) {
		return voteStates[s]
	}
	return fmt.Sprintf("vote state %d", uint8(s))
}

// Standing is what a daemon says of its own part in Raft: to the leader with each hello and at each change, to others in a Welcome.
type Standing struct {
	State VoteState `cbor:"1,keyasint"`
	// Why says, with the remedy, why it does not vote. Empty: it votes, or has no reason to.
	Why string `cbor:"2,keyasint,omitempty"`
}

// maxWhy bounds the words of a standing as it is sent, in bytes.
const maxWhy = 1 << 10

// Fit is the standing as a message may carry it.
func (s Standing) Fit() Standing {
	s.Why = Readable(s.Why)
	if len(s.Why) > maxWhy {
		s.Why = strings.ToValidUTF8(s.Why[:maxWhy], "")
	}
	return s
}

// VoterStatus is a node that has a vote in Raft's present configuration, or is on its way to one. A configuration is the leader's where it answers,
// else what this node's own log says, else what its file says.
type VoterStatus struct {
	Name  replica.NodeName `json:"name" cbor:"1,keyasint"`
	Addr  string           `json:"addr" cbor:"2,keyasint"`
	Votes bool             `json:"votes" cbor:"3,keyasint"` // it has a vote and can give it now
	State string           `json:"state" cbor:"4,keyasint"` // "votes", "learns", "waits", "behind", "failed", "client", "away", "unknown"
	// Why says why it does not vote, with the remedy.
	Why string `json:"why,omitempty" cbor:"5,keyasint,omitempty"`
	// Joining: Raft gives it the log and no vote.
	Joining bool `json:"joining,omitempty" cbor:"6,keyasint,omitempty"`
}

// Quorum counts the voters that vote, and all; those that join count for neither.
func Quorum(list []VoterStatus) (votes, of int) {
	for _, v := range list {
		if v.Joining {
			continue
		}
		if of++; v.Votes {
			votes++
		}
	}
	return votes, of
}

// Standings are what other daemons said of themselves lately, as this one heard it.
type Standings struct {
	mu   sync.Mutex // guards said
	said map[replica.NodeName]heardStanding
}

type heardStanding struct {
	Standing
	at time.Time
}

// StandingKept is for how long a standing that was heard is held true.
const StandingKept = 15 * time.Second

// Add takes in what a daemon said.
func (s *Standings) Add(from replica.NodeName, is Standing, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.said == nil {
		s.said = map[replica.NodeName]heardStanding{}
	}
	if _, known := s.said[from]; known || len(s.said) < maxNoLinks {
		s.said[from] = heardStanding{is, now}
	}
}

// Of is what a daemon said last; VoteUnknown: it said nothing lately.
func (s *Standings) Of(node replica.NodeName, now time.Time) Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, ok := s.said[node]
	if !ok || now.Sub(h.at) > StandingKept {
		return Standing{}
	}
	return h.Standing
}

// Clear forgets what was heard: something newer is known.
func (s *Standings) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = nil
}
