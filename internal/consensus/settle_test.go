package consensus

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/replica"
)

// empty loses the disk of a voter that does not run.
func (c *trio) empty(name replica.NodeName) {
	c.t.Helper()
	if err := os.RemoveAll(c.config(name).Dir); err != nil {
		c.t.Fatal(err)
	}
}

// copied is the log of a voter that does not run, for a later day.
func (c *trio) copied(name replica.NodeName) (putBack func()) {
	c.t.Helper()
	path := filepath.Join(c.config(name).Dir, logFile)
	b, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

// pass lets virtual time pass, in which a leader would come.
func (c *trio) pass() { time.Sleep(20 * time.Second) }

func (c *trio) led() bool {
	for _, n := range c.nodes {
		if _, _, _, isSelf := n.Leadership(); isSelf {
			return true
		}
	}
	return false
}

// all waits until each running voter votes.
func (c *trio) all() {
	c.t.Helper()
	c.until("all to vote", func() bool {
		for _, n := range c.nodes {
			if !n.Standing().Votes() {
				return false
			}
		}
		return true
	})
}

func (c *trio) says(name replica.NodeName, kind StandingKind, texts ...string) {
	c.t.Helper()
	is := c.nodes[name].Standing()
	if is.Kind != kind {
		c.t.Errorf("%s %v, want that it %v", name, is, kind)
	}
	for _, text := range texts {
		if !strings.Contains(is.String(), text) {
			c.t.Errorf("%s: %q lacks %q", name, is, text)
		}
	}
}

// TestSomebodyHasToBegin: without --bootstrap anywhere nothing begins, and with it on one of three a cluster of three does.
func TestSomebodyHasToBegin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(false)
		c.pass()
		for _, name := range c.names {
			c.says(name, Waiting, "no voter has a log", "--bootstrap")
		}
		c.stop("n2")
		c.start("n2", true)
		c.propose("w1")
		c.awaitNode("w1")
		c.all()
	})
}

// TestBeginWaitsForAll: a new cluster begins once all its voters are there, and says whom it waits for.
func TestBeginWaitsForAll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.start("n1", true)
		c.start("n2", true)
		c.pass()
		if c.led() {
			t.Fatal("a cluster began without n3")
		}
		c.says("n1", Waiting, "for n3", "voter remove", "voter recover")
		c.start("n3", true)
		c.propose("w1")
		c.all()
	})
}

// TestOtherVotersDoNotBegin: nodes whose configurations name other voters are no cluster.
func TestOtherVotersDoNotBegin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.tune = func(cfg *Config) {
			if cfg.ID == "n3" {
				cfg.Voters = append(cfg.Voters[:0:0], cfg.Voters[0], cfg.Voters[2], Voter{"n9", "n9:7000"})
			}
		}
		c.startAll(true)
		c.pass()
		if c.led() {
			t.Fatal("a cluster began of two lists of voters")
		}
		c.says("n1", Waiting, "for n3", "other voters", "same list")
	})
}

// TestEmptiedVoterComesBack: a voter that lost its disk is taken in under its name, whatever it was started with, and votes again.
func TestEmptiedVoterComesBack(t *testing.T) {
	for _, flag := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			c := newTrio(t).startAll(true)
			c.propose("w1")
			lost := replica.NodeName("n3")
			if c.leader("").cfg.ID == lost {
				lost = "n2"
			}
			c.stop(lost)
			c.empty(lost)
			c.propose("w2")
			n := c.start(lost, flag)
			c.all()
			c.awaitNode("w2")
			c.same(c.leader(""), "n1", "n2", "n3")
			if _, _, term, _ := n.Leadership(); n.ballot.floorTerm() < term {
				t.Errorf("it votes in terms after %d, and was taken in in %d", n.ballot.floorTerm(), term)
			}
			lead := c.leader("").cfg.ID
			c.stop(lead) // its vote is wanted now
			c.propose("w3")
			c.start(lead, flag)
			c.awaitNode("w3")
		})
	}
}

