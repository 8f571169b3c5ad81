package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/replica"
)

var (
	// ErrNotLeader: nothing was proposed. It comes as a *NotLeader, which names the leader.
	ErrNotLeader = errors.New("not the leader")
	// ErrUnknown: the command may or may not take effect, now or later. Read the state before proposing anything like it.
	ErrUnknown = errors.New("outcome unknown: read the state before trying again")
	// ErrBusy: nothing was proposed, the leader could not take it in time.
	ErrBusy = errors.New("leader is busy")
	// ErrEmptyLog: this voter has no log. What it promised before is lost, so it must not vote under its old name.
	ErrEmptyLog = errors.New("empty raft log")
	// ErrOldLog: this only voter's log is older than what it has promised.
	ErrOldLog = errors.New("an old raft log was put back")
	// ErrForeignDir: the data directory belongs to another cluster or node.
	ErrForeignDir = errors.New("raft directory of another cluster or node")
	// ErrCorrupt: the data directory can't be read.
	ErrCorrupt = errors.New("raft directory is damaged")
	// ErrHalted: the log holds an entry that this program can't read.
	ErrHalted = errors.New("state machine halted")
	// ErrClosed: the node is closed.
	ErrClosed = errors.New("consensus node is closed")
)

// NotLeader says where to go instead.
type NotLeader struct {
	Leader replica.NodeName // empty: nobody leads as far as this node knows
	Addr   string
	Why    string
}

func (e *NotLeader) Error() string {
	if e.Leader == "" {
		return fmt.Sprintf("not the leader (%s), and none is known", e.Why)
	}
	return fmt.Sprintf("not the leader (%s): %q at %s is", e.Why, e.Leader, e.Addr)
}

// Is makes it an ErrNotLeader.
func (e *NotLeader) Is(target error) bool { return target == ErrNotLeader }

// outcome sorts raft's errors by what they mean for a proposal.
func (n *Node) outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return n.notLeader(err.Error())
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	default: // leadership lost, shutdown, abort by a restore: it was in the log already
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
}

func (n *Node) notLeader(why string) error {
	_, id := n.raft.LeaderWithID()
	if replica.NodeName(id) == n.cfg.ID { // about to lead, or about to stop: not somewhere to go to
		id = ""
	}
	return &NotLeader{Leader: replica.NodeName(id), Addr: n.addrOf(id), Why: why}
}
