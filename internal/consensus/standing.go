package consensus

import (
	"errors"
	"fmt"
	"strings"

	"github.com/replicad/replicad/replica"
)

// StandingKind says whether a voter votes, or what keeps it from that.
type StandingKind uint8

const (
	Voting  StandingKind = iota // its promise counts
	Learner                     // the leader brings it up to date, and lets it vote then
	Waiting                     // others have to answer first, or somebody has to begin
	Behind                      // its log is older than what it is known to have promised
	Failed                      // its log did not open, or can't be written, or holds an entry that this program can't read
)

func (k StandingKind) String() string {
	return [...]string{"votes", "learns", "waits", "has an old log", "failed"}[min(k, Failed)]
}

// Standing is where a configured voter stands. Each but Voting is no vote: the others must not count on it.
type Standing struct {
	Kind   StandingKind
	For    []replica.NodeName // whom it waits for; empty: nobody in particular
	Why    string             // one sentence; empty where it votes
	Remedy string             // what a person types; empty: it goes on by itself
}

// Votes tells whether this voter's vote counts now.
func (s Standing) Votes() bool { return s.Kind == Voting }

// String is the kind, why, and what to do.
func (s Standing) String() string {
	text := s.Kind.String()
	if len(s.For) > 0 {
		var names []string
		for _, n := range s.For {
			names = append(names, string(n))
		}
		text += " for " + strings.Join(names, ", ")
	}
	if s.Why != "" {
		text += ": " + s.Why
	}
	if s.Remedy != "" {
		text += ": " + s.Remedy
	}
	return text
}

// FailedStart is the standing of a voter whose Start failed.
func FailedStart(err error) Standing {
	remedy := "see what the error names, and start the daemon again"
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrForeignDir) {
		remedy = "" // the error has it
	}
	return Standing{Kind: Failed, Why: err.Error(), Remedy: remedy}
}

// Standing says whether this voter votes, and if not why. It may be asked at any time.
func (n *Node) Standing() Standing {
	if err := n.fsm.failure(); err != nil {
		return Standing{Kind: Failed, Why: err.Error(), Remedy: "start the daemon with the program that the other voters run"}
	}
	if err := n.store.unwritable(); err != nil {
		return Standing{Kind: Failed, Why: fmt.Sprintf("its log in %s can't be written: %v", n.cfg.Dir, err), Remedy: "free space in state_dir, or replace the disk"}
	}
	return Standing{Kind: Voting}
}