// TestBootstrapLeftInTheUnit: b was down when a and c committed, c lost its disk and starts with --bootstrap, b comes back: no history but the first.
func TestBootstrapLeftInTheUnit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		c.awaitNode("w1")
		c.stop("n2")
		c.propose("w2")
		c.awaitNode("w2")
		c.stop("n1")
		c.stop("n3")
		c.empty("n3")
		c.start("n2", true)
		c.start("n3", true)
		c.pass()
		if c.led() {
			t.Fatal("two voters lead of which one has nothing, and the other has not all that was committed")
		}
		c.says("n3", Learner, "log is empty", "takes it in", "voter recover")
		c.start("n1", true)
		c.all()
		if _, ok := c.leader("").State().Nodes["w2"]; !ok {
			t.Error("a committed entry is gone")
		}
		c.propose("w3")
		c.awaitNode("w3")
		c.awaitNode("w2")
		c.same(c.leader(""), "n1", "n2", "n3")
	})
}

// TestOldLogIsNoVote: a log that is put back is found out by the keeper, or by the others, and its voter is taken in again.
func TestOldLogIsNoVote(t *testing.T) {
	for _, keeper := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			c := newTrio(t)
			if keeper {
				for _, name := range c.names {
					c.kept[name] = &testMemory{}
				}
			}
			c.startAll(true)
			c.propose("w1")
			old := replica.NodeName("n3")
			if c.leader("").cfg.ID == old {
				old = "n2"
			}
			third := replica.NodeName("n1")
			for _, name := range c.names {
				if name != old && name != c.leader("").cfg.ID {
					third = name
				}
			}
			c.stop(old)
			putBack := c.copied(old)
			c.start(old, false)
			c.all()
			c.awaitNode("w1")
			c.stop(third) // what comes is on the leader and on old alone
			c.propose("w2")
			c.awaitNode("w2")
			lead := c.leader("").cfg.ID
			c.stop(old)
			putBack()
			if keeper { // it knows, whoever is there
				c.stop(lead)
			}
			c.start(third, false)
			c.start(old, false)
			if keeper {
				c.pass()
				if c.led() {
					t.Fatal("an old log was a vote")
				}
				c.says(old, Behind, "old copy", "voter recover")
				c.start(lead, false)
			}
			c.all()
			c.awaitNode("w2")
			c.propose("w3")
			c.awaitNode("w3")
			c.same(c.leader(""), "n1", "n2", "n3")
		})
	}
}

// TestOnlyVoterWithAnOldLog: there is nobody to learn from, so it does not start, until somebody gives up what came after.
func TestOnlyVoterWithAnOldLog(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t)
		c.names = c.names[:1]
		c.kept["n1"] = &testMemory{}
		c.start("n1", true)
		c.propose("w1")
		c.stop("n1")
		putBack := c.copied("n1")
		c.start("n1", true)
		c.propose("w2")
		c.stop("n1")
		c.start("n1", true) // as it was
		c.propose("w3")
		c.stop("n1")
		putBack()
		cfg := c.config("n1")
		cfg.Layer = c.layer("n1")
		_, err := Start(cfg)
		wantError(t, err, ErrOldLog, cfg.Dir, "voter recover --accept-loss")
		if _, err := Recover(c.config("n1")); err != nil {
			t.Fatal(err)
		}
		c.start("n1", false)
		c.propose("w4")
	})
}

// TestARemovedVoterStaysOut: an operator removes a node while the leader that takes it in again waits for its turn.
func TestARemovedVoterStaysOut(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newTrio(t).startAll(true)
		c.propose("w1")
		c.awaitNode("w1")
		c.all()
		l := c.leader("")
		gone := replica.NodeName("n3")
		if l.cfg.ID == gone {
			gone = "n2"
		}
		l.changing <- struct{}{}                                                                // the operator's command has the turn
		if err := l.raft.DemoteVoter(raft.ServerID(gone), 0, time.Second).Error(); err != nil { // as a leader left it that fell meanwhile
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // the leader looks, and waits for its turn
		if err := l.remove(within(t), gone); err != nil {
			t.Fatal(err)
		}
		<-l.changing
		time.Sleep(70 * time.Second)
		if len(l.Voters()) != 2 || len(l.Joining()) != 0 {
			t.Errorf("%s was removed: voters %v, joining %v", gone, l.Voters(), l.Joining())
		}
	})
}
