package consensus

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"

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
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrForeignDir) || errors.Is(err, ErrOldLog) {
		remedy = "" // the error has it
	}
	return Standing{Kind: Failed, Why: err.Error(), Remedy: remedy}
}

// Standing says whether this voter votes, and if not why. It may be asked at any time.
func (n *Node) Standing() Standing {
	if err := n.fsm.failure(); err != nil {
		return Standing{Kind: Failed, Why: err.Error(), Remedy: "start the daemon with the program that the other voters run"}
	}
	if err := n.store.writes.failure(); err != nil {
		return Standing{Kind: Failed, Why: fmt.Sprintf("its log in %s can't be written: %v", n.cfg.Dir, err), Remedy: writeRemedy(err)}
	}
	if n.dog.stuck() {
		return Standing{Kind: Failed, Why: fmt.Sprintf("a write of its log in %s does not return", n.cfg.Dir), Remedy: "check the disk of state_dir"}
	}
	if s := n.stands.Load(); s != nil && !s.Votes() {
		return *s
	}
	return n.seated()
}

// seated is the standing that the configuration in this node's own log gives it.
func (n *Node) seated() Standing {
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		switch {
		case s.ID != raft.ServerID(n.cfg.ID):
		case n.raft.State() == raft.Shutdown:
			return Standing{Kind: Failed, Why: "its Raft has ended", Remedy: "start its daemon again"}
		case s.Suffrage == raft.Voter:
			return Standing{Kind: Voting}
		default:
			return Standing{Kind: Learner, Why: "it has the log and no vote", Remedy: fmt.Sprintf("add it again (replicad voter add %s %s), or remove it", n.cfg.ID, n.cfg.Addr)}
		}
	}
	if n.raft.LastIndex() == 0 {
		return Standing{Kind: Waiting, Why: "it waits to be added to the voters", Remedy: fmt.Sprintf("replicad voter add %s %s", n.cfg.ID, n.cfg.Addr)}
	}
	return Standing{Kind: Failed, Why: "its vote was taken away", Remedy: "take it out of the voters of its configuration before its next start"}
}

func writeRemedy(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space in state_dir"
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "make state_dir writable"
	}
	return "check the disk of state_dir"
}

// writes remembers why the newest write of entries, and of a value of the stable store, failed. They are apart: a full disk takes a value over the page
// of the former one, and no entry, so each election would make the disk look well.
type writes struct {
	mu             sync.Mutex // guards both
	entries, value error
}

func (w *writes) wroteEntries(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = err
	return err
}

func (w *writes) wroteValue(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.value = err
	return err
}

// failure is why the log can't be written; nil: the newest writes went well.
func (w *writes) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.entries, w.value)
}
