package consensus

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// same fails unless the cluster's members are those named, all voters.
func (c *trio) same(n *Node, want ...replica.NodeName) {
	c.t.Helper()
	var names []replica.NodeName
	for _, v := range n.Voters() {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	if joining := n.Joining(); !slices.Equal(names, want) || len(joining) != 0 {
		c.t.Errorf("voters %v, joining %v; want %v", names, joining, want)
	}
}

// byLeader has whoever leads change the voters, on a machine whose load may move leadership meanwhile.
func (c *trio) byLeader(change func(*Node) error) {
	c.t.Helper()
	err := change(c.leader(""))
	for errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnknown) {
		err = change(c.leader(""))
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestNobodyIsAdded: a voter that is not there, at the wrong address or under another name, leaves a cluster of one as it was.
func TestNobodyIsAdded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.names = c.names[:1]
		lead := c.start("n1", true)
		c.propose("w1")
		wantError(t, lead.AddVoter(within(t), Voter{"bb", "127.0.0.1:9"}), nil, "bb", "127.0.0.1:9", "does not answer", "--join")
		c.same(lead, "n1")
		c.propose("w2")
	})
}

// TestOnlyTheNewJoin: a node that has a log of its own, of this cluster's name or not, is no new voter.
func TestOnlyTheNewJoin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.startAll(true)
		c.propose("w1")
		c.tune = func(cfg *Config) { cfg.Voters = []Voter{{"n4", c.addr("n4")}} }
		c.start("n4", true) // a cluster of its own, by mistake
		lead := c.leader("n4")
		wantError(t, lead.AddVoter(within(t), Voter{"n4", c.addr("n4")}), nil, "has a log already", "--join")
		c.same(lead, "n1", "n2", "n3")
	})
}

// stuckLog keeps nothing until it is told to.
type stuckLog struct {
	raft.LogStore
	free chan struct{}
}

func (l stuckLog) StoreLogs(e []*raft.Log) error {
	<-l.free
	return l.LogStore.StoreLogs(e)
}

// TestWhoDoesNotCatchUpIsTakenOut: a node that gets the log too slowly never votes, and the next try is asked of a new one.
func TestWhoDoesNotCatchUpIsTakenOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.startAll(true)
		c.propose("w1")
		lead := c.leader("")
		free := make(chan struct{})
		c.tune = func(cfg *Config) { cfg.Join = true }
		c.wrap = func(_ replica.NodeName, l raft.LogStore) raft.LogStore { return stuckLog{l, free} }
		c.start("n4", false)
		ctx, cancel := context.WithTimeout(within(t), 3*time.Second)
		defer cancel()
		err := lead.AddVoter(ctx, Voter{"n4", c.addr("n4")})
		wantError(t, err, context.DeadlineExceeded, "does not catch up", "removed again")
		close(free)
		c.same(lead, "n1", "n2", "n3")
		c.propose("w2")
	})
}

// TestJoiningGoesOn: what was left with the log and without a vote, by a leader that died, is added or taken out by the next.
func TestJoiningGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.startAll(true)
		c.propose("w1")
		c.tune = func(cfg *Config) { cfg.Join = cfg.ID == "n4" }
		c.start("n4", false)
		lead := c.leader("n4")
		v := Voter{"n4", c.addr("n4")}
		if err := lead.raft.AddNonvoter(raft.ServerID(v.Name), raft.ServerAddress(v.Addr), 0, patience).Error(); err != nil {
			t.Fatal(err)
		}
		a := lead.newAsker()
		defer a.close()
		got, err := a.ask(v, nil)
		if err == nil {
			err = lead.invite(within(t), a, v, got, false)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.awaitNode("w1")
		if joining := lead.Joining(); !slices.Contains(joining, v) {
			t.Fatalf("joining: %v", joining)
		}
		c.byLeader(func(n *Node) error { return n.AddVoter(within(t), v) })
		c.same(c.leader(""), "n1", "n2", "n3", "n4")
	})
}

// TestRemovalKeepsAMajority: of three voters with one down, the one that makes the majority can't be removed.
func TestRemovalKeepsAMajority(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.startAll(true)
		c.propose("w1")
		lead := c.leader("")
		others := slices.DeleteFunc(slices.Clone(c.names), func(n replica.NodeName) bool { return n == lead.cfg.ID })
		c.stop(others[0])
		wantError(t, lead.RemoveVoter(within(t), others[1]), nil, "2 voters", "1 answer", string(others[0]))
		c.same(lead, "n1", "n2", "n3")
		c.byLeader(func(n *Node) error { return n.RemoveVoter(within(t), others[0]) })
		c.propose("w2")
	})
}
